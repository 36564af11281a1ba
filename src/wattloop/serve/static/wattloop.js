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

for (const place of document.querySelectorAll("[data-chart]")) {
  const spec = JSON.parse(document.getElementById(place.dataset.chart).textContent);
  vegaEmbed(place, spec, embed);
}
