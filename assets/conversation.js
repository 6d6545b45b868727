// The conversation: what the user typed as text, what the model wrote as rendered (and on the server
// sanitised) Markdown. A message that has not changed keeps its element, so that selections survive.

const KEPT = "mars-conversation"; // in this browser tab's own storage, until the tab is closed
const MOST_KEPT = 300_000; // characters

class Conversation {
  constructor(host) {
    this.host = host;
    host.classList.add("mars-conversation");
    host.setAttribute("role", "log");
    host.setAttribute("aria-label", "Conversation");
    this.shown = [];
    this.lastAsked = -1;
    this.writing = make("p", "mars-writing", "Writing …");
  }

  apply(batch) {
    const values = batch.filter((item) => item !== null);
    values.forEach((item) => this.tellBox(item));
    const value = values.at(-1);
    if (!value) return;
    const { messages, running, ending } = value;
    const lastAnswer = messages.findLastIndex(({ role }) => role === "assistant");
    messages.forEach((message, k) => {
      const isLast = k === lastAnswer && k === messages.length - 1;
      const key = JSON.stringify([message, isLast && ending, isLast, running]);
      if (this.shown[k]?.key === key) return;
      const node = this.build(message, isLast, running, ending);
      if (this.shown[k]) this.shown[k].node.replaceWith(node);
      else this.host.append(node);
      this.shown[k] = { key, node };
    });
    this.shown.splice(messages.length).forEach(({ node }) => node.remove());
    // stands where the answer's controls will, so that nothing jumps when they come
    if (running) this.host.append(this.writing);
    else this.writing.remove();
    this.tellPage(messages, running);
    this.keep(messages);
  }

  /** For a reload of the page. The empty conversation that every page begins with is not kept over another. */
  keep(messages) {
    if (!messages.length && !this.began) return;
    this.began = true;
    const text = JSON.stringify({ messages: messages.map(({ role, text }) => ({ role, text })) });
    try {
      if (messages.length && text.length <= MOST_KEPT) sessionStorage.setItem(KEPT, text);
      else sessionStorage.removeItem(KEPT);
    } catch {
      // no storage, or it is full: a reload then begins anew
    }
  }

  /** The page's style sheet shows and hides its parts by this. */
  tellPage(messages, running) {
    const thread = this.host.closest("#thread");
    if (!thread) return;
    const [send, stop] = ["send", "stop"].map((id) => document.getElementById(id));
    const focused = [send, stop].includes(document.activeElement);
    thread.dataset.state = running ? "running" : messages.at(-1)?.role === "assistant" ? "answered" : "empty";
    thread.dataset.messages = messages.length;
    if (focused) (running ? stop : send)?.focus(); // the one that goes hands the focus to the one that comes
  }

  /** A question that was taken leaves the message box; one that only came back with the page does not. */
  tellBox({ messages, running, ending }) {
    const last = messages.findLastIndex(({ role }) => role === "user");
    if (last > this.lastAsked && (running || ending)) trigger("taken", {});
    this.lastAsked = last;
  }

  build(message, isLast, running, ending) {
    const isUser = message.role === "user";
    const article = make("article", `mars-message mars-${message.role}`);
    article.setAttribute("aria-label", isUser ? "You" : "Model");
    const body = make("div", "mars-body", isUser ? message.text : undefined);
    if (isUser) body.dir = "auto";
    else this.fill(body, message.html);
    const actions = make("div", "mars-actions");
    const copy = () => copyText(message.text);
    actions.append(this.button("Copy", "Copy this message as it was written", copy));
    if (isUser && !running) {
      const edit = () => this.edit(article, message, article !== this.lastQuestion());
      actions.append(this.button("Edit", "Change this message and answer again", edit));
    }
    if (!isLast || running) {
      article.append(body, actions);
      return article;
    }
    // the last answer can be looked at as tokens too: its controls stand above it and stay where they are
    actions.append(this.button("Retry", "Answer the last message again", () => trigger("retry", {})));
    actions.prepend(this.viewSwitch());
    if (ending) actions.append(make("span", "mars-how", ending));
    article.classList.add("mars-last-answer");
    article.append(actions, body);
    return article;
  }

  lastQuestion() {
    return [...this.host.querySelectorAll(".mars-user")].at(-1);
  }

  /** Tokens, which the page is about, or rendered; its style sheet does the rest. A choice is kept. */
  viewSwitch() {
    const group = make("fieldset", "mars-shown-as");
    group.append(make("legend", "mars-hidden", "Show this answer as"));
    const thread = this.host.closest("#thread") ?? this.host;
    thread.dataset.view ??= "tokens";
    for (const view of ["Tokens", "Rendered"]) {
      const label = group.appendChild(make("label", ""));
      const input = label.appendChild(make("input"));
      Object.assign(input, { type: "radio", name: "mars-shown-as", value: view.toLowerCase() });
      input.checked = thread.dataset.view === input.value;
      input.addEventListener("change", () => (thread.dataset.view = input.value));
      label.append(view);
    }
    return group;
  }

  /** Rendered Markdown: the server disabled raw HTML and cleaned the rest by an allow-list. */
  fill(body, html) {
    body.innerHTML = html;
    for (const link of body.querySelectorAll("a")) link.target = "_blank";
    for (const block of body.querySelectorAll("pre, table")) block.tabIndex = 0; // scrolls by keyboard
    for (const block of body.querySelectorAll("pre")) {
      const code = block.textContent;
      const button = this.button("Copy", "Copy this code", () => copyText(code));
      const frame = make("div", "mars-code");
      block.replaceWith(frame);
      frame.append(block, button);
    }
  }

  button(text, title, action) {
    const button = make("button", "mars-action", text);
    button.type = "button";
    button.title = title;
    button.setAttribute("aria-label", `${text}: ${title}`);
    button.addEventListener("click", async () => {
      if ((await action()) !== "copied") return;
      button.textContent = "Copied";
      button.setAttribute("aria-label", "Copied"); // focused: read out
      setTimeout(() => {
        button.textContent = text;
        button.setAttribute("aria-label", `${text}: ${title}`);
      }, 1500);
    });
    return button;
  }

  edit(article, { index, text }, dropsLater) {
    const form = make("form", "mars-edit");
    const field = form.appendChild(make("textarea", "mars-field"));
    field.value = text;
    field.rows = Math.min(12, text.split("\n").length + 1);
    field.setAttribute("aria-label", "Edit the message");
    const send = form.appendChild(make("button", "mars-action mars-primary", dropsLater ? "Send, replacing what follows" : "Send"));
    const cancel = form.appendChild(make("button", "mars-action", "Cancel"));
    cancel.type = "button";
    const close = () => {
      form.replaceWith(...kept);
      article.querySelector("[title^=Change]")?.focus();
    };
    const kept = [...article.childNodes];
    article.replaceChildren(form);
    cancel.addEventListener("click", close);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!field.value.trim()) return field.focus();
      trigger("edit", { index, text: field.value });
      close();
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit(send);
      }
    });
    field.focus();
  }
}

/** Copy where the browser lets us: the clipboard needs a secure page. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = document.body.appendChild(make("textarea"));
    field.value = text;
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  return "copied";
}

installStyle(STYLE);
const conversation = new Conversation(element.querySelector(".mars-part"));
follow((batch) => conversation.apply(batch));
