// How far a sweep is. The prompt under way is a visitor's text: it goes in as text, never as markup.

element.classList.add("explore-part");
installStyle(STYLE);
const host = element.querySelector(".mars-part");
host.classList.add("explore-progress");
host.hidden = true;

const bar = host.appendChild(make("div", "explore-bar"));
bar.setAttribute("role", "progressbar");
bar.setAttribute("aria-label", "Sweep");
const fill = bar.appendChild(make("div"));
const words = host.appendChild(make("p", "explore-words"));
const prompt = host.appendChild(make("p", "explore-prompt"));
// what screen readers are told: beginning and end, not every answer
const told = host.appendChild(make("p", "mars-sr"));
told.setAttribute("role", "status");
let state = null;

follow((batch) => {
  const message = batch.at(-1);
  host.hidden = !message;
  if (!message) return;
  const percent = Math.round(100 * message.share);
  bar.setAttribute("aria-valuenow", percent);
  bar.setAttribute("aria-valuetext", message.words);
  fill.style.width = `${percent}%`;
  words.textContent = message.words;
  prompt.textContent = message.prompt;
  if (message.state !== state) told.textContent = message.words;
  state = message.state;
  // the button that starts it may stand far below
  if (state === "running" && host.dataset.state !== state) host.scrollIntoView({ block: "nearest" });
  host.dataset.state = state;
  document.getElementById("explore")?.setAttribute("data-state", state);
});
