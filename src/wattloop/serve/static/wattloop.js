// The switch between light and dark, charts that are given as definitions, commands to copy, live
// runs of the overview, and lists: search as one types, hidden columns, ticked rows to compare.
// Before this come THEME, the colours of all figures, and charts.js, which reports have as well.

const button = document.getElementById("theme");
const remembered = (name) => { try { return localStorage.getItem(name); } catch (error) { return null; } };
const remember = (name, value) => { try { localStorage.setItem(name, value); } catch (error) { /* not kept then */ } };

// Charts are drawn again when the theme changes.
const drawings = new Map();

function show(name) {
  root.dataset.theme = name;
  button.setAttribute("aria-pressed", String(name === "dark"));
}
show(remembered("wattloop-theme")
  || (window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
button.addEventListener("click", () => {
  const name = root.dataset.theme === "dark" ? "light" : "dark";
  show(name);
  remember("wattloop-theme", name);
  for (const again of [...drawings.values()]) { again(); }
});

const embed = { actions: { export: true, source: false, compiled: false, editor: false },
  renderer: "svg", ast: true,
  mode: "vega-lite" };  // a `concat` alone is taken for Vega, and nothing is drawn

// To a screen reader a chart is one picture with its meaning, not two thousand nameless points.
async function drawn(place, spec) {
  const words = place.getAttribute("aria-label");
  const result = await vegaEmbed(place, themed(fitted(spec)), embed);
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
    const again = () => drawn(place, definition(place.dataset.chart));
    drawings.set(place, again);
    await again();
    await new Promise((resolve) => { setTimeout(resolve); });
  }
})();

for (const each of document.querySelectorAll("[data-copy]")) {
  each.addEventListener("click", async () => {
    const code = each.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      each.textContent = "Copied";
    } catch (error) {  // not allowed over plain HTTP from elsewhere: it can be copied by hand
      getSelection().selectAllChildren(code);
      each.textContent = "Selected";
    }
    setTimeout(() => { each.textContent = "Copy"; }, 2000);
  });
}

// Numbers for people, as the server writes them.
const three = (value) => (Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en-US") : value.toPrecision(3));
const units = JSON.parse(document.body.dataset.energyUnits);
const joules = (value) => {
  if (value === null) { return "–"; }
  if (value === 0) { return "0 J"; }
  const least = ([name, scale]) => (name.endsWith("h") || name === "kJ" ? scale : 0.1 * scale);
  const [unit, scale] = units.findLast((each) => Math.abs(value) >= least(each)) || units[0];
  return `${three(value / scale)} ${unit}`;
};
const watts = (value) => (value === null ? "–" : value < 1000 ? `${three(value)} W` : `${three(value / 1000)} kW`);
const lasting = (value) => {
  const s = Math.floor(value), pad = (n) => String(n).padStart(2, "0");
  if (s < 60) { return `${s} s`; }
  return s < 3600 ? `${Math.floor(s / 60)} min ${pad(s % 60)} s` : `${Math.floor(s / 3600)} h ${pad(Math.floor(s / 60) % 60)} min`;
};
function setText(parent, name, text) {
  const place = parent.querySelector(`[data-value="${name}"]`);
  if (place && place.textContent !== text) { place.textContent = text; }
}

// What runs now: asked for again while the page is looked at.
const live = document.getElementById("live-runs");
if (live) {
  setInterval(async () => {
    if (document.hidden) { return; }
    let answer;
    try { answer = await (await fetch("/api/v1/runs/live")).json(); } catch (error) { return; }
    const known = new Map(answer.runs.map((run) => [run.run_id, run]));
    const shown = [...live.querySelectorAll("[data-run]")].map((row) => row.dataset.run);
    const now = answer.runs.slice(0, Number(live.dataset.most)).map((run) => run.run_id);
    if (shown.join() !== now.join()) { location.reload(); return; }
    let total = null;
    for (const row of live.querySelectorAll("[data-run]")) {
      const run = known.get(row.dataset.run);
      if (run.power_w !== null) { total = (total ?? 0) + run.power_w; }
      setText(row, "power", watts(run.power_w));
      setText(row, "energy", joules(run.energy_j));
      setText(row, "elapsed", lasting(run.elapsed_s));
      setText(row, "step", run.step_j === null ? "–" : joules(run.step_j));
    }
    setText(document, "live-power", watts(total));
  }, 3000);
}

// Search as one types: the form is sent in the background and its list replaced; charts of the list
// before it go. Sent by its button it is an ordinary form, as without a script.
const form = document.querySelector("form[data-instant]");
if (form) {
  let waiting = null, asked = 0;
  const update = async () => {
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
    const address = `${form.getAttribute("action")}?${query}`;
    const mine = ++asked;
    const text = await (await fetch(address)).text();
    if (mine !== asked) { return; }
    const page = new DOMParser().parseFromString(text, "text/html");
    for (const name of ["totals", "list"]) {
      const [before, after] = [document.getElementById(name), page.getElementById(name)];
      if (before && after) { before.replaceWith(document.importNode(after, true)); }
    }
    for (const chart of document.querySelectorAll("[data-of-list]")) { chart.remove(); }
    history.replaceState(null, "", address);
    prepare();
  };
  form.addEventListener("input", (event) => {
    clearTimeout(waiting);
    waiting = setTimeout(update, event.target.type === "search" ? 200 : 0);
  });
  form.addEventListener("submit", () => { clearTimeout(waiting); asked += 1; });
}

// Hidden columns are remembered by the browser; the first column always stays.
function hideColumns() {
  const chooser = document.getElementById("columns");
  if (!chooser) { return; }
  const chosen = remembered("wattloop-columns");
  const hidden = new Set((chosen ?? chooser.dataset.hidden).split(","));
  for (const box of chooser.querySelectorAll("input")) {
    const apply = () => {
      for (const cell of document.querySelectorAll(`[data-column="${box.value}"]`)) { cell.hidden = !box.checked; }
    };
    box.checked = !hidden.has(box.value);
    apply();
    box.onchange = () => {
      apply();
      remember("wattloop-columns",
        [...chooser.querySelectorAll("input")].filter((one) => !one.checked).map((one) => one.value).join(","));
    };
  }
}

// Ticked rows are compared, in the order in which they were ticked: the first is the base.
function tickRows() {
  for (const place of document.querySelectorAll("[data-compare]")) {
    const go = place.querySelector("button[data-go]");
    if (!go) { continue; }  // an empty list
    const ticked = [];
    const boxes = place.querySelectorAll("input[name=run]");
    const refresh = () => {
      go.disabled = ticked.length < 2 || ticked.length > 12;
      go.textContent = ticked.length ? `Compare ${ticked.length}` : "Compare";
    };
    for (const box of boxes) {
      box.checked = false;
      box.onchange = () => {
        if (box.checked) { ticked.push(box.value); } else { ticked.splice(ticked.indexOf(box.value), 1); }
        refresh();
      };
    }
    go.onclick = () => { location.href = `/compare?${new URLSearchParams(ticked.map((run) => ["run", run]))}`; };
    refresh();
  }
}

function prepare() { hideColumns(); tickRows(); hintTables(); }
prepare();
