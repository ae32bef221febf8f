"use strict";
// Draws the figures (JSON in #figures). Colours in them are names of CSS variables, so that the style sheet
// alone knows the themes; a change of theme, view or graphs shown draws the plots anew from the same JSON.

const root = document.documentElement;
const { first, plots: figures } = JSON.parse(document.getElementById("figures").textContent);
let setting = first; // of those that the page can show: a task, a number of workers, a learning-rate rule
const chosen = {}; // for each plot, which of its choices
const hidden = new Set();

const axis = {
  gridcolor: "--grid", linecolor: "--rule", zerolinecolor: "--grid", tickcolor: "--rule",
  ticks: "outside", ticklen: 4, automargin: true, title: { standoff: 10, font: { size: 12 } },
};
const house = {
  font: { family: "--sans", size: 12, color: "--muted" },
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
  margin: { l: 52, r: 12, t: 14, b: 46 },
  showlegend: false,
  modebar: { bgcolor: "rgba(0,0,0,0)", color: "--muted", activecolor: "--ink" },
  xaxis: { ...axis, showgrid: false, spikethickness: 1, spikedash: "solid", spikecolor: "--muted" },
  yaxis: axis,
  hoverlabel: { bgcolor: "--raised", bordercolor: "--rule", font: { family: "--sans", size: 12, color: "--ink" }, namelength: -1 },
};
const config = {
  displaylogo: false, responsive: true, doubleClick: "autosize",
  modeBarButtons: [["toImage", "resetScale2d"]],
};

const nothing = {
  height: 120, xaxis: { visible: false }, yaxis: { visible: false },
  annotations: [{ text: "nothing to show", xref: "paper", yref: "paper", x: 0.5, y: 0.5, showarrow: false }],
};

function resolved(value, style) {
  if (typeof value === "string") return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
  if (Array.isArray(value)) return value.map((item) => resolved(item, style));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolved(item, style)]));
}

// ---- What is shown

function panelOf(name) {
  const place = figures[name].of[setting];
  return place === null ? null : figures[name].panels[place];
}

function placeOf(name, picks) { // of a view among all combinations of choices, the last choice fastest
  return figures[name].choices.reduce((place, names, axis) => place * names.length + (picks[axis] ?? 0), 0);
}

function combinations(name) {
  return figures[name].choices.reduce((made, names) => made.flatMap((picks) => names.map((_, i) => [...picks, i])), [[]]);
}

// The choices made, or the nearest to them that this setting has: a graph may have been trained elsewhere only.
function picksOf(name) {
  const panel = panelOf(name), wanted = chosen[name] ?? [];
  if (panel.views[placeOf(name, wanted)]) return wanted;
  const alike = (picks) => picks.filter((pick, axis) => pick === (wanted[axis] ?? 0)).length;
  const there = combinations(name).filter((picks) => panel.views[placeOf(name, picks)]);
  return there.sort((a, b) => alike(b) - alike(a))[0] ?? [];
}

function viewOf(name) {
  const panel = panelOf(name), view = panel?.views[placeOf(name, picksOf(name))];
  if (!view) return { data: [], layout: { ...nothing } };
  return { data: view.data.map((trace) => ({ ...panel.trace, ...trace })), layout: { ...panel.layout, ...view.layout } };
}

// Heat maps come as thousandths of powers of ten, two bytes each.
function unpacked(trace) {
  if (!trace.packed) return trace;
  const bytes = new DataView(Uint8Array.from(atob(trace.packed), (letter) => letter.charCodeAt(0)).buffer);
  const width = trace.x.length;
  const cell = (row, column) => bytes.getInt16(2 * (row * width + column), true);
  const table = (of) => trace.y.map((_, row) => trace.x.map((_, column) => of(cell(row, column))));
  const blank = -32768;
  return {
    ...trace, packed: undefined,
    z: table((value) => (value === blank ? null : value / 1000)),
    customdata: table((value) => (value === blank ? null : 10 ** (value / 1000))),
  };
}

function draw(name) {
  const { data, layout } = viewOf(name);
  const style = getComputedStyle(root);
  const traces = resolved(data, style).map((trace) => ({ ...unpacked(trace), visible: !hidden.has(trace.legendgroup) }));
  const full = resolved({ ...layout, template: { layout: house } }, style);
  full.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom"; // a finger scrolls the page
  Plotly.react(name, traces, full, config);
}

// What is in sight is drawn first, and the page answers between the plots.
let waiting = [];
function drawAll() {
  const wasWaiting = waiting.length > 0;
  waiting = [];
  for (const name of Object.keys(figures)) {
    const place = document.getElementById(name), frame = place.closest(".frame");
    if (frame) frame.hidden = panelOf(name) === null;
    place.style.minHeight = `${viewOf(name).layout.height}px`; // so that nothing moves when it is drawn
    if (!frame?.hidden) waiting.push(name);
  }
  const away = (name) => {
    const { top, bottom } = document.getElementById(name).getBoundingClientRect();
    return Math.max(top - innerHeight, -bottom, 0);
  };
  const distance = new Map(waiting.map((name) => [name, away(name)]));
  waiting.sort((a, b) => distance.get(a) - distance.get(b));
  for (const legend of document.querySelectorAll(".legend")) showKeys(legend);
  if (!wasWaiting) drawSome();
}

function drawSome(until = performance.now() + 80) {
  while (waiting.length && performance.now() < until) draw(waiting.shift());
  if (waiting.length) setTimeout(drawSome);
}

// A legend names what its plots show, and nothing else.
function showKeys(legend) {
  const shown = new Set(legend.dataset.plots.split(" ").flatMap((name) => viewOf(name).data.map((trace) => trace.legendgroup)));
  for (const key of legend.children) key.hidden = !shown.has(key.dataset.graph);
}

// ---- Controls

// What a switch says is what is shown; what this setting lacks cannot be chosen.
function refresh(control) {
  const [name] = control.dataset.plots.split(" "), axis = Number(control.dataset.axis), panel = panelOf(name);
  if (!panel) return;
  const picks = picksOf(name);
  for (const option of control.children) {
    const value = Number(option.value);
    option.disabled = !combinations(name).some((other) => other[axis] === value && panel.views[placeOf(name, other)]);
    if (option.tagName === "BUTTON") option.setAttribute("aria-pressed", value === (picks[axis] ?? 0));
  }
  if (control.tagName === "SELECT") control.value = picks[axis] ?? 0;
}

const switches = document.querySelectorAll(".switch[data-plots]");
for (const control of switches) {
  const choose = (value) => {
    const names = control.dataset.plots.split(" ");
    for (const name of names) {
      chosen[name] = [...(panelOf(name) ? picksOf(name) : chosen[name] ?? [])];
      chosen[name][Number(control.dataset.axis)] = Number(value);
      if (panelOf(name)) draw(name);
    }
    refresh(control);
    for (const legend of document.querySelectorAll(".legend")) {
      if (legend.dataset.plots.split(" ").some((name) => names.includes(name))) showKeys(legend);
    }
  };
  control.addEventListener("change", () => choose(control.value));
  control.addEventListener("click", ({ target }) => {
    if (target.tagName === "BUTTON" && !target.disabled) choose(target.value);
  });
}

// The setting: all texts and plots follow
function show(place) {
  setting = place;
  for (const text of document.querySelectorAll("[data-settings]")) {
    text.hidden = !text.dataset.settings.split(" ").includes(String(setting));
  }
  showRows();
  switches.forEach(refresh);
  drawAll();
}

const rows = document.getElementById("rows");
function showRows() {
  const all = !rows || rows.querySelector("[value=all]").getAttribute("aria-pressed") === "true";
  for (const body of document.querySelectorAll("tbody[data-setting]")) {
    const isChosen = Number(body.dataset.setting) === setting;
    body.hidden = !all && !isChosen;
    body.classList.toggle("chosen", Boolean(rows) && all && isChosen);
    body.parentElement.classList.toggle("one", !all); // what tells settings apart is said above the table
  }
}
rows?.addEventListener("click", ({ target }) => {
  if (target.tagName !== "BUTTON") return;
  for (const button of rows.children) button.setAttribute("aria-pressed", button === target);
  showRows();
});
document.getElementById("setting")?.addEventListener("change", ({ target }) => show(Number(target.value)));

// The head of a column sorts the rows of every setting: best first, then worst first, then as they were given.
// A diverged seed stays under its row. Heads that sort are those of the last columns.
const given = [...document.querySelectorAll("tbody[data-setting]")].map((body) => {
  const blocks = [];
  for (const row of body.rows) {
    if (row.matches(".diverged")) blocks.at(-1).push(row);
    else blocks.push([row]);
  }
  return { body, blocks };
});
function sortRows(column, order) {
  const sign = order === "ascending" ? 1 : -1;
  const number = ([row]) => Number([...row.cells].at(column).dataset.value ?? sign * Infinity); // without one: last
  for (const { body, blocks } of given) {
    const sorted = [...blocks].sort((a, b) => sign * (number(a) - number(b)));
    body.append(...(order === "none" ? blocks : sorted).flat());
  }
}

const heads = document.querySelectorAll("th[data-best]");
heads.forEach((head, place) => {
  const orders = head.dataset.best === "descending" ? ["descending", "ascending", "none"] : ["ascending", "descending", "none"];
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  head.setAttribute("aria-sort", "none");
  button.addEventListener("click", () => {
    const order = orders[(orders.indexOf(head.getAttribute("aria-sort")) + 1) % orders.length];
    for (const other of heads) other.setAttribute("aria-sort", other === head ? order : "none");
    sortRows(place - heads.length, order);
  });
});

// Graphs shown: every legend speaks for all plots
for (const legend of document.querySelectorAll(".legend")) {
  legend.addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (!button) return;
    const graph = button.dataset.graph;
    if (!hidden.delete(graph)) hidden.add(graph);
    for (const twin of document.querySelectorAll(".legend button")) {
      twin.setAttribute("aria-pressed", !hidden.has(twin.dataset.graph));
    }
    drawAll();
  });
}

// Light and dark: the button is remembered; until it is used, the system decides
function setTheme(theme) {
  root.dataset.theme = theme;
  drawAll();
}

document.getElementById("theme").addEventListener("click", () => {
  setTheme(root.dataset.theme === "dark" ? "light" : "dark");
  try { localStorage.setItem("gossamer-theme", root.dataset.theme); } catch { /* storage may be forbidden */ }
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ({ matches }) => setTheme(matches ? "dark" : "light"));

// Paper is white
let beforePrint;
addEventListener("beforeprint", () => { beforePrint = root.dataset.theme; setTheme("light"); drawSome(Infinity); });
addEventListener("afterprint", () => setTheme(beforePrint));

// What is wider than its place says so, until it has been scrolled to its end
for (const box of document.querySelectorAll(".scroll")) {
  const say = () => {
    box.toggleAttribute("data-wide", box.scrollWidth - box.clientWidth > 2);
    box.toggleAttribute("data-more", box.scrollWidth - box.clientWidth - box.scrollLeft > 2);
  };
  box.addEventListener("scroll", say, { passive: true });
  new ResizeObserver(say).observe(box);
  for (const inside of box.children) new ResizeObserver(say).observe(inside);
}

show(first);
