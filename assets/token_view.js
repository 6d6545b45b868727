// The token view: legend, text, ghosts, ending; pointer and keyboard.

const KINDS = [
  ["ar", "autoregressive", "What the model writes next when no mask stands before it: in a forward the first new token, behind those it verified"],
  ["accepted", "accepted", "Predicted behind masks in the same forward, and sure enough for the threshold τ"],
  ["verified", "verified", "Predicted behind masks by the forward before, and confirmed by this one: as good as autoregressive"],
  ["ghost", "not committed", "Predicted by the newest forward and not sure enough: the next one predicts it again"],
];

class TokenView {
  constructor(host) {
    this.host = host;
    host.classList.add("mars-view");
    host.dataset.state = "empty";
    this.scrolls = (props.view_height ?? "none") !== "none";
    host.style.setProperty("--mars-height", props.view_height ?? "none");
    this.buildLegend();
    this.buildStage();
    this.status = host.appendChild(make("div", "mars-sr"));
    this.status.setAttribute("role", "status");
    this.card = new TokenCard(host);
    this.sequence = new Sequence({
      start: () => this.start(),
      event: (event) => this.text.addEvent(event),
      gap: () => this.text.addGap(),
    });
    this.listen();
  }

  // ---- parts ----

  buildLegend() {
    const legend = this.host.appendChild(make("div", "mars-legend"));
    const counts = legend.appendChild(make("span", "mars-key", "tokens a forward"));
    counts.title = "How many tokens one forward wrote: the more, the darker their box. Neighbours alternate between two colours";
    this.swatches = LEVEL_NAMES.map((name, level) => {
      return counts.appendChild(make("span", `mars-swatch mars-swatch${level}`, name));
    });
    for (const [kind, name, meaning] of KINDS) {
      legend.appendChild(make("span", `mars-key mars-key-${kind}`, name)).title = meaning;
    }
    this.buildSwitch(legend);
    const doubts = legend.appendChild(make("span", "mars-key mars-key-doubt"));
    doubts.title = "Probability of the token";
    ["≥ .9", "≥ .7", "≥ .4", "less"].forEach((name, level) => {
      doubts.appendChild(make("span", `mars-doubt mars-c${level}`, name));
    });
    this.showLevels(4);
  }

  buildSwitch(legend) {
    const button = legend.appendChild(make("button", "mars-switch", "confidence"));
    button.type = "button";
    button.setAttribute("role", "switch");
    button.title = "Underline tokens by probability: the thicker, the less sure";
    const set = (on) => {
      button.setAttribute("aria-checked", String(on));
      this.host.classList.toggle("mars-show-doubt", on);
    };
    button.addEventListener("click", () => set(button.getAttribute("aria-checked") !== "true"));
    set(Boolean(props.confidence));
  }

  buildStage() {
    this.scroll = this.host.appendChild(make("div", "mars-scroll"));
    this.stage = this.scroll.appendChild(make("div", "mars-stage"));
    this.stage.setAttribute("role", "group");
    this.stage.setAttribute("aria-label", `${props.view_name}. Arrow keys move between tokens.`);
    this.text = new TokenText(this.stage.appendChild(make("span", "mars-text")));
    this.caret = this.stage.appendChild(make("span", "mars-caret"));
    this.ghosts = this.stage.appendChild(make("span", "mars-ghosts"));
    this.ghosts.setAttribute("aria-hidden", "true");
    this.hint = this.scroll.appendChild(make("p", "mars-hint", props.hint));
    this.ending = this.scroll.appendChild(make("p", "mars-ending"));
    // Ghosts come and go at the end of the text; the room they once took stays until the run is over, so
    // that what stands below does not jump.
    new ResizeObserver(([entry]) => this.keepHeight(entry.contentRect.height)).observe(this.stage);
  }

  /** Show the shades that can occur where a forward commits at most this many. */
  showLevels(most) {
    this.swatches.forEach((swatch, level) => (swatch.hidden = level > levelOf(most)));
  }

  // ---- messages ----

  start() {
    this.card.hide();
    this.text.clear();
    this.drawGhosts([], []);
    this.current = 0;
    this.tallest = 0;
    this.stage.style.minHeight = "";
    this.status.textContent = this.ending.textContent = "";
    this.stick = true;
    this.host.dataset.state = "running";
  }

  apply(batch) {
    let newest = null;
    for (const message of batch) {
      if (message === null) this.empty();
      else if (this.sequence.apply(message)) {
        newest = message;
        if (message.done) this.finish(message);
      }
    }
    if (newest) this.refresh(newest);
  }

  empty() {
    this.sequence.begin(null);
    this.host.dataset.state = "empty";
  }

  refresh(message) {
    this.drawGhosts(message.ghosts, message.waiting, message.events.at(-1));
    if (message.figures.most_tokens) this.showLevels(message.figures.most_tokens);
    const reading = message.figures.num_forwards === 0 && !message.done;
    this.hint.textContent = reading ? "Reading the prompt …" : props.hint;
    this.host.classList.toggle("mars-reading", reading);
    if (this.text.cells[this.current]?.node.hasAttribute("tabindex") === false) this.moveTo(this.current);
    // a view that grows does not scroll, and asking would cost a layout
    if (this.stick && this.scrolls) this.scroll.scrollTop = this.scroll.scrollHeight;
  }

  finish({ done }) {
    this.text.settle(done.length, done.tail);
    this.host.dataset.state = done.reason === "error" ? "error" : "done";
    this.ending.textContent = done.message;
    this.status.textContent = done.message;
    this.stage.style.minHeight = "";
  }

  drawGhosts(ghosts, waiting, forward) {
    this.ghostCells = new WeakMap();
    const nodes = waiting.map((label) => make("span", "mars-waiting", label));
    for (const ghost of ghosts) {
      const node = make("span", "mars-ghost", (ghost.l ?? "").replace(/\n/g, "↵").replace(/\t/g, "⇥"));
      this.ghostCells.set(node, { cell: ghost, forward });
      nodes.push(node);
    }
    this.ghosts.replaceChildren(...nodes);
    if (nodes.length && !prefersLessMotion()) this.ghosts.animate([{ opacity: 0.4 }, { opacity: 1 }], 110);
  }

  keepHeight(height) {
    if (this.host.dataset.state !== "running") return;
    if (height < this.tallest) this.stage.style.minHeight = `${this.tallest}px`;
    else this.tallest = height;
  }

  // ---- pointer and keyboard ----

  listen() {
    const on = (node, type, handler) => node.addEventListener(type, handler);
    on(this.stage, "pointermove", (event) => this.hover(event));
    on(this.stage, "pointerover", (event) => this.rests(event) && this.card.hideSoon());
    this.onPage("pointermove", ({ clientX, clientY }) => (this.pointer = { clientX, clientY }));
    on(this.stage, "pointerleave", () => this.card.hideSoon());
    on(this.stage, "click", (event) => this.press(event));
    on(this.stage, "keydown", (event) => this.key(event));
    on(this.stage, "focusin", (event) => event.target.matches(":focus-visible") && this.open(this.current, false));
    on(this.stage, "focusout", () => this.card.hideSoon());
    on(this.stage, "copy", (event) => this.copy(event));
    on(this.scroll, "scroll", () => this.scrolled());
    this.onPage("pointerdown", (event) => {
      if (!this.stage.contains(event.target) && !this.card.node.contains(event.target)) this.card.hide();
    });
    this.onPage("keydown", (event) => event.key === "Escape" && this.card.hide());
  }

  /** A listener on the whole page that does not outlive the view. */
  onPage(type, handler) {
    const listener = (event) => {
      if (this.host.isConnected) handler(event);
      else document.removeEventListener(type, listener);
    };
    document.addEventListener(type, listener);
  }

  hover(event) {
    if (event.pointerType !== "mouse" || this.card.pinned || event.buttons || this.rests(event)) return;
    const ghost = this.ghostCells.get(event.target);
    const index = this.text.cellAt(event.target);
    const node = ghost ? event.target : this.text.cells[index]?.node;
    if (!node) this.card.hideSoon();
    else if (this.card.open && this.card.anchor === node) this.card.stay();
    else if (ghost) this.card.show(node, cardContent(ghost.cell, ghost.forward, true));
    else this.open(index, false);
  }

  /** True where not the pointer moved but what is under it: text that grows or is scrolled is not pointed at. */
  rests({ clientX, clientY }) {
    return this.pointer?.clientX === clientX && this.pointer.clientY === clientY;
  }

  press(event) {
    const index = this.text.cellAt(event.target);
    if (index === undefined) return this.card.hide();
    if (!getSelection().isCollapsed) return;
    this.moveTo(index);
    this.text.cells[index].node.focus({ preventScroll: true });
    this.togglePin(index);
  }

  togglePin(index) {
    const node = this.text.cells[index].node;
    if (this.card.pinned && this.card.anchor === node) this.card.hide();
    else this.open(index, true);
  }

  open(index, pinned) {
    const entry = this.text.cells[index];
    if (!entry) return;
    entry.node.setAttribute("aria-describedby", this.card.node.id);
    this.card.show(entry.node, cardContent(entry.cell, entry.forward), pinned);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.text.cells.length) return;
    const last = this.text.cells.length - 1;
    const targets = {
      ArrowLeft: () => Math.max(0, this.current - 1),
      ArrowRight: () => Math.min(last, this.current + 1),
      ArrowUp: () => this.text.otherForward(this.current, -1),
      ArrowDown: () => this.text.otherForward(this.current, 1),
      Home: () => 0,
      End: () => last,
    };
    if (targets[event.key]) this.focusCell(targets[event.key]());
    else if (event.key === "Enter" || event.key === " ") this.togglePin(this.current);
    else if (event.key === "Escape" && this.card.open) this.card.hide();
    else return;
    // What the view used is not for the page (arrow keys turn τ there, Escape stops the run).
    event.preventDefault();
    event.stopPropagation();
  }

  focusCell(index) {
    this.stick = false;
    this.moveTo(index);
    this.text.cells[index].node.focus();
    this.open(index, this.card.pinned);
  }

  /** Make a cell the one that Tab reaches. */
  moveTo(index) {
    const before = this.text.cells[this.current]?.node;
    for (const name of ["tabindex", "role", "aria-describedby"]) before?.removeAttribute(name);
    this.current = index;
    const { node } = this.text.cells[index];
    node.setAttribute("tabindex", "0");
    node.setAttribute("role", "button");
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroll;
    this.stick = scrollHeight - scrollTop - clientHeight < 40;
    if (this.card.open) this.card.pinned ? this.card.place() : this.card.hide();
  }

  /** Copy the answer's own characters: blocks of chunks and ghosts would add some. */
  copy(event) {
    const range = getSelection().getRangeAt(0).cloneRange();
    const whole = document.createRange();
    whole.selectNodeContents(this.text.root);
    if (range.compareBoundaryPoints(Range.START_TO_START, whole) < 0) range.setStart(whole.startContainer, 0);
    if (range.compareBoundaryPoints(Range.END_TO_END, whole) > 0) {
      range.setEnd(whole.endContainer, whole.endOffset);
    }
    event.clipboardData.setData("text/plain", range.cloneContents().textContent);
    event.preventDefault();
  }
}

installStyle(STYLE);
const view = new TokenView(element.querySelector(".mars-part"));
follow((batch) => view.apply(batch));
