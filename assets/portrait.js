// Plays a recorded run to the token view and the live chart. `tokenView` and `liveChart` stand before this.

const at = (id) => document.getElementById(id);

function put(parent, tag, text) {
  const node = document.createElement(tag);
  node.textContent = text;
  return parent.appendChild(node);
}

/** A part of the page in this document: hands it messages as Gradio would. */
function part(start, element, props) {
  const listeners = [];
  const given = { value: null, ...props };
  start(element, given, (name, listener) => listeners.push(listener));
  return (message) => {
    given.value = JSON.stringify(message);
    for (const listener of listeners) listener();
  };
}

class Replay {
  constructor({ steps, done }) {
    Object.assign(this, { steps, done, shown: 0, run: 0, seq: 0, seconds: 0, playing: false });
    this.parts = [
      part(tokenView, at("view"), { hint: "Press Play.", view_name: "Answer, token by token", view_height: "none" }),
      part(liveChart, at("chart"), { chart_height: 170 }),
    ];
    this.most = Math.max(1, ...steps.map(({ e }) => e.b));
    this.tally();
    at("place").max = steps.length;
    at("place").addEventListener("input", (event) => this.goTo(Number(event.target.value)));
    at("play").addEventListener("click", () => (this.playing ? this.pause() : this.play()));
    this.show(steps.length);
  }

  /** Time, forwards and tokens after each step; what was read of a damaged clock never runs back. */
  tally() {
    let [time, forwards, tokens] = [0, 0, 0];
    this.totals = [{ time, forwards, tokens }];
    for (const { t, e } of this.steps) {
      time = Math.max(time, t);
      forwards += e.n > 0;
      tokens += e.n;
      this.totals.push({ time, forwards, tokens });
    }
  }

  /** Show the run as it stood after `count` steps. */
  show(count) {
    if (this.run && count === this.shown) return this.tell();
    if (!this.run || count < this.shown) Object.assign(this, { run: this.run + 1, seq: 0, shown: 0 });
    const last = this.steps[count - 1];
    const message = {
      run: `replay ${this.run}`,
      seq: this.seq++,
      reset: this.shown === 0,
      from: this.shown,
      events: this.steps.slice(this.shown, count).map(({ e }) => e),
      ghosts: last?.g ?? [],
      waiting: last?.w ?? [],
      figures: { num_forwards: this.totals[count].forwards, most_tokens: this.most },
      done: count === this.steps.length ? this.done : null,
    };
    this.shown = count;
    for (const send of this.parts) send(message);
    this.tell();
  }

  tell() {
    const [now, end] = [this.totals[this.shown], this.totals.at(-1)];
    const words = [
      `${now.time.toFixed(2)} s of ${end.time.toFixed(2)} s`,
      `${now.forwards} of ${end.forwards} forwards`,
      `${now.tokens} tokens`,
    ];
    at("clock").textContent = words.join(" · ");
    at("place").value = this.shown;
    at("place").setAttribute("aria-valuetext", words.join(", "));
  }

  goTo(count) {
    this.pause();
    // several moves of a finger in one frame are one
    this.wanted = count;
    requestAnimationFrame(() => this.wanted === count && this.show(count));
  }

  play() {
    if (this.shown === this.steps.length) this.show(0);
    this.playing = true;
    at("play").textContent = "Pause";
    this.seconds = this.totals[this.shown].time;
    this.before = performance.now();
    this.frame = requestAnimationFrame((now) => this.tick(now));
  }

  pause() {
    this.playing = false;
    at("play").textContent = "Play";
    cancelAnimationFrame(this.frame);
  }

  tick(now) {
    this.seconds += (Math.max(0, now - this.before) / 1000) * Number(at("speed").value);
    this.before = now;
    let count = this.shown;
    while (count < this.steps.length && this.totals[count + 1].time <= this.seconds) count++;
    this.show(count);
    if (count === this.steps.length) this.pause();
    else this.frame = requestAnimationFrame((time) => this.tick(time));
  }
}

function fill({ title, notice, prompt, facts }) {
  document.title = `${title} – recorded MARS run`;
  at("title").textContent = title;
  at("notice").textContent = notice ?? "";
  at("notice").hidden = !notice;
  for (const { role, content } of prompt) {
    put(at("prompt"), "b", role);
    put(at("prompt"), "pre", content);
  }
  at("prompt").hidden = !prompt.length;
  for (const [name, value] of facts) {
    const fact = at("facts").appendChild(document.createElement("div"));
    put(fact, "dt", name);
    put(fact, "dd", value);
  }
}

const darkness = matchMedia("(prefers-color-scheme: dark)");
const dress = () => document.body.classList.toggle("dark", darkness.matches);
darkness.addEventListener("change", dress);
dress();
const recorded = JSON.parse(at("run").textContent);
fill(recorded);
new Replay(recorded);
