// The page's tabs: arrow keys, what assistive technology needs beyond what Gradio says, and addresses.
// `#compare` or `?tab=compare` opens a tab; the address follows what is open, so that it can be passed on.

(() => {
  const FIRST = "chat";
  const list = () => document.querySelector("#tabs > .tab-wrapper [role=tablist]");
  const buttons = () => [...(list()?.querySelectorAll("[role=tab]") ?? [])];
  const selected = () => buttons().find((button) => button.getAttribute("aria-selected") === "true");
  const nameOf = (button) => button.dataset.tabId;

  /** The tab that the address asks for, or null. */
  function asked() {
    const name = location.hash.slice(1) || new URLSearchParams(location.search).get("tab");
    return buttons().find((button) => nameOf(button) === name) ?? null;
  }

  /** One tab stop for all tabs, each panel named by its tab. */
  function dress() {
    const chosen = selected();
    for (const button of buttons()) {
      button.tabIndex = button === chosen ? 0 : -1;
      const panel = document.getElementById(button.getAttribute("aria-controls"));
      panel?.setAttribute("aria-labelledby", button.id);
    }
    list().setAttribute("aria-label", "Parts of this page");
  }

  function changed() {
    dress();
    const name = nameOf(selected() ?? buttons()[0]);
    if (document.body.dataset.tab === name) return;
    const first = document.body.dataset.tab === undefined;
    document.body.dataset.tab = name;
    if (first) return;
    const link = new URL(location.href);
    link.searchParams.delete("tab");
    link.hash = name === FIRST ? "" : name;
    history.replaceState(history.state, "", link);
    // another tab may have been opened from far down in the one before
    const top = document.getElementById("tabs").getBoundingClientRect().top;
    if (top < 0) window.scrollBy(0, top);
  }

  function key(event) {
    const all = buttons();
    const here = all.indexOf(event.target);
    if (here < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const targets = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: all.length - 1 };
    if (!(event.key in targets)) return;
    const target = all[(targets[event.key] + all.length) % all.length];
    target.click();
    target.focus();
    // arrow keys are not for τ here
    event.preventDefault();
    event.stopPropagation();
  }

  function start() {
    if (!selected()) return setTimeout(start, 30);
    const watcher = new MutationObserver(changed);
    watcher.observe(list(), { subtree: true, childList: true, attributeFilter: ["aria-selected"] });
    // panels come when they are first opened
    new MutationObserver(dress).observe(document.getElementById("tabs"), { childList: true });
    list().addEventListener("keydown", key);
    window.addEventListener("hashchange", () => asked()?.click());
    changed();
    asked()?.click();
  }
  start();
})();
