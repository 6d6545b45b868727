// A recorded run, forward by forward: the token view grown or cut to a forward, and the panel of what that
// forward did. All of the run is here: nothing is asked of the server while one scrubs.

const PACES = [["×¼", 0.25], ["×½", 0.5], ["×1", 1], ["×2", 2], ["×4", 4]];
const LONGEST_FRAME_MS = 250; // a page that was hidden does not catch up at once

class Replay {
  constructor(part, tokenView) {
    this.view = tokenView;
    this.root = make("section", "mars-replay");
    this.root.setAttribute("aria-label", "Recorded run");
    part.replaceWith(this.root);
    this.buildHead();
    this.buildControls();
    const body = this.root.appendChild(make("div", "mars-replay-body"));
    body.append(part);
    const side = body.appendChild(make("div", "mars-step"));
    this.panel = new StepPanel(side.appendChild(make("div", "mars-step-panel")), (choice) => this.choose(choice));
    this.buildBranch(side);
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.view.onPage("keydown", (event) => this.keyOfPage(event));
    // plays by itself once it is looked at
    this.seen = new IntersectionObserver((entries) => {
      if (entries.some(({ isIntersecting }) => isIntersecting) && this.isNew) this.begin();
    });
    this.seen.observe(this.root);
    this.clear();
  }

  // ---- parts ----

  buildHead() {
    const head = this.root.appendChild(make("div", "mars-recorded"));
    head.append(make("b", "mars-badge", "Recorded"));
    this.where = head.appendChild(make("span", "mars-where"));
    this.question = this.root.appendChild(make("p", "mars-asked"));
    this.question.dir = "auto";
  }

  buildControls() {
    const bar = (this.controls = this.root.appendChild(make("div", "mars-controls")));
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", "Go through the forwards");
    const button = (text, name, action) => {
      const node = bar.appendChild(make("button", "mars-go", text));
      node.type = "button";
      node.title = name;
      node.setAttribute("aria-label", name);
      node.addEventListener("click", action);
      return node;
    };
    button("«", "First forward (Home)", () => this.go(0));
    button("‹", "One forward back (←)", () => this.go(this.at - 1));
    this.playButton = button("Play", "Play (space)", () => this.toggle());
    this.playButton.classList.add("mars-play");
    button("›", "One forward on (→)", () => this.go(this.at + 1));
    button("»", "Last forward (End)", () => this.go(this.steps.length - 1));
    this.slider = bar.appendChild(make("input", "mars-scrub"));
    Object.assign(this.slider, { type: "range", min: 0, step: 1 });
    this.slider.setAttribute("aria-label", "Forward");
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    this.place = bar.appendChild(make("output", "mars-place"));
    const pace = bar.appendChild(make("label", "mars-pace", "Pace "));
    this.pace = pace.appendChild(make("select"));
    pace.title = "×1 is the pace of the recording";
    const keys = bar.appendChild(make("span", "mars-step-keys"));
    keys.append(make("kbd", "", "←"), " ", make("kbd", "", "→"), " step");
    for (const [name, factor] of PACES) this.pace.appendChild(make("option", "", name)).value = factor;
    this.pace.value = 1;
  }

  buildBranch(side) {
    this.branch = side.appendChild(make("div", "mars-branch"));
    this.branchWords = this.branch.appendChild(make("p", "mars-branch-words"));
    this.branchButton = this.branch.appendChild(make("button", "mars-go mars-branch-go", "Continue from here"));
    this.branchButton.type = "button";
    this.branchButton.addEventListener("click", () => {
      this.pause();
      trigger("branch", { step: this.at, place: this.choice?.place ?? 0, id: this.choice?.id ?? null });
    });
  }

  // ---- a run ----

  clear() {
    this.pause();
    Object.assign(this, { message: null, steps: [], at: 0, drawn: -1, choice: null, isNew: false });
    this.root.dataset.state = "empty";
  }

  load(message) {
    this.clear();
    if (!message) return this.view.apply([null]);
    const { about, steps, events } = message;
    Object.assign(this, { message, steps, isNew: true, drawing: 0, seq: 0, totals: totalsOf(steps, events) });
    this.where.textContent = [about.when, about.where, about.how].filter(Boolean).join(" · ");
    this.question.textContent = about.question;
    this.question.hidden = !about.question;
    this.slider.max = Math.max(0, steps.length - 1);
    this.root.dataset.state = steps.length ? "shown" : "empty";
    if (!steps.length) return this.view.apply([message]);
    this.show(steps.length - 1);
    if (inView(this.root)) this.begin();
  }

  /** Play from the start; where motion is not wanted, the whole answer stands there and waits. */
  begin() {
    this.isNew = false;
    if (prefersLessMotion() || this.steps.length < 2) return;
    this.show(0);
    this.play();
  }

  /** Where a visitor goes: playing ends. */
  go(k) {
    this.pause();
    this.isNew = false;
    this.show(k);
  }

  show(k) {
    if (!this.steps.length) return;
    this.at = clamp(k, 0, this.steps.length - 1);
    this.choose(null);
    this.drawAnswer();
    this.drawStep();
  }

  drawAnswer() {
    const { message, at } = this;
    if (at === this.drawn) return;
    const again = at < this.drawn || this.drawn < 0;
    if (again) this.drawing += 1;
    const last = at === this.steps.length - 1;
    const from = again ? 0 : this.drawn + 1;
    this.view.apply([{
      run: `${message.run}/${this.drawing}`,
      seq: ++this.seq,
      reset: again,
      from,
      events: message.events.slice(from, at + 1),
      ghosts: last ? [] : this.steps[at].g ?? [],
      waiting: this.steps[at].u ?? [],
      figures: { most_tokens: message.events[at].b, num_forwards: this.totals[at].forwards },
      done: last ? message.done : null,
    }]);
    this.drawn = at;
  }

  drawStep() {
    const { message: { events, about }, at, steps, totals } = this;
    const before = totals[at].before;
    const step = new Step(steps, events, at, this.tokens().slice(0, before));
    const words = `Forward ${events[at].i + 1} of ${events.at(-1).i + 1}`;
    const count = steps[at].c.length;
    this.slider.value = at;
    this.place.textContent = `${at + 1} / ${steps.length}`;
    this.slider.setAttribute("aria-valuetext", `${words}, ${count} token${count === 1 ? "" : "s"}`);
    this.panel.draw(step, {
      title: titleOf(step, words, about.num_prompt),
      facts: factsOf(events[at], totals[at], count),
      numPrompt: about.num_prompt,
      canBranch: about.can_branch,
    });
  }

  /** All tokens of the run, in order; made once. */
  tokens() {
    return (this.message.tokens ??= this.steps.flatMap(({ c }) => c));
  }

  // ---- branching ----

  choose(choice) {
    this.choice = choice;
    const about = this.message?.about;
    if (!about) return;
    this.branch.hidden = !about.branching && !about.can_branch;
    this.branchButton.hidden = !about.can_branch;
    this.branchWords.textContent = this.branchSentence(about);
    this.branch.classList.toggle("mars-chosen", Boolean(choice));
    if (choice) this.branch.scrollIntoView({ block: "nearest", behavior: prefersLessMotion() ? "auto" : "smooth" });
  }

  branchSentence({ branching, can_branch }) {
    const { choice } = this;
    if (!can_branch) return branching;
    if (!choice) {
      return `Branch: pick another token above, or go on from this forward with another τ. ${branching}`.trim();
    }
    const here = `${visible(choice.label)} at token ${this.totals[this.at].before + choice.place + 1}`;
    return choice.same ? `Branch behind ${here}.` : `Branch with ${here}, in place of ${visible(choice.instead)}.`;
  }

  // ---- playing ----

  get playing() {
    return this.timer !== undefined;
  }

  toggle() {
    if (this.playing) return this.pause();
    this.isNew = false;
    if (this.at === this.steps.length - 1) this.show(0);
    this.play();
  }

  play() {
    if (this.playing || !this.steps.length) return;
    this.playButton.textContent = "Pause";
    this.playButton.setAttribute("aria-label", "Pause (space)");
    let last = performance.now();
    let owed = 0;
    const frame = (now) => {
      if (!this.root.isConnected) return this.pause();
      owed += Math.min(now - last, LONGEST_FRAME_MS) * Number(this.pace.value);
      last = now;
      let k = this.at;
      while (k < this.steps.length - 1 && owed >= this.message.events[k + 1].ms) {
        owed -= this.message.events[(k += 1)].ms;
      }
      if (k !== this.at) this.show(k);
      if (k === this.steps.length - 1) return this.pause();
      this.timer = requestAnimationFrame(frame);
    };
    this.timer = requestAnimationFrame(frame);
  }

  pause() {
    cancelAnimationFrame(this.timer);
    this.timer = undefined;
    this.playButton.textContent = "Play";
    this.playButton.setAttribute("aria-label", "Play (space)");
  }

  /** Arrow keys step from where a run was chosen, too, and where nothing has the focus. */
  keyOfPage(event) {
    const { target } = event;
    const elsewhere = target !== document.body && !target.closest("#replay-chooser");
    if (elsewhere || !this.root.offsetParent || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    this.key(event);
  }

  key(event) {
    const { target, key } = event;
    if (event.altKey || event.ctrlKey || event.metaKey || !this.steps.length || event.defaultPrevented) return;
    const action = {
      ArrowLeft: () => this.go(this.at - 1),
      ArrowRight: () => this.go(this.at + 1),
      Home: () => this.go(0),
      End: () => this.go(this.steps.length - 1),
      " ": () => this.toggle(),
    }[key];
    if (!action || target.matches("select") || (key === " " && target.matches("button"))) return;
    action();
    event.preventDefault();
  }
}

/** For each step: tokens before it, and the counts and seconds up to and with it. */
function totalsOf(steps, events) {
  let tokens = 0, forwards = 0, elapsed = 0;
  return steps.map(({ c }, k) => {
    const before = tokens;
    tokens += c.length;
    forwards += c.length ? 1 : 0;
    elapsed += events[k].ms / 1000;
    return { before, tokens, forwards, elapsed };
  });
}

function titleOf(step, words, numPrompt) {
  const count = step.step.c.length;
  if (step.reading(numPrompt)) return `${words}: reading the prompt`;
  if (!count) return "The run ends here";
  return `${words}: ${count} token${count === 1 ? "" : "s"}`;
}

function factsOf(event, totals, count) {
  const facts = [];
  if (event.w) facts.push(`window of ${event.w} position${event.w === 1 ? "" : "s"}`, `${short(event.ms, 1)} ms`);
  facts.push(`${totals.tokens} token${totals.tokens === 1 ? "" : "s"} so far`);
  if (totals.forwards) facts.push(`${short(totals.tokens / totals.forwards)} tok/fwd`);
  facts.push(`${short(totals.elapsed)} s`);
  if (event.t !== null && count) facts.push(`τ = ${short(event.t)}${event.m === "e" ? " nats" : ""}`);
  return facts;
}

function inView(node) {
  const { top, bottom, width } = node.getBoundingClientRect();
  return width > 0 && bottom > 0 && top < innerHeight;
}

const replay = new Replay(element.querySelector(".mars-part"), view);
follow((batch) => replay.load(batch.at(-1)));
