"use strict";
// The switch between light and dark; charts that are given as definitions; power curves of runs.

const root = document.documentElement;
const button = document.getElementById("theme");
const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
let theme = null;
try { theme = localStorage.getItem("wattloop-theme"); } catch (error) { theme = null; }
function show(name) {
  root.dataset.theme = name;
  button.setAttribute("aria-pressed", String(name === "dark"));
}
show(theme || (dark ? "dark" : "light"));
button.addEventListener("click", () => {
  const name = root.dataset.theme === "dark" ? "light" : "dark";
  show(name);
  try { localStorage.setItem("wattloop-theme", name); } catch (error) { /* not kept then */ }
});

const embed = { actions: { export: true, source: false, compiled: false, editor: false },
  renderer: "svg", ast: true };

// To a screen reader a chart is one picture with its meaning, not two thousand nameless points.
async function drawn(place, spec) {
  const words = place.getAttribute("aria-label");
  const result = await vegaEmbed(place, spec, embed);
  const picture = place.querySelector("svg.marks");
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", words);
  for (const part of picture.children) { part.setAttribute("aria-hidden", "true"); }
  for (const menu of place.querySelectorAll("summary")) {
    menu.setAttribute("aria-label", `Save this chart: ${words}`);
  }
  return result;
}

const written = (name) => JSON.parse(document.getElementById(name).textContent);

// Rows of data are in the page once, with the names of their columns once.
function definition(name) {
  const spec = written(name);
  for (const key in spec.datasets) {
    const { columns, rows } = written(key);
    spec.datasets[key] =
      rows.map((row) => Object.fromEntries(columns.map((column, n) => [column, row[n]])));
  }
  return spec;
}

// One after the other: what is drawn already can be looked at and used meanwhile.
(async () => {
  for (const place of document.querySelectorAll("[data-chart]")) {
    await drawn(place, definition(place.dataset.chart));
    await new Promise((resolve) => { setTimeout(resolve); });
  }
})();
