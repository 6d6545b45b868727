// The sweep's table, and clicks on settings: here, and on points of the charts of the tab.

element.classList.add("explore-part");
installStyle(STYLE);
const host = element.querySelector(".mars-part");
const EMPTY =
  "Here the settings of a sweep stand against each other, in a chart and in a table, while it runs. A click on one " +
  "sets its τ in Chat.";
const empty = host.appendChild(make("p", "explore-note explore-empty", EMPTY));
const scroll = host.appendChild(make("div", "explore-scroll"));
Object.assign(scroll, { tabIndex: 0, role: "region", ariaLabel: "Figures of each setting" });
const table = scroll.appendChild(make("table", "explore-table"));
const note = host.appendChild(make("p", "explore-note"));
const meanings = host.appendChild(make("details", "explore-meanings"));
const parts = [scroll, note, meanings];
const showTable = (shows) => {
  empty.hidden = shows;
  for (const part of parts) part.hidden = !shows;
};
showTable(false);

follow((batch) => {
  const message = batch.at(-1);
  const hasRows = Boolean(message?.rows.length);
  showTable(hasRows);
  if (!hasRows) return;
  const focused = table.contains(document.activeElement) ? document.activeElement.dataset.row : null;
  table.replaceChildren(head(message.columns), body(message.rows));
  if (focused) table.querySelector(`[data-row="${CSS.escape(focused)}"]`)?.focus();
  note.textContent = message.note;
  if (!meanings.children.length) explain(message.columns);
});

function head(columns) {
  const part = make("thead");
  const row = part.appendChild(make("tr"));
  for (const { name, meaning } of columns) {
    const cell = row.appendChild(make("th", "", name));
    cell.scope = "col";
    cell.title = meaning;
  }
  return part;
}

function body(rows) {
  const part = make("tbody");
  for (const { cells, choice } of rows) {
    const row = part.appendChild(make("tr"));
    const [name, ...figures] = cells;
    const first = row.appendChild(make("th", "", choice ? undefined : name));
    first.scope = "row";
    if (choice) first.append(setter(name, choice));
    row.append(...figures.map((text) => make("td", "", text)));
  }
  return part;
}

/** The setting's name, which sets it. */
function setter(name, choice) {
  const button = make("button", "", name);
  Object.assign(button, { type: "button", title: `Set ${name} in Chat` });
  button.dataset.row = name;
  button.addEventListener("click", () => trigger("select", choice));
  return button;
}

function explain(columns) {
  meanings.append(make("summary", "", "What the columns mean"));
  const list = meanings.appendChild(make("dl"));
  for (const { name, meaning } of columns) {
    if (meaning) list.append(make("dt", "", name), make("dd", "", meaning));
  }
}

// ---- the charts ----

/** Plotly makes a plot's element anew with each figure; each is listened to once. */
function listen() {
  for (const plot of document.querySelectorAll("#explore .js-plotly-plot")) {
    if (plot.dataset.chosen || !plot.on) continue;
    plot.dataset.chosen = "yes";
    plot.on("plotly_click", ({ points }) => {
      const data = points.find((point) => point.customdata)?.customdata;
      if (!data) return;
      const [threshold, metric, block_size, verify] = data;
      trigger("select", { threshold, metric, block_size, verify });
    });
  }
}
const root = document.getElementById("explore");
if (root) new MutationObserver(listen).observe(root, { childList: true, subtree: true });
listen();
