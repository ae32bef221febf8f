"use strict";
// Draws the figures (JSON in #figures). Colours in them are names of CSS variables, so that the style sheet
// alone knows the themes; a change of theme, view or graphs shown draws the plots anew from the same JSON.

const root = document.documentElement;
const figures = JSON.parse(document.getElementById("figures").textContent);
const viewOf = {};
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

function resolved(value, style) {
  if (typeof value === "string") return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
  if (Array.isArray(value)) return value.map((item) => resolved(item, style));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolved(item, style)]));
}

function draw(name) {
  const view = figures[name].views[viewOf[name] ?? 0];
  const style = getComputedStyle(root);
  const data = resolved(view.data, style).map((trace) => ({ ...trace, visible: !hidden.has(trace.legendgroup) }));
  const layout = resolved({ ...view.layout, template: { layout: house } }, style);
  layout.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom"; // a finger scrolls the page
  Plotly.react(name, data, layout, config);
}

function drawAll() {
  Object.keys(figures).forEach(draw);
}

// One of several views
for (const control of document.querySelectorAll(".switch")) {
  const choose = (value) => {
    for (const name of control.dataset.plots.split(" ")) {
      viewOf[name] = Number(value);
      draw(name);
    }
  };
  control.addEventListener("change", () => choose(control.value));
  control.addEventListener("click", ({ target }) => {
    if (target.tagName !== "BUTTON") return;
    for (const button of control.children) button.setAttribute("aria-pressed", button === target);
    choose(target.value);
  });
}

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
addEventListener("beforeprint", () => { beforePrint = root.dataset.theme; setTheme("light"); });
addEventListener("afterprint", () => setTheme(beforePrint));

drawAll();
