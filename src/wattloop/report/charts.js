"use strict";
// How a definition of a chart becomes one that fits the page: its colours and its width.
// THEME (before this) has the colours.

const root = document.documentElement;
const narrow = () => root.clientWidth < 640;
const isDark = () => (root.dataset.theme
  ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);

// The colours of a definition are those of a light page.
function themed(part) {
  if (!isDark()) { return part; }
  if (typeof part === "string") { return THEME.dark[part] ?? part; }
  if (Array.isArray(part)) { return part.map(themed); }
  if (part && typeof part === "object") {
    return Object.fromEntries(Object.entries(part).map(([key, value]) =>
      [key, key === "datasets" ? value : themed(value)]));
  }
  return part;
}

const LONG_NAME = 16;  // of a legend with two columns on a phone

// A single chart is as wide as its place; parts that stand side by side stand below each other on a
// phone; what is wider all the same is made smaller by the style sheet.
function fitted(spec) {
  const found = { ...spec };
  if (found.mark || found.layer) {
    if (typeof found.width === "number" || found.width === undefined) {
      found.width = "container";
      found.autosize = { type: "fit-x", contains: "padding", resize: true };
    }
    if (narrow()) {
      const names = found.encoding?.color?.scale?.domain ?? [];
      const columns = names.some((name) => String(name).length > LONG_NAME) ? 1 : 2;
      found.config = { ...found.config, legend: { ...found.config?.legend, orient: "bottom", columns } };
    }
  } else if (narrow() && found.hconcat) {
    found.vconcat = found.hconcat;
    delete found.hconcat;
  } else if (narrow() && (found.facet || found.repeat || found.concat)) {
    found.columns = 1;
  }
  return found;
}

// A table that does not fit says so; its edge has a shadow as well.
function hintTables() {
  for (const place of document.querySelectorAll(".table")) {
    place.classList.toggle("cut-off", place.scrollWidth > place.clientWidth + 1);
  }
}
hintTables();
addEventListener("resize", hintTables);
