// Replay of a race: a clock that the visitor drives, a bar for each lane, and what each lane had written when
// its own clock stood there. Nothing here asks the server.

const RATES = [["×¼", 0.25], ["×½", 0.5], ["×1", 1], ["×2", 2], ["×4", 4]];
const LONGEST_FRAME_S = 0.25; // a page that was in the background goes on where it was

class RaceReplay {
  /** `seek(lane, forward)` shows a lane as it was after that forward; null shows all of it. */
  constructor(host, seek) {
    this.host = host;
    this.seek = seek;
    this.lanes = [];
    this.rate = 1;
    this.time = this.end = 0;
    host.classList.add("mars-race-replay");
    host.setAttribute("role", "group");
    host.setAttribute("aria-label", "Replay of the race");
    this.buildControls();
    this.bars = host.appendChild(make("div", "mars-race-bars"));
  }

  buildControls() {
    const row = this.host.appendChild(make("div", "mars-race-controls"));
    this.button = row.appendChild(make("button", "mars-race-play"));
    this.button.type = "button";
    this.button.addEventListener("click", () => (this.playing ? this.pause() : this.play()));
    row.appendChild(this.makeRates());
    this.slider = row.appendChild(make("input", "mars-race-time"));
    Object.assign(this.slider, { type: "range", min: 0, step: "any" });
    this.slider.setAttribute("aria-label", "Time on the lanes' clocks");
    this.slider.addEventListener("input", () => {
      const time = Number(this.slider.value);
      this.pause();
      this.show(time);
    });
    this.readout = row.appendChild(make("span", "mars-race-readout"));
    this.setPlaying(false);
  }

  makeRates() {
    const set = make("fieldset", "mars-race-rates");
    set.appendChild(make("legend", "mars-sr", "Speed of the replay"));
    const name = `mars-race-rate-${Math.random().toString(36).slice(2)}`;
    for (const [words, rate] of RATES) {
      const label = set.appendChild(make("label"));
      const input = label.appendChild(make("input"));
      Object.assign(input, { type: "radio", name, value: String(rate), checked: rate === 1 });
      input.addEventListener("change", () => (this.rate = rate));
      label.appendChild(make("span", "", words));
    }
    return set;
  }

  /** The lanes of a new race: `[{ name, times, counts }]`; it stands at its end. */
  load(lanes) {
    this.pause();
    this.lanes = lanes;
    this.end = Math.max(0, ...lanes.map(endOf));
    this.most = Math.max(1, ...lanes.map(({ counts }) => counts.at(-1) ?? 0));
    this.slider.max = String(this.end);
    this.host.hidden = this.end === 0;
    this.bars.replaceChildren(...lanes.map((lane, k) => this.makeBar(lane, k)));
    this.show(this.end);
  }

  makeBar(lane, k) {
    const row = make("div", `mars-race-bar mars-race-bar${k}`);
    row.appendChild(make("span", "mars-race-name", lane.name));
    const track = row.appendChild(make("span", "mars-race-way"));
    track.setAttribute("aria-hidden", "true");
    const fill = track.appendChild(make("i"));
    const words = row.appendChild(make("span", "mars-race-count"));
    lane.draw = (forward) => {
      const count = lane.counts[forward] ?? 0;
      fill.style.width = `${(100 * count) / this.most}%`;
      const ended = forward === lane.times.length - 1 ? ` in ${short(endOf(lane))} s, done` : "";
      words.textContent = `${count} token${count === 1 ? "" : "s"}${ended}`;
    };
    return row;
  }

  /** Everything as it stood when the clocks showed `time`. */
  show(time) {
    this.time = Math.min(Math.max(time, 0), this.end);
    this.slider.value = String(this.time);
    this.readout.textContent = `${short(this.time)} of ${short(this.end)} s`;
    this.lanes.forEach((lane, k) => {
      const forward = lastUntil(lane.times, this.time);
      if (forward === lane.forward) return;
      lane.forward = forward;
      lane.draw(forward);
      this.seek(k, forward === lane.times.length - 1 ? null : forward);
    });
    // while it plays a screen reader on the slider would be told of every frame
    if (!this.playing) this.describe();
  }

  describe() {
    const lanes = this.lanes.map(({ name, counts, forward }) => `${name} ${counts[forward] ?? 0} tokens`);
    this.slider.setAttribute("aria-valuetext", [`${short(this.time)} seconds`, ...lanes].join(", "));
  }

  play() {
    if (this.time >= this.end) this.show(0);
    this.setPlaying(true);
    this.last = performance.now();
    requestAnimationFrame((now) => this.frame(now));
  }

  frame(now) {
    if (!this.playing || !this.host.isConnected) return;
    const passed = Math.min(Math.max(now - this.last, 0) / 1000, LONGEST_FRAME_S);
    this.last = now;
    this.show(this.time + passed * this.rate);
    if (this.time >= this.end) this.pause();
    else requestAnimationFrame((next) => this.frame(next));
  }

  pause() {
    this.setPlaying(false);
    this.describe();
  }

  setPlaying(playing) {
    this.playing = playing;
    this.button.textContent = playing ? "❚❚ Pause" : "▶ Replay race";
  }
}

const endOf = ({ times }) => times.at(-1) ?? 0;

/** Index of the last of these rising times that is not after `time`; -1 where all are. */
function lastUntil(times, time) {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
