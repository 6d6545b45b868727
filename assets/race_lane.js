// A lane of a race: its figures over the token view, the mark where the answers part, and replay, which
// hides what was not yet written. `view` is the token view, made by token_view.js.

const RACE_FIGURES = [
  ["tokens_per_forward", "tok/fwd", 2, "Committed tokens divided by forward passes; the prompt counts as one forward."],
  ["tokens_per_s", "tok/s", 1, "Tokens per second of this lane's own forwards behind the prompt. The other lane's forwards are not in it."],
  ["num_tokens", "tokens", 0, "Tokens committed, the end-of-sequence token included."],
  ["num_forwards", "forwards", 0, "Forward passes that committed tokens."],
  ["decode_s", "s on its clock", 2, "The lane's own forwards behind the prompt, added up."],
];

class RaceLane {
  constructor(view) {
    this.view = view;
    this.mark = null;
    this.groups = { cells: null, count: 0, list: [], shown: 0 };
    this.buildFigures();
    view.status.remove(); // a race is announced once, by its panel
    const on = (type, handler) => view.host.addEventListener(type, handler);
    on("mars-mark", (event) => this.setMark(event.detail));
    on("mars-show", () => this.show());
    on("mars-seek", (event) => this.seek(event.detail.forward));
  }

  buildFigures() {
    const list = make("dl", "mars-race-figures");
    this.figures = RACE_FIGURES.map(([key, unit, digits, meaning]) => {
      const tile = list.appendChild(make("div"));
      tile.title = meaning;
      tile.appendChild(make("dt", "", unit));
      return { key, digits, value: tile.appendChild(make("dd", "", "–")) };
    });
    this.inForce = make("p", "mars-race-force", " ");
    this.view.host.prepend(list, this.inForce);
  }

  apply(batch) {
    const message = batch.at(-1) ?? null;
    for (const { key, digits, value } of this.figures) {
      const number = message?.figures[key];
      // nothing was measured yet: a dash says so, a 0 would lie
      value.textContent = number ? short(number, digits) : "–";
    }
    this.inForce.textContent = message ? forceWords(message.figures) : " ";
    this.view.host.classList.toggle("mars-race-plain", message !== null && isOneToken(message.figures));
    this.drawMark();
  }

  // ---- where the answers part ----

  setMark(mark) {
    this.marked?.classList.remove("mars-race-part");
    this.marked = null;
    this.mark = mark;
    this.drawMark();
  }

  /** The mark may come before the text that it belongs to. */
  drawMark() {
    const { cells } = this.view.text;
    if (!this.mark || this.mark.run !== this.view.sequence.run || !cells.length) return;
    this.marked?.classList.remove("mars-race-part");
    // an answer that ended before the other went on: its last cell
    this.marked = cells[Math.min(this.mark.cell, cells.length - 1)].node;
    this.marked.classList.add("mars-race-part");
  }

  show() {
    if (!this.marked) return;
    this.view.stick = false;
    this.reveal(this.marked, true);
    if (!prefersLessMotion()) this.marked.animate([{ opacity: 0.2 }, { opacity: 1 }], { duration: 300, iterations: 2 });
  }

  /** Scroll the lane's own box, and nothing else, until a node stands in it; in its middle if asked. */
  reveal(node, middle = false) {
    const { scroll } = this.view;
    const box = scroll.getBoundingClientRect();
    const place = node.getBoundingClientRect();
    if (middle) scroll.scrollTop += (place.top + place.bottom - box.top - box.bottom) / 2;
    else if (place.bottom > box.bottom - 8) scroll.scrollTop += place.bottom - box.bottom + 28;
    else if (place.top < box.top) scroll.scrollTop -= box.top - place.top + 28;
  }

  // ---- replay ----

  /** Show what was written up to and with this forward; all of it where it is null. */
  seek(forward) {
    const groups = this.findGroups();
    const end = forward === null ? groups.list.length : countUntil(groups.list, forward);
    for (let k = Math.min(end, groups.shown); k < Math.max(end, groups.shown); k++) {
      groups.list[k].node.classList.toggle("mars-race-future", k >= end);
    }
    groups.shown = end;
    this.view.host.classList.toggle("mars-race-replaying", forward !== null);
    this.view.card.hide();
    if (forward === null) return;
    this.view.stick = false;
    if (end) this.reveal(groups.list[end - 1].node);
    else this.view.scroll.scrollTop = 0;
  }

  /** The boxes of the text and the number of the forward of each. */
  findGroups() {
    const { cells } = this.view.text;
    if (this.groups.cells === cells && this.groups.count === cells.length) return this.groups;
    const list = [];
    for (const { node, forward } of cells) {
      const group = node.parentElement;
      if (list.at(-1)?.node !== group) list.push({ node: group, number: forward.i });
    }
    this.groups = { cells, count: cells.length, list, shown: list.length };
    return this.groups;
  }
}

/** How many of the groups, which are in the order of their forwards, belong to one up to `forward`. */
function countUntil(groups, forward) {
  let [low, high] = [0, groups.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (groups[middle].number <= forward) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** AR, whichever way it was asked for. */
function isOneToken({ threshold, most_tokens: most, block_size: size }) {
  return threshold === null || most === 1 || (threshold >= 1 && most === size);
}

function forceWords(figures) {
  if (!figures.num_forwards) return `Reading the prompt: ${short(figures.num_prefilled, 0)} of ${short(figures.num_prompt_tokens, 0)} tokens`;
  const prompt = `prompt read in ${short(figures.prefill_s, 2)} s, not on the clock`;
  if (isOneToken(figures)) return `one token a forward · ${prompt}`;
  const verified = figures.most_tokens > figures.block_size ? " · verified" : "";
  return `τ = ${short(figures.threshold)} · B = ${figures.block_size}${verified} · ${prompt}`;
}

const lane = new RaceLane(view);
follow((batch) => lane.apply(batch));
