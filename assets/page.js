// For the whole page: keys (Esc stops what runs, the arrow keys turn τ while an answer is written), copy
// buttons, and scrolling along with an answer for as long as the reader stays at its end.

(() => {
  const shows = (node) => Boolean(node?.offsetParent);
  const chatShows = () => shows(document.getElementById("thread"));
  const running = () => document.getElementById("thread")?.dataset.state === "running";
  const fields = "input:not([type=range]), textarea, [contenteditable], [role=radio]";
  // in the empty message box there is nothing that arrow keys could move through
  const typing = (node) => node.matches?.(fields) && !(node.closest("#box") && !node.value);
  const inTokens = (node) => node.closest?.(".mars-stage");

  function turn(steps) {
    const slider = document.querySelector("#tau input[type=range]");
    const value = Number(slider.value) + steps * Number(slider.step);
    const bounded = Math.min(Number(slider.max), Math.max(Number(slider.min), value));
    slider.value = bounded.toFixed(2);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
  }

  /** The button that stops what runs in the tab that is open, where something does. */
  const stops = "#stop, #compare-stop, #explore-stop, #replay-stop";
  const stopButton = () => [...document.querySelectorAll(stops)].find(shows);

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      stopButton()?.click();
    } else if (!running() || !chatShows()) {
      return;
    } else if (event.key.startsWith("Arrow") && !typing(event.target) && !inTokens(event.target)) {
      if (event.target.type === "range") return; // turns itself
      const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: 1, ArrowDown: -1 }[event.key];
      turn(event.shiftKey ? 5 * steps : steps);
      event.preventDefault();
    }
  });

  // ---- copying ----

  document.addEventListener("click", async ({ target }) => {
    const button = target.closest?.(".mars-copy");
    if (!button) return;
    const source = button.parentElement.querySelector("pre");
    const words = button.textContent;
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = words), 1500);
    } catch {
      getSelection().selectAllChildren(source); // the clipboard needs a secure page: the rest is one key
    }
  });

  // ---- from an answer to its replay ----

  document.addEventListener("click", ({ target }) => {
    if (!target.closest?.("#chat-replay")) return;
    const latest = performance.now() + 15_000;
    const arrive = () => {
      const player = document.querySelector(".mars-replay[data-state=shown] .mars-scrub");
      if (!shows(player)) {
        if (performance.now() < latest) setTimeout(arrive, 100);
      } else if (!shows(document.activeElement)) {
        player.focus({ preventScroll: true }); // the button went with its tab; arrow keys step from here
      }
    };
    arrive();
  });

  // ---- scrolling along ----

  let following = true;
  const endOfAnswer = () => document.getElementById("token-view").getBoundingClientRect().bottom;
  const endOfRoom = () => document.getElementById("composer").getBoundingClientRect().top - 8;

  function follow() {
    const hidden = endOfAnswer() - endOfRoom();
    if (running() && chatShows() && following && hidden > 0) window.scrollBy(0, hidden);
  }

  function watchThread() {
    const view = document.getElementById("token-view");
    if (document.getElementById("tabs") && !document.getElementById("tab-chat")) return; // a page without a chat
    if (!view || !document.getElementById("composer")) return setTimeout(watchThread, 100);
    const observer = new ResizeObserver(follow);
    for (const part of [view, document.getElementById("conversation")]) observer.observe(part);
    // we only scroll down: up is the reader's hand (or the page got shorter, which leaves it at its end)
    let last = window.scrollY;
    window.addEventListener("scroll", () => {
      const page = document.documentElement;
      const atEnd = window.scrollY + window.innerHeight >= page.scrollHeight - 2;
      if (window.scrollY < last && !atEnd) following = false;
      else if (atEnd || endOfAnswer() - endOfRoom() < 40) following = true;
      last = window.scrollY;
    }, { passive: true });
    const states = () => {
      if (!running()) return;
      following = true;
      follow();
    };
    new MutationObserver(states).observe(document.getElementById("thread"), { attributeFilter: ["data-state"] });
  }
  watchThread();
})();
