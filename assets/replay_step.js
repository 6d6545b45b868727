// What one forward of a recorded run did: what it was fed, what it predicted at each place, what became of it.

const TAIL = 10; // tokens shown before the window
const MOST_MASKS = 7; // boxes for masks; beyond them a number

const OUTCOMES = {
  ar: "committed: the model's own next token, no mask before it",
  verified: "committed: the draft says the same",
  accepted: "committed",
};

/** One step with what lies around it: `steps`, `events` of the message, `k` its number. */
class Step {
  constructor(steps, events, k, before) {
    this.step = steps[k];
    this.event = events[k];
    this.next = steps[k + 1];
    this.last = steps[k - 1];
    this.before = before; // tokens committed by the forwards before it
    this.verified = this.step.c.filter(({ d }) => d === "verified").length;
    this.predictions = [...this.step.c, ...(this.step.g ?? [])];
  }

  /** The drafts it was fed; null where the trace does not tell one. */
  get drafts() {
    const guessed = this.last?.g ?? [];
    const confirmed = this.step.c.slice(0, this.verified);
    const sameSource = confirmed.every(({ i }, j) => guessed[j]?.i === i);
    return Array.from({ length: this.step.d ?? 0 }, (_, j) => {
      return confirmed[j] ?? (sameSource ? guessed[j] ?? null : null);
    });
  }

  /** How many tokens of prompt and answer stand in the window, in front. */
  pending(numPrompt) {
    const uncached = numPrompt + this.before.length - this.step.k;
    return Math.max(0, Math.min(uncached, this.event.w - (this.step.d ?? 0)));
  }

  reading(numPrompt) {
    return Boolean(this.event.p) && !this.step.c.length && this.event.w > 0 && this.pending(numPrompt) > 0;
  }

  passes(token) {
    const value = token.c ?? token.p;
    if (this.event.t === null) return false;
    return this.event.m === "e" ? value <= this.event.t : value >= this.event.t;
  }

  /** Why a prediction was or was not committed, in words. */
  outcome(place) {
    const token = this.predictions[place];
    if (place >= this.step.c.length) return this.waiting(token, place - this.step.c.length);
    if (token.d === "accepted") return `committed: ${this.compared(token)}`;
    const refuted = token.d === "ar" && this.drafts.length > this.verified;
    const draft = refuted ? this.drafts[this.verified] : null;
    if (refuted) return `committed instead of the draft${draft ? ` ${visible(draft.l)}` : ""}`;
    return OUTCOMES[token.d] ?? "committed";
  }

  compared(token) {
    const nats = this.event.m === "e" ? " nats" : "";
    const sign = this.event.m === "e" ? "≤" : "≥";
    return `${short(token.c ?? token.p, 3)}${nats} ${this.passes(token) ? sign : this.event.m === "e" ? ">" : "<"} τ`;
  }

  waiting(token, place) {
    if (this.step.f) return "left out: the answer ends before it";
    const sure = this.passes(token);
    const reason = sure ? "sure enough, but one before it was not" : this.compared(token);
    return `${reason}; ${this.fate(place)}`;
  }

  /** What the next forward made of the candidate at this place. */
  fate(place) {
    if (this.event.v === undefined) return "predicted again by the next forward";
    const fed = this.next?.d ?? 0;
    if (place >= fed) return this.next ? "dropped" : "kept as a draft";
    const confirmed = this.next.c.filter(({ d }) => d === "verified").length;
    if (place < confirmed) return "kept as a draft, confirmed by the next forward";
    return place === confirmed ? "kept as a draft, refuted by the next forward" : "kept as a draft, in vain";
  }
}

class StepPanel {
  /** `choose` is told {place, id} when a visitor picks another token, or null. */
  constructor(host, choose) {
    this.host = host;
    this.choose = choose;
    this.title = host.appendChild(make("h2", "mars-step-title"));
    this.facts = host.appendChild(make("p", "mars-step-facts"));
    this.window = host.appendChild(make("div", "mars-window"));
    this.rows = host.appendChild(make("ol", "mars-predictions"));
    this.rows.setAttribute("aria-label", "What it predicted, in order");
  }

  draw(step, { title, facts, numPrompt, canBranch }) {
    this.title.textContent = title;
    this.facts.textContent = facts.join(" · ");
    this.drawWindow(step, numPrompt);
    const rows = step.predictions.map((_, place) => this.row(step, place, canBranch));
    this.rows.replaceChildren(...rows);
    this.rows.hidden = !rows.length;
  }

  // ---- the window ----

  drawWindow(step, numPrompt) {
    const pending = step.pending(numPrompt);
    const masks = Math.max(0, step.event.w - pending - step.drafts.length);
    const strip = make("p", "mars-strip");
    strip.append(...this.tail(step, pending), ...this.fed(step, pending), ...this.maskBoxes(masks));
    const counts = [
      [pending, "token"],
      [step.drafts.length, "draft"],
      [masks, "mask"],
    ].filter(([count]) => count);
    const words = counts.map(([count, name]) => `${count} ${name}${count === 1 ? "" : "s"}`).join(", ");
    const cached = step.step.k ? `; ${step.step.k} more from the cache` : "";
    const caption = make("p", "mars-caption", words ? `Fed: ${words}${cached}` : "Fed nothing");
    this.window.replaceChildren(caption, strip);
    this.window.hidden = step.event.w === 0;
  }

  tail(step, pending) {
    const cached = step.before.slice(0, Math.max(0, step.before.length - pending)).slice(-TAIL);
    const more = step.before.length - pending > cached.length ? "… " : "";
    return cached.length ? [make("span", "mars-tail", more + cached.map(({ l }) => flat(l)).join(""))] : [];
  }

  fed(step, pending) {
    const own = step.before.slice(Math.max(0, step.before.length - pending));
    const fromPrompt = pending - own.length;
    const prompt = fromPrompt > 0 ? [box("prompt", `prompt: ${fromPrompt} tokens`)] : [];
    const tokens = own.map(({ l }) => box("token", visible(l)));
    const drafts = step.drafts.map((draft, j) => {
      const kind = j < step.verified ? "draft mars-right" : "draft mars-wrong";
      const node = box(kind, draft ? visible(draft.l) : "?");
      node.title = j < step.verified ? "A draft: confirmed" : "A draft: not confirmed";
      return node;
    });
    return [...prompt, ...tokens, ...drafts];
  }

  maskBoxes(count) {
    const shown = Math.min(count, MOST_MASKS);
    const boxes = Array.from({ length: shown }, () => box("mask", "mask"));
    if (count > shown) boxes.push(make("span", "mars-more", `+ ${count - shown}`));
    return boxes;
  }

  // ---- the predictions ----

  row(step, place, canBranch) {
    const token = step.predictions[place];
    const committed = place < step.step.c.length;
    const row = make("li", `mars-prediction ${committed ? `mars-is-${token.d}` : "mars-is-candidate"}`);
    const head = row.appendChild(make("div", "mars-prediction-head"));
    head.append(make("code", "mars-what", visible(token.l) || "(nothing)"));
    head.append(make("span", "mars-outcome", step.outcome(place)));
    row.append(this.meter(step, token), this.best(token, place, canBranch));
    return row;
  }

  /** A bar of the confidence; τ stands in it where the prediction was compared with τ. */
  meter({ event }, token) {
    const entropy = event.m === "e";
    const value = token.c ?? token.p;
    const end = entropy ? Math.max(1, value, 1.5 * (event.t ?? 0)) : 1;
    const share = (figure) => `${clamp(figure / end, 0, 1) * 100}%`;
    const line = make("div", "mars-sure");
    const bar = line.appendChild(make("div", "mars-sure-bar"));
    bar.appendChild(make("i")).style.width = share(value);
    const compared = event.t !== null && ["accepted", "candidate"].includes(token.d);
    if (compared) {
      const mark = bar.appendChild(make("u"));
      mark.style.insetInlineStart = share(event.t);
      mark.title = `τ = ${short(event.t)}`;
    }
    const name = entropy ? " nats of entropy" : event.m === "m" ? " margin" : "";
    line.appendChild(make("span", "mars-sure-value", short(value, 3) + name));
    if (compared) line.appendChild(make("span", "mars-sure-tau", `τ ${short(event.t)}`));
    return line;
  }

  best(token, place, canBranch) {
    const list = make("ul", "mars-best");
    list.setAttribute("aria-label", "Most probable tokens here");
    const others = token.a ?? [];
    const named = others.some(([, , id]) => id === token.i) ? others : [[token.l, token.p, token.i], ...others];
    for (const [label, probability, id] of named) {
      const words = [visible(label) || "(nothing)", percent(probability)];
      const item = list.appendChild(make("li"));
      const node = item.appendChild(make(canBranch ? "button" : "span", "mars-option"));
      node.append(make("code", "", words[0]), make("span", "", words[1]));
      node.style.setProperty("--mars-p", `${clamp(probability, 0, 1) * 100}%`);
      if (canBranch) this.makePickable(node, { place, id, label, instead: token.l, same: id === token.i });
    }
    return list;
  }

  makePickable(button, choice) {
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    button.title = "Branch with this token";
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      for (const other of this.rows.querySelectorAll("[aria-pressed=true]")) other.setAttribute("aria-pressed", "false");
      button.setAttribute("aria-pressed", String(on));
      this.choose(on ? choice : null);
    });
  }
}

function percent(probability) {
  return probability > 0 && probability < 0.001 ? "< 0.1 %" : `${short(probability * 100, 1)} %`;
}

function box(kind, text) {
  return make("span", `mars-fed mars-fed-${kind}`, text);
}

/** A label inside running text: line ends and tabs take no room of their own. */
function flat(label) {
  return label.replace(/\r?\n/g, "↵").replace(/\t/g, "⇥");
}
