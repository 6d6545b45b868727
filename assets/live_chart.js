// The live chart: bars are tokens of each forward, the line is τ, on one x axis. A canvas, drawn once a
// frame at most.

const INK = {
  light: {
    ink: "#1d2430", soft: "#5a6474", grid: "#e6e9ef", tau: "#a3246b",
    bars: ["#b9c3d3", "#a9cdfb", "#84b7f5", "#5f9deb", "#3f83dc", "#2767bf"],
  },
  dark: {
    ink: "#eceff4", soft: "#a3adbd", grid: "#2a3240", tau: "#f08fc0",
    bars: ["#566176", "#2f5b97", "#3f74ba", "#5590da", "#75aef5", "#a5cbfa"],
  },
};
const MOST_BARS = 100;

class LiveChart {
  constructor(host) {
    host.classList.add("mars-chart");
    this.canvas = host.appendChild(make("canvas"));
    this.canvas.style.height = `${props.chart_height ?? 190}px`;
    this.canvas.setAttribute("role", "img");
    this.sequence = new Sequence({
      start: () => (this.forwards = []),
      event: (event) => event.n && this.forwards.push(event),
      gap: () => {},
    });
    this.forwards = [];
    this.describe();
    this.watchSurroundings(host);
  }

  /** Draw again at another size, pixel ratio or colour scheme. */
  watchSurroundings(host) {
    new ResizeObserver(() => this.draw()).observe(host);
    const theme = new MutationObserver(() => (host.isConnected ? this.draw() : theme.disconnect()));
    theme.observe(document.body, { attributes: true, attributeFilter: ["class"] });
  }

  apply(batch) {
    let done = null;
    for (const message of batch) {
      if (message === null) this.sequence.begin(null);
      else if (this.sequence.apply(message)) done = message.done;
    }
    if (done || !this.forwards.length) this.describe(done);
    this.draw();
  }

  /** For those who do not see it; at the end, not at every frame. */
  describe(done) {
    const name = "Tokens of each forward as bars, τ as a line.";
    const count = this.forwards.length;
    const total = this.forwards.reduce((sum, event) => sum + event.n, 0);
    const most = this.forwards.reduce((max, event) => Math.max(max, event.n), 0);
    const taus = this.forwards.map((event) => event.t).filter((t) => t !== null);
    const range = taus.length ? ` τ from ${short(Math.min(...taus))} to ${short(Math.max(...taus))}.` : "";
    const figures = ` ${total} tokens in ${count} forwards, at most ${most} at once.${range}`;
    this.canvas.setAttribute("aria-label", done ? name + figures : name);
  }

  draw() {
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = `12px ${getComputedStyle(this.canvas).fontFamily}`;
    context.textBaseline = "middle";
    const colours = document.body.classList.contains("dark") ? INK.dark : INK.light;
    drawChart(context, colours, frameOf(this.forwards, width, height));
  }
}

/** Where everything goes: the forwards shown and the scales. */
function frameOf(forwards, width, height) {
  const room = { left: 34, right: 44, top: 26, bottom: 34 };
  const inner = { width: width - room.left - room.right, height: height - room.top - room.bottom };
  const slots = Math.min(MOST_BARS, Math.max(24, Math.floor(inner.width / 6)));
  const shown = forwards.slice(-slots);
  const step = inner.width / slots;
  const most = Math.max(4, ...shown.map((event) => Math.max(event.b, event.n)));
  const tau = tauScale(shown);
  return {
    width, height, room, inner, shown, step, most, tau,
    x: (k) => room.left + k * step,
    y: (count) => room.top + inner.height * (1 - count / most),
    yTau: (value) => room.top + inner.height * (1 - (value - tau.low) / (tau.high - tau.low)),
  };
}

/** 0.5 to 1 where that holds every τ shown, else from 0; with the entropy metric nats from 0. */
function tauScale(shown) {
  const taus = shown.map((event) => event.t).filter((t) => t !== null);
  const entropy = shown.length > 0 && shown.at(-1).m === "e";
  if (!taus.length) return null;
  if (entropy) return { low: 0, high: Math.max(1, Math.ceil(Math.max(...taus) * 2) / 2), unit: "τ (nats)" };
  return { low: Math.min(...taus) < 0.5 ? 0 : 0.5, high: Math.max(1, ...taus), unit: "τ" };
}

function drawChart(context, colours, frame) {
  drawGrid(context, colours, frame);
  frame.shown.forEach((event, k) => drawBar(context, colours, frame, event, k));
  if (frame.tau) drawTau(context, colours, frame);
  drawTitles(context, colours, frame);
}

function drawGrid(context, colours, frame) {
  const { room, inner, most } = frame;
  const every = most <= 4 ? 1 : most <= 8 ? 2 : Math.ceil(most / 4);
  for (let count = 0; count <= most; count += every) {
    const y = Math.round(frame.y(count)) + 0.5;
    context.fillStyle = colours.grid;
    context.fillRect(room.left, y - 0.5, inner.width, 1);
    label(context, colours.soft, String(count), room.left - 7, y, "right");
  }
  if (!frame.tau) return;
  const { low, high } = frame.tau;
  for (const value of [low, (low + high) / 2, high]) {
    label(context, colours.tau, short(value), room.left + inner.width + 7, frame.yTau(value), "left");
  }
}

function drawBar(context, colours, frame, event, k) {
  const gap = frame.step > 5 ? 1.5 : 0.75;
  const top = frame.y(event.n);
  context.fillStyle = colours.bars[levelOf(event.n)];
  context.beginPath();
  const bottom = frame.room.top + frame.inner.height;
  context.roundRect(frame.x(k) + gap / 2, top, Math.max(1, frame.step - gap), bottom - top, [2, 2, 0, 0]);
  context.fill();
}

/** A stepped line, broken where the mode knew no τ; the newest value stands at its end. */
function drawTau(context, colours, frame) {
  context.strokeStyle = colours.tau;
  context.lineWidth = 2;
  context.lineJoin = "round";
  context.beginPath();
  let drawing = false;
  frame.shown.forEach((event, k) => {
    if (event.t === null) return (drawing = false);
    const y = frame.yTau(event.t);
    if (drawing) context.lineTo(frame.x(k), y);
    else context.moveTo(frame.x(k), y);
    context.lineTo(frame.x(k + 1), y);
    drawing = true;
  });
  context.stroke();
  const last = frame.shown.at(-1);
  if (last.t === null) return;
  context.fillStyle = colours.tau;
  context.beginPath();
  context.arc(frame.x(frame.shown.length), frame.yTau(last.t), 3.5, 0, 7);
  context.fill();
}

function drawTitles(context, colours, frame) {
  const { room, inner, width, height, shown } = frame;
  label(context, colours.soft, "tokens per forward", 4, 9, "left");
  if (frame.tau) label(context, colours.tau, frame.tau.unit, width - 4, 9, "right");
  const foot = room.top + inner.height + 12;
  const axis = shown[0]?.i ? `forward, the newest ${shown.length}` : "forward";
  label(context, colours.soft, axis, room.left + inner.width / 2, foot + 12, "center");
  if (!shown.length) return;
  label(context, colours.soft, String(shown[0].i + 1), room.left, foot, "left");
  if (shown.length > 4) {
    label(context, colours.soft, String(shown.at(-1).i + 1), frame.x(shown.length), foot, "right");
  }
}

function label(context, colour, text, x, y, align) {
  context.fillStyle = colour;
  context.textAlign = align;
  context.fillText(text, x, y);
}

installStyle(STYLE);
const chart = new LiveChart(element.querySelector(".mars-part"));
follow((batch) => chart.apply(batch));
