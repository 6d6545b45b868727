// The answer's text as DOM: chunks of groups of cells. Everything in `.mars-text` is answer, character by
// character; marks (↵, ⇥, chips) are pseudo-elements.

// A chunk is closed at the first line end after this many cells: the browser skips laying out closed
// chunks that are off the screen. Smaller saves more; larger costs fewer boxes.
const CELLS_PER_CHUNK = 160;

// Scripts whose letters join, and characters that join what stands before or after them: a box's padding
// would break the shaping there.
const JOINING = /[\u0590-\u0fff\u1000-\u109f\u1780-\u17ff\u1800-\u18af\ufb1d-\ufdff\ufe70-\ufefc\u200d\ufe0f\p{M}\p{Regional_Indicator}\p{Emoji_Modifier}]/u;
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

class TokenText {
  constructor(root) {
    this.root = root;
    this.indexOf = new WeakMap();
    this.clear();
  }

  clear() {
    this.root.replaceChildren();
    this.cells = [];
    this.forwards = new Map();
    this.length = 0;
    this.settled = false;
    this.hue = 1;
    this.boxed = null;
    this.chunk = null;
    this.openChunk();
  }

  openChunk() {
    this.chunk?.classList.add("mars-closed");
    this.chunk = this.root.appendChild(make("span", "mars-chunk"));
    this.cellsInChunk = 0;
    this.endsLine = false;
    this.group = null;
  }

  addEvent(event) {
    const { c: cells = [], ...forward } = event;
    this.forwards.set(event.i, forward);
    this.group = null;
    for (const cell of cells) this.addCell(cell, forward);
  }

  addCell(cell, forward) {
    if (this.endsLine && this.cellsInChunk >= CELLS_PER_CHUNK) this.openChunk();
    this.group ??= this.openGroup(forward, cell);
    const node = make("span", cellClass(cell));
    fillCell(node, cell);
    if (JOINING.test(cell.x)) this.group.classList.add("mars-tight");
    this.group.appendChild(node);
    this.indexOf.set(node, this.cells.length);
    this.cells.push({ node, cell, forward });
    this.length += cell.x.length;
    this.cellsInChunk += 1;
    if (cell.x) this.endsLine = cell.x.endsWith("\n");
  }

  openGroup(forward, firstCell) {
    const level = levelOf(forward.n);
    // Neighbouring boxes differ; the second part of a box that a new chunk cut does not.
    if (level && forward !== this.boxed) this.hue = 1 - this.hue;
    if (level) this.boxed = forward;
    const group = make("span", `mars-group mars-l${level}` + (level ? ` mars-h${this.hue}` : ""));
    const before = this.chunk.lastElementChild;
    if (before && JOINING.test(firstCell.x.slice(0, 2))) before.classList.add("mars-tight");
    return this.chunk.appendChild(group);
  }

  /** Something was lost here; the last message brings it. */
  addGap() {
    this.chunk.appendChild(make("span", "mars-gap"));
    this.group = null;
  }

  /** Make the text equal to the answer: keep `length` characters of it and add `tail`. Once a run. */
  settle(length, tail) {
    if (this.settled) return;
    this.settled = true;
    for (let k = this.cells.length - 1; k >= 0 && this.length > length; k--) {
      const { node, cell } = this.cells[k];
      const kept = cell.x.slice(0, Math.max(0, cell.x.length - (this.length - length)));
      this.length -= cell.x.length - kept.length;
      this.cells[k].cell = { ...cell, l: cell.l ?? cell.x, x: kept, cut: true };
      if (!kept) node.classList.add("mars-chip");
      fillCell(node, this.cells[k].cell);
    }
    if (tail) this.chunk.appendChild(make("span", "mars-tail", tail));
    this.length += tail.length;
  }

  /** The index of the cell that a node of the view is in, or undefined. */
  cellAt(node) {
    const cell = node instanceof Element ? node.closest(".mars-cell") : null;
    return cell ? this.indexOf.get(cell) : undefined;
  }

  /** Index of the first cell of the next (step 1) or this or the previous (step -1) forward. */
  otherForward(index, step) {
    const start = (k) => k === 0 || this.cells[k - 1].forward !== this.cells[k].forward;
    let k = index + step;
    while (k > 0 && k < this.cells.length && !start(k)) k += step;
    return Math.min(Math.max(k, 0), this.cells.length - 1);
  }
}

function cellClass(cell) {
  const decided = `mars-${cell.d ?? "ar"}`;
  const chip = cell.s ? " mars-chip" : "";
  const rtl = RIGHT_TO_LEFT.test(cell.x) ? " mars-rtl" : "";
  const solid = /^\S/.test(cell.x) ? " mars-solid" : "";
  return `mars-cell ${decided} mars-c${doubtOf(cell.p)}${chip}${solid}${rtl}`;
}

/** Underline weight: 0 (none) where the model was sure, up to 3. */
function doubtOf(probability) {
  if (probability >= 0.9) return 0;
  if (probability >= 0.7) return 1;
  return probability >= 0.4 ? 2 : 3;
}

/** The cell's text, with line ends and tabs in spans of their own so that CSS can mark them. */
function fillCell(node, cell) {
  node.replaceChildren();
  if (!cell.x) node.dataset.label = visible(cell.l ?? "");
  for (const part of cell.x.split(/([\n\t])/)) {
    if (part === "\n") node.appendChild(make("span", "mars-nl", part));
    else if (part === "\t") node.appendChild(make("span", "mars-tab", part));
    else if (part) node.appendChild(document.createTextNode(part));
  }
}
