// The panel of a race: how it stands, who was faster and why, where the answers part; and the replay. It
// speaks to the lanes' views by events on their elements.

class RacePanel {
  constructor(host) {
    this.host = host;
    host.classList.add("mars-race");
    this.words = host.appendChild(make("p", "mars-race-words"));
    this.result = host.appendChild(make("section", "mars-race-result"));
    this.result.setAttribute("aria-label", "Result of the race");
    this.replay = new RaceReplay(host.appendChild(make("div")), (lane, forward) => {
      this.tell(lane, "mars-seek", { forward });
    });
    host.appendChild(noteOf(props.note));
    this.status = host.appendChild(make("div", "mars-sr"));
    this.status.setAttribute("role", "status");
    this.lanes = [];
  }

  apply(batch) {
    const value = batch.at(-1) ?? { state: "empty" };
    const done = value.state === "done";
    this.lanes.forEach((_, lane) => this.tell(lane, "mars-seek", { forward: null }));
    this.lanes = done ? value.lanes : [];
    this.words.textContent = value.words ?? "";
    this.result.hidden = this.replay.host.hidden = !done;
    this.setState(value.state);
    if (done) this.finish(value);
    else this.clear();
  }

  clear() {
    this.replay.load([]);
    this.result.replaceChildren();
    this.status.textContent = "";
  }

  finish(value) {
    this.result.replaceChildren(make("h3", "mars-race-headline", value.headline));
    for (const line of value.lines) this.result.appendChild(make("p", "", line));
    if (value.difference) this.result.appendChild(this.difference(value.difference));
    this.lanes.forEach(({ run }, lane) => {
      const part = value.difference?.lanes[lane];
      this.tell(lane, "mars-mark", part ? { run, cell: part.cell } : null);
    });
    this.replay.load(this.lanes);
    const place = value.difference ? ` They part at token ${value.difference.place}.` : "";
    this.status.textContent = `The race is over. ${value.headline}.${place}`;
  }

  /** Where the answers part, and a button that shows it in both lanes. */
  difference({ place, lanes }) {
    const line = make("p", "mars-race-difference", `They part at token ${place}: `);
    lanes.forEach(({ name, label }, k) => {
      line.append(k ? ", " : "", `${name} `);
      if (label === null) line.append("had ended");
      else line.append("wrote ", make("code", "", visible(label)));
    });
    line.append(". ");
    const button = line.appendChild(make("button", "mars-race-show", "Show it in both lanes"));
    button.type = "button";
    button.addEventListener("click", () => {
      this.replay.pause();
      this.replay.show(this.replay.end);
      this.lanes.forEach((_, lane) => this.tell(lane, "mars-show"));
      document.getElementById(this.lanes[0].view)?.scrollIntoView({ block: "nearest" });
    });
    return line;
  }

  tell(lane, type, detail) {
    const view = document.querySelector(`#${CSS.escape(this.lanes[lane].view)} .mars-view`);
    view?.dispatchEvent(new CustomEvent(type, { detail }));
  }

  // ---- the tab around it ----

  /** Which of *Race* and *Stop* there is; the one that goes hands the focus to the one that comes. */
  setState(state) {
    const [start, stop] = ["compare-start", "compare-stop"].map((id) => document.getElementById(id));
    const focused = [start, stop].includes(document.activeElement);
    const tab = this.host.closest("#compare");
    const begins = state === "running" && tab?.dataset.state !== state;
    if (tab) tab.dataset.state = state;
    if (begins) document.getElementById("compare-left")?.scrollIntoView({ block: "nearest" });
    if (focused) (state === "running" ? stop : start).focus();
  }
}

/** The honesty line: its first line shows, the others on demand. */
function noteOf(words) {
  const [line, ...more] = words.split("\n");
  const note = make("div", "mars-race-note");
  if (!more.length) note.textContent = line;
  else note.appendChild(make("details")).append(make("summary", "", line), ...more.map((text) => make("p", "", text)));
  return note;
}

installStyle(STYLE);
const panel = new RacePanel(element.querySelector(".mars-part"));
follow((batch) => panel.apply(batch));
