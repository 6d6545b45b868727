// Shared by the token view, the live chart and the figures. All of it runs inside one function that
// Gradio calls with (element, trigger, props, server, upload, watch).

/** An element with a class and, as text and never as markup, its content. */
function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

/** Put the style sheet into the page once, however many views it has. */
function installStyle({ name, text }) {
  const id = `mars-style-${name.replace(/\W/g, "-")}`;
  if (document.getElementById(id)) return;
  const style = make("style", "", text);
  style.id = id;
  document.head.appendChild(style);
}

/** Hand every message of the value to `apply` in order, all that came since the last time at once.
 *
 * Once a frame, and where drawing takes long not before as much time again has passed: half of the time is
 * then left for the reader's hand, however long the text or slow the machine. The parts of one component that
 * follow its value draw in the same frame, in the order they asked: none shows a state that another does not. */
const followers = [];
function follow(apply) {
  followers.push(apply);
  if (followers.length > 1) return;
  let queue = [];
  let waiting = false;
  const flush = () => {
    const batch = queue;
    queue = [];
    element.removeAttribute("data-behind");
    const began = performance.now();
    try {
      for (const apply of followers) apply(batch);
    } finally {
      // the task after this frame knows what the frame took, layout and paint included
      setTimeout(() => setTimeout(rest, performance.now() - began));
    }
  };
  const rest = () => {
    waiting = false;
    if (queue.length) request();
  };
  const request = () => {
    waiting = true;
    requestAnimationFrame(flush);
  };
  const take = () => {
    queue.push(props.value ? JSON.parse(props.value) : null);
    element.setAttribute("data-behind", ""); // something came that is not drawn yet
    if (!waiting) request();
  };
  watch("value", take);
  take();
}

/** The event numbers of a run in order, each once. Tells the callbacks what is to be drawn. */
class Sequence {
  constructor({ start, event, gap }) {
    Object.assign(this, { start, event, gap, run: null, seq: -1, next: 0, broken: false });
  }

  /** True where the message brought something. */
  apply(message) {
    if (message.run === this.run && message.seq <= this.seq) return false;
    if (message.run !== this.run || (message.reset && this.broken)) this.begin(message.run);
    this.seq = message.seq;
    message.events.forEach((event, k) => this.add(event, message.from + k));
    return true;
  }

  begin(run) {
    Object.assign(this, { run, next: 0, broken: false });
    this.start();
  }

  add(event, number) {
    if (number < this.next) return;
    if (number > this.next) {
      this.broken = true;
      this.gap();
    }
    this.next = number + 1;
    this.event(event);
  }
}

/** How many tokens came at once -> one of six shades; 0 is plain. */
function levelOf(count) {
  if (count < 2) return 0;
  if (count < 5) return count - 1;
  return count < 9 ? 4 : 5;
}

const LEVEL_NAMES = ["1", "2", "3", "4", "5–8", "9+"];
const METRIC_NAMES = { p: "probability", m: "margin", e: "entropy" };

/** A number short enough to read: 0.90, 0.974, 12.3. */
function short(value, digits = 2) {
  return Number(value).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** White space made visible, for labels (never for the answer itself). */
function visible(text) {
  if (/^⟨[0-9A-F ]+⟩$/.test(text)) return text; // bytes of a part of a character
  return text.replace(/ /g, "␣").replace(/\r/g, "␍").replace(/\n/g, "↵").replace(/\t/g, "⇥");
}

const prefersLessMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
