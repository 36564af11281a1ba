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
const TITLE_PX = 9, SUBTITLE_PX = 6, AROUND_PX = 90;  // a letter, and what is around a chart
const NAME_PX = 120;

// A text in lines that a phone has room for.
function lines(text, letterPx) {
  const most = Math.max(20, Math.floor((root.clientWidth - AROUND_PX) / letterPx));
  if (typeof text !== "string") { return text; }  // an expression
  const found = [];
  for (const word of text.split(" ")) {
    const last = found.at(-1);
    if (last !== undefined && last.length + word.length < most) { found[found.length - 1] = `${last} ${word}`; }
    else { found.push(word); }
  }
  return found;
}

// A chart and its parts with such titles, and with names that leave room for what they name.
function wrapped(spec) {
  const found = { ...spec };
  const axis = found.encoding?.y?.axis;
  if (axis?.labelLimit > NAME_PX) {
    found.encoding = { ...found.encoding, y: { ...found.encoding.y, axis: { ...axis, labelLimit: NAME_PX } } };
  }
  if (found.title) {
    const { text, subtitle, ...rest } = typeof found.title === "string" ? { text: found.title } : found.title;
    found.title = { ...rest, text: lines(text, TITLE_PX), subtitle: lines(subtitle ?? "", SUBTITLE_PX) };
  }
  for (const parts of ["layer", "hconcat", "vconcat", "concat"]) {
    if (found[parts]) { found[parts] = found[parts].map(wrapped); }
  }
  return found;
}

// Names of a legend: those of its scale, or of its field in the rows.
function legendNames(spec) {
  const parts = [spec, ...(spec.layer ?? [])];
  const colour = parts.map((part) => part.encoding?.color).find((one) => one?.field);
  return colour?.scale?.domain
    ?? new Set(Object.values(spec.datasets ?? {}).flat().map((row) => row[colour?.field] ?? ""));
}

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
      const columns = [...legendNames(found)].some((name) => String(name).length > LONG_NAME) ? 1 : 2;
      const layout = { bottom: { anchor: "start", direction: "vertical" } };
      const legend = { ...found.config?.legend, orient: "bottom", columns, labelFontSize: 10,
        gradientLength: 100, layout };
      found.config = { ...found.config, legend };
    }
  } else if (narrow() && found.hconcat) {
    found.vconcat = found.hconcat;
    delete found.hconcat;
  } else if (narrow() && (found.facet || found.repeat || found.concat)) {
    found.columns = 1;
  }
  return narrow() ? wrapped(found) : found;
}

// A table that does not fit says so; its edge has a shadow as well.
function hintTables() {
  for (const place of document.querySelectorAll(".table")) {
    place.classList.toggle("cut-off", place.scrollWidth > place.clientWidth + 1);
  }
}
hintTables();
addEventListener("resize", hintTables);
