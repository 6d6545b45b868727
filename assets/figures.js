// The live figures: each a number, its unit and what it is.

const FIGURES = [
  ["tokens_per_forward", "tok/fwd", "per forward", 2,
    "Committed tokens divided by forward passes. The end-of-sequence token counts; the prompt counts as one forward."],
  ["tokens_per_s", "tok/s", "decode speed", 1,
    "Tokens per second of compute after the prompt was read. Reading the prompt and the network are not in it."],
  ["num_tokens", "", "tokens", 0, "Tokens committed, the end-of-sequence token included."],
  ["num_forwards", "", "forwards", 0, "Forward passes that committed tokens."],
  ["time_to_first_token_s", "s", "to first token", 2, "From the request to its first committed token."],
  ["speedup", "×", "speed-up", 2,
    "Decode speed over that of one token a forward: the latest such forwards of this model on this device, whoever asked for them. Turn τ to its exact end to measure some."],
];

class Figures {
  constructor(host) {
    host.classList.add("mars-figures");
    this.list = host.appendChild(make("dl", "mars-tiles"));
    this.values = new Map(FIGURES.map((figure) => [figure[0], this.addTile(...figure)]));
    this.progress = host.appendChild(make("p", "mars-progress"));
    this.note = host.appendChild(make("div", "mars-note"));
    this.showNote(props.note ?? "");
    this.run = null;
    this.seq = -1;
  }

  addTile(key, unit, name, digits, meaning) {
    const tile = this.list.appendChild(make("div", `mars-tile mars-tile-${key}`));
    tile.title = meaning;
    tile.appendChild(make("dt", "", name));
    const value = tile.appendChild(make("dd"));
    const number = value.appendChild(make("b", "", "–"));
    if (unit) value.appendChild(make("span", "mars-unit", unit));
    value.appendChild(make("span", "mars-sr", `. ${meaning}`));
    tile.hidden = key === "speedup";
    return { tile, number, digits };
  }

  apply(batch) {
    const message = batch.at(-1);
    if (message && message.run === this.run && message.seq <= this.seq) return;
    this.run = message?.run ?? null;
    this.seq = message?.seq ?? -1;
    const figures = message?.figures ?? {};
    for (const [key, { tile, number, digits }] of this.values) {
      const value = isMeasured(key, figures) ? figures[key] : null;
      number.textContent = value === null ? "–" : short(value, digits);
      tile.classList.toggle("mars-unknown", value === null);
      if (key === "speedup") tile.hidden = value === null;
    }
    this.progress.textContent = progressWords(figures, message?.done);
    this.showNote(figures.note || props.note || "");
  }

  /** Its first line, and the others behind it. What is open stays open. */
  showNote(note) {
    if (this.noteShown === note) return;
    this.noteShown = note;
    const [line, ...more] = note.split("\n");
    if (!more.length) return (this.note.textContent = line);
    const details = make("details", "");
    details.append(make("summary", "", line), ...more.map((text) => make("p", "", text)));
    this.note.replaceChildren(details);
  }
}

/** False for what is still zero because nothing was measured: a dash says so, a 0 would lie. */
function isMeasured(key, figures) {
  if (figures[key] === undefined || figures[key] === null) return false;
  return figures[key] !== 0 || key === "num_tokens" || key === "num_forwards";
}

function progressWords(figures, done) {
  if (figures.num_prompt_tokens === undefined) return "";
  const prompt = `${short(figures.num_prompt_tokens, 0)} prompt tokens`;
  if (figures.num_forwards === 0 && !done) {
    return `Reading the prompt: ${short(figures.num_prefilled, 0)} of ${prompt}`;
  }
  return [`${prompt} read in ${short(figures.prefill_s, 2)} s`, inForce(figures)].filter(Boolean).join(" · ");
}

function inForce(figures) {
  if (!figures.block_size) return "";
  if (figures.threshold === null) return "one token a forward";
  const unit = figures.metric === "entropy" ? " nats" : "";
  const verify = figures.most_tokens > figures.block_size ? " · verified" : "";
  return `τ = ${short(figures.threshold)}${unit} (${figures.metric}) · B = ${figures.block_size}${verify}`;
}

installStyle(STYLE);
const panel = new Figures(element.querySelector(".mars-part"));
follow((batch) => panel.apply(batch));
