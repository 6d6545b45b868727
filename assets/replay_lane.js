// One of two answers side by side: its heading, and a mark where it parts from the other.

class Lane {
  constructor(part, tokenView) {
    this.view = tokenView;
    this.title = make("h3", "mars-lane-title");
    this.note = make("p", "mars-lane-note");
    part.before(this.title, this.note);
  }

  apply(message) {
    const lane = message?.lane ?? { title: "", note: "", mark: null };
    const begins = message && !message.done && !this.title.textContent;
    this.title.textContent = lane.title;
    this.note.textContent = lane.note;
    this.mark(lane.mark, Boolean(message?.done));
    if (begins) this.title.scrollIntoView({ block: "nearest", behavior: prefersLessMotion() ? "auto" : "smooth" });
  }

  /** Mark the cell that holds this token of the answer; a cell is one token, or the several of a character. */
  mark(number, settled) {
    this.marked?.classList.remove("mars-parts");
    this.marked?.removeAttribute("title");
    this.marked = number === null ? null : this.cellOf(number);
    if (!this.marked) return;
    this.marked.classList.add("mars-parts");
    this.marked.title = "Here the two answers part";
    const { scroll } = this.view;
    const box = this.marked.getBoundingClientRect();
    const { top, height } = scroll.getBoundingClientRect();
    if (settled) scroll.scrollTop += box.top - top - height / 3;
  }

  cellOf(number) {
    let passed = 0;
    for (const { node, cell } of this.view.text.cells) {
      passed += 1 + (cell.q?.length ?? 0);
      if (number < passed) return node;
    }
    return null;
  }
}

const lane = new Lane(element.querySelector(".mars-part"), view);
follow((batch) => lane.apply(batch.at(-1)));
