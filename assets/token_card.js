// The card of one token: what it is, how it was decided, how sure the model was.

const CARD_WIDTH = 304;
const EDGE = 8;
// What stays reachable while a card is open: Stop and the threshold.
const BARS = "#composer, #tau-bar";

class TokenCard {
  constructor(host) {
    this.node = host.appendChild(make("div", "mars-card"));
    this.node.id = `mars-card-${Math.random().toString(36).slice(2)}`;
    this.node.setAttribute("role", "tooltip");
    this.node.hidden = true;
    // In the top layer nothing clips it; without the popover API it is a fixed box all the same.
    if ("popover" in this.node) this.node.popover = "manual";
    this.anchor = null;
    this.pinned = false;
    this.node.addEventListener("pointerenter", () => this.stay());
    this.node.addEventListener("pointerleave", () => this.hideSoon());
  }

  get open() {
    return !this.node.hidden;
  }

  show(anchor, content, pinned = false) {
    clearTimeout(this.timer);
    this.anchor = anchor;
    this.setPinned(pinned);
    this.node.replaceChildren(...content);
    this.node.hidden = false;
    if (this.node.showPopover && !this.node.matches(":popover-open")) this.node.showPopover();
    this.place();
  }

  setPinned(pinned) {
    this.pinned = pinned;
    this.node.classList.toggle("mars-pinned", pinned);
  }

  /** Under the token, over it, or under a bar: the first room that is large enough, else the largest. */
  place() {
    const token = this.anchor.getClientRects()[0] ?? this.anchor.getBoundingClientRect();
    const width = Math.min(CARD_WIDTH, window.innerWidth - 2 * EDGE);
    Object.assign(this.node.style, { width: `${width}px`, maxHeight: "" });
    const needed = this.node.offsetHeight + 2 * EDGE;
    const rooms = roomsAround(token);
    const size = ([start, end]) => end - start;
    const room = rooms.find((each) => size(each) >= needed) ?? rooms.reduce((a, b) => (size(b) > size(a) ? b : a));
    const height = Math.min(needed, size(room)) - 2 * EDGE;
    const left = token.left + token.width / 2 - width / 2;
    this.node.style.maxHeight = `${height}px`;
    this.node.style.left = `${clamp(left, EDGE, window.innerWidth - width - EDGE)}px`;
    this.node.style.top = `${room[1] <= token.top ? room[1] - EDGE - height : room[0] + EDGE}px`;
  }

  /** A moment's grace, so that the pointer can go over to the card. */
  hideSoon() {
    clearTimeout(this.timer);
    if (!this.pinned) this.timer = setTimeout(() => this.hide(), 140);
  }

  stay() {
    clearTimeout(this.timer);
  }

  hide() {
    clearTimeout(this.timer);
    if (!this.open) return;
    if (this.node.hidePopover && this.node.matches(":popover-open")) this.node.hidePopover();
    this.node.hidden = true;
    this.setPinned(false);
    this.anchor = null;
  }
}

/** Where a card may stand, best first, as [top, bottom]: it covers neither its token nor a bar. */
function roomsAround(token) {
  const places = [...document.querySelectorAll(BARS)].map((bar) => bar.getBoundingClientRect());
  const bars = places.filter((bar) => bar.height > 0 && bar.bottom > token.bottom && bar.top < innerHeight);
  bars.sort((one, other) => one.top - other.top);
  const starts = [token.bottom, ...bars.map((bar) => bar.bottom)];
  const ends = [...bars.map((bar) => bar.top), innerHeight];
  const [below, ...lower] = starts.map((start, k) => [Math.max(0, start), ends[k]]);
  return [below, [0, Math.min(token.top, ends[0])], ...lower];
}

function clamp(value, low, high) {
  return Math.max(low, Math.min(value, high));
}

/** The card's content for a cell and its forward; `ghost` for a prediction that was not committed. */
function cardContent(cell, forward, ghost = false) {
  return [
    cardHead(cell),
    make("p", "mars-card-where", whereWords(cell, forward, ghost)),
    make("p", "mars-card-how", howWords(cell, forward, ghost)),
    confidenceMeter(cell, forward),
    facts(cell),
    ...pieces(cell),
    ...alternatives(cell),
  ];
}

function cardHead(cell) {
  const head = make("div", "mars-card-head");
  const text = cell.x && !cell.cut ? cell.x : cell.l ?? "";
  head.appendChild(make("code", "", visible(text) || "(nothing)"));
  if (cell.x && cell.l !== undefined && cell.l !== cell.x) head.appendChild(make("span", "", visible(cell.l)));
  head.appendChild(make("span", "mars-card-id", `id ${cell.i}`));
  return head;
}

function whereWords(cell, forward, ghost) {
  if (ghost) return `Forward ${forward.i + 1}, predicted behind the tokens it committed`;
  return `Forward ${forward.i + 1}, token ${cell.o} of ${forward.n} that it committed`;
}

function howWords(cell, forward, ghost) {
  const drawn = cell.r ? ", drawn at random" : "";
  if (ghost && forward.v !== undefined) return "A draft: not committed yet, the next forward checks it.";
  if (ghost) return "Not committed: the next forward predicts it again.";
  if (!cell.d) return `Autoregressive: no mask stood before it${drawn}.`;
  if (cell.d === "chosen") return "Chosen by hand, to branch off the recording.";
  if (cell.d === "verified") return `Verified: drafted by forward ${forward.i}, confirmed by this one${drawn}.`;
  const masks = cell.o - 1 - (forward.v ?? 0);
  return `Accepted at τ = ${short(forward.t)}, behind ${masks} mask${masks === 1 ? "" : "s"}${drawn}.`;
}

/** A bar of the confidence with τ marked on it. */
function confidenceMeter(cell, forward) {
  const value = cell.c ?? cell.p;
  const entropy = forward.m === "e";
  const end = entropy ? Math.max(1, value, 1.5 * (forward.t ?? 0)) : 1;
  const meter = make("div", "mars-meter");
  const label = make("div", "mars-meter-label");
  label.appendChild(make("span", "", `${entropy ? "Entropy" : `Confidence (${METRIC_NAMES[forward.m]})`}`));
  label.appendChild(make("b", "", `${short(value, 3)}${entropy ? " nats" : ""}`));
  const bar = meter.appendChild(make("div", "mars-meter-bar"));
  const fill = bar.appendChild(make("i", ""));
  fill.style.width = `${clamp(value / end, 0, 1) * 100}%`;
  if (forward.t !== null && cell.d && cell.d !== "verified") {
    const mark = bar.appendChild(make("u", ""));
    mark.style.insetInlineStart = `${clamp(forward.t / end, 0, 1) * 100}%`;
    label.insertBefore(make("span", "mars-meter-tau", `τ ${short(forward.t)}`), label.lastChild);
  }
  meter.prepend(label);
  return meter;
}

function facts(cell) {
  const list = make("dl", "mars-card-facts");
  for (const [term, value] of [["probability", short(cell.p, 3)], ["entropy", `${short(cell.h, 3)} nats`]]) {
    list.appendChild(make("dt", "", term));
    list.appendChild(make("dd", "", value));
  }
  return list;
}

/** For a character that took several tokens: the ones before its last. */
function pieces(cell) {
  if (!cell.q) return [];
  const words = cell.q.map(([, label, forward]) => `${visible(label)} (forward ${forward + 1})`).join(", ");
  return [make("p", "mars-card-pieces", `One character of ${cell.q.length + 1} tokens; before this: ${words}.`)];
}

function alternatives(cell) {
  if (!cell.a) return [];
  const list = make("ol", "mars-card-best");
  list.setAttribute("aria-label", "most probable tokens");
  for (const [label, probability] of cell.a) {
    const row = list.appendChild(make("li"));
    row.style.setProperty("--mars-p", `${probability * 100}%`);
    row.appendChild(make("code", "", visible(label)));
    row.appendChild(make("span", "", `${short(probability * 100, 1)} %`));
  }
  return [list];
}
