// Which run to replay: a recorded one that comes with the page, or a file. The browser reads the file; its
// text goes to the server, which checks it.

class Chooser {
  constructor(host) {
    this.host = host;
    host.classList.add("mars-chooser");
    const intro = "A finished answer again, one forward pass at a time: what it was fed, what it predicted, what was kept. No model is needed for that.";
    host.appendChild(make("p", "mars-intro", intro));
    this.cards = JSON.parse(props.cards).map((card) => this.addCard(card));
    this.buildZone();
    this.error = host.appendChild(make("p", "mars-refused"));
    this.error.setAttribute("role", "alert");
    this.listenForDrops();
  }

  addCard({ name, title, how, figures }) {
    const button = this.host.appendChild(make("button", "mars-run"));
    button.type = "button";
    button.append(make("b", "", title), make("span", "", how), make("span", "", figures));
    button.addEventListener("click", () => this.ask("pick", { name }));
    return { name, button };
  }

  buildZone() {
    this.zone = this.host.appendChild(make("button", "mars-run mars-zone"));
    this.zone.type = "button";
    this.zone.append(make("b", "", "Open a trace …"), make("span", "", "or drop its file here (.json)"));
    this.input = this.host.appendChild(make("input", "mars-file"));
    Object.assign(this.input, { type: "file", accept: ".json,application/json", hidden: true });
    this.input.setAttribute("aria-label", "Trace file");
    this.zone.addEventListener("click", () => this.input.click());
    this.input.addEventListener("change", () => {
      const [file] = this.input.files;
      if (file) this.read(file);
      this.input.value = ""; // the same file can be opened again
    });
  }

  async read(file) {
    if (file.size > props.max_bytes) {
      const most = Math.floor(props.max_bytes / 2 ** 20);
      return this.refuse(`${file.name} has ${short(file.size / 2 ** 20, 1)} MB; a trace may have ${most}.`);
    }
    try {
      const text = await file.text();
      this.refuse("");
      this.ask("open", { name: file.name, text });
    } catch {
      this.refuse(`${file.name} could not be read.`);
    }
  }

  /** Requests may overtake each other on their way: their times tell which was the last. */
  ask(event, data) {
    trigger(event, { ...data, at: performance.now() });
  }

  refuse(sentence) {
    this.error.textContent = sentence;
  }

  /** A file dropped anywhere while this can be seen is meant for it, and must not replace the page. */
  listenForDrops() {
    const listen = (type, handler) => {
      const listener = (event) => {
        if (!this.host.isConnected) return document.removeEventListener(type, listener);
        if (!this.host.offsetParent || !event.dataTransfer?.types.includes("Files")) return;
        event.preventDefault();
        handler(event);
      };
      document.addEventListener(type, listener);
    };
    const mark = (on) => this.zone.classList.toggle("mars-over", on);
    listen("dragover", () => mark(true));
    listen("dragleave", (event) => event.relatedTarget === null && mark(false));
    listen("drop", (event) => {
      mark(false);
      const [file] = event.dataTransfer.files;
      if (file) this.read(file);
    });
  }

  apply(value) {
    if (!value) return;
    this.refuse(value.error);
    for (const { name, button } of this.cards) button.setAttribute("aria-pressed", String(name === value.chosen));
  }
}

installStyle(STYLE);
const chooser = new Chooser(element.querySelector(".mars-part"));
follow((batch) => chooser.apply(batch.at(-1)));
