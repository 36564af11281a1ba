"use strict";
// Power of every domain of a run over time: limits as dashed lines, phases or windows as bands;
// zooming in fetches a finer curve; of a live run, new samples are added as they come. Signals are
// small charts below. One crosshair goes through all of them, with all values at that time.

const LIVE_POINTS = 3000;

// Where nothing was read for much longer than usual the line is broken, not drawn across.
const GAP_STEPS = 10;

function curveRows(answer) {
  const rows = [];
  for (const curve of answer.curves) {
    const steps = curve.times_s.slice(1).map((t, n) => t - curve.times_s[n]).sort((a, b) => a - b);
    const usual = steps[Math.floor(steps.length / 2)] || 0;
    let before = null;
    curve.times_s.forEach((t, n) => {
      if (curve.mean[n] === null) { return; }
      if (before !== null && usual > 0 && t - before > GAP_STEPS * usual) {
        rows.push({ t: (before + t) / 2, p: null, low: null, high: null, domain: curve.name });
      }
      rows.push({ t, p: curve.mean[n], low: curve.low[n], high: curve.high[n], domain: curve.name });
      before = t;
    });
  }
  return rows;
}

function bandLayers(answer) {
  const phases = answer.phases ?? [];
  const bands = phases.length ? phases : answer.windows;
  if (!bands.length || bands.length > 400) { return []; }
  const x = { field: "begin_s", type: "quantitative" };
  const names = [...new Set(bands.map((band) => band.name))];
  const colour = phases.length
    ? { field: "name", type: "nominal", title: null,
      scale: { domain: names, range: names.map((_, n) => THEME.palette[(n + 3) % THEME.palette.length]) },
      legend: { symbolOpacity: 0.5, symbolType: "square" } }
    : { value: "#6b7280" };
  const layers = [{ data: { values: bands }, mark: { type: "rect", opacity: phases.length ? 0.16 : 0.1 },
    encoding: { x, x2: { field: "end_s" }, color: colour,
      tooltip: [{ field: "name" }, { field: "energy_j", title: "energy (J)" }] } }];
  return layers;
}

function curveSpec(answer, title = "Power (W)", height = 320) {
  const isSmall = height < 200;
  const names = answer.curves.map((curve) => curve.name);
  const limits = answer.curves.filter((curve) => curve.tdp_w)
    .map((curve) => ({ domain: curve.name, limit: curve.tdp_w }));
  const colour = { field: "domain", type: "nominal", title: null,
    legend: { symbolOpacity: 1, symbolType: "stroke", symbolStrokeWidth: 3, orient: "top",
      columns: narrow() ? 2 : 6, labelExpr: isSmall ? "split(datum.label, '/')[0]" : "datum.label" },
    scale: { domain: names, range: names.map((_, n) => THEME.palette[n % THEME.palette.length]) } };
  const x = { field: "t", type: "quantitative", title: isSmall ? null : "Time since the start (s)",
    scale: { nice: false } };
  const format = answer.curves[0]?.unit === "fraction" ? ".0%" : "~s";
  const y = { type: "quantitative", title: isSmall ? null : title,
    axis: isSmall ? { tickCount: 3, format } : {} };
  const curves = [{ data: { name: "power" }, mark: { type: "area", opacity: 0.15 },
    encoding: { x, y: { ...y, field: "low" }, y2: { field: "high" }, color: colour } },
  { data: { name: "power" }, mark: { type: "line", strokeWidth: 1.5 },
    params: [{ name: "zoom", select: { type: "interval", encodings: ["x"] }, bind: "scales" }],
    encoding: { x, y: { ...y, field: "p" }, color: colour } }];
  if (limits.length) {
    curves.push({ data: { values: limits }, mark: { type: "rule", strokeDash: [6, 4] },
      encoding: { y: { field: "limit", type: "quantitative" }, color: colour,
        tooltip: [{ field: "domain" }, { field: "limit", title: "limit (W)" }] } });
  }
  const layers = [...bandLayers(answer), { layer: curves },
    { data: { name: "cross" }, mark: { type: "rule", color: "#111827", strokeWidth: 1 },
      encoding: { x: { field: "t", type: "quantitative" } } }];
  return { width: "container", height, title: isSmall ? { text: title, fontSize: 12 } : undefined,
    autosize: { type: "fit-x", contains: "padding" },
    datasets: { power: curveRows(answer), cross: [] }, layer: layers, config: THEME.config,
    resolve: { scale: { color: "independent" } } };
}

// The crosshair: what is drawn, by place; values of all of them at the time that is pointed at.
const shown = new Map();
const readout = document.getElementById("readout");
let crossTime = null;

function nearest(rows, name, t) {
  let best = null;
  for (const row of rows) {
    if (row.domain !== name || row.p === null) { continue; }
    if (best === null || Math.abs(row.t - t) < Math.abs(best.t - t)) { best = row; }
  }
  return best;
}

function cross(t) {
  crossTime = t;
  const parts = [];
  for (const { view, rows, answer, unit } of shown.values()) {
    view.data("cross", [{ t }]).runAsync();
    for (const curve of answer.curves) {
      const row = nearest(rows(), curve.name, t);
      if (row) { parts.push([curve.name, `${three(row.p)} ${curve.unit ?? unit}`]); }
    }
  }
  readout.hidden = false;
  readout.replaceChildren(document.createTextNode(`${lasting(Math.max(0, t))}: `));
  for (const [name, value] of parts) {
    const bold = document.createElement("b");
    bold.textContent = value;
    readout.append(` ${name} `, bold, " ");
  }
}

function connect(place, view, answer, rows, unit) {
  shown.set(place, { view, rows, answer, unit });
  const timeAt = (event) => {
    const box = place.querySelector("svg.marks").getBoundingClientRect();
    return view.scale("x").invert(event.clientX - box.left - view.origin()[0]);
  };
  place.onpointermove = (event) => {
    const t = timeAt(event), [low, high] = view.scale("x").domain();
    if (t >= low && t <= high) { cross(t); }
  };
  place.onkeydown = (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) { return; }
    event.preventDefault();
    const [low, high] = view.scale("x").domain();
    const t = crossTime === null ? low : crossTime + way * (high - low) / 100;
    cross(Math.min(high, Math.max(low, t)));
  };
}

async function drawCurves(place) {
  const url = place.dataset.curves;
  const answer = await (await fetch(url)).json();
  if (!answer.curves.some((curve) => curve.times_s.length) && !place.dataset.live) {
    place.textContent = "No samples were stored, so no curve is shown.";
    place.classList.add("empty");
    return;
  }
  if (place.dataset.live) {
    follow(place, answer);
    return;
  }
  const again = async () => {
    const { view } = await drawn(place, curveSpec(answer));
    const rows = curveRows(answer);
    let current = rows;
    connect(place, view, answer, () => current, "W");
    let waiting = null;
    view.addSignalListener("zoom", (_, value) => {
      const range = value && value.t;
      clearTimeout(waiting);
      if (!range) { return; }
      waiting = setTimeout(async () => {
        const begin = Math.max(0, range[0]);
        const finer = await (await fetch(`${url}?begin_s=${begin}&end_s=${Math.max(begin, range[1])}`)).json();
        const rest = rows.filter((row) => row.t < begin || row.t > range[1]);
        current = rest.concat(curveRows(finer)).sort((a, b) => a.t - b.t);
        view.data("power", current).runAsync();
      }, 250);
    });
  };
  drawings.set(place, again);
  await again();
}

// The chart is drawn with the first samples: axes without a line would look like a failure.
function follow(place, answer) {
  const source = new EventSource(place.dataset.live);
  const rows = [];
  let view = null;
  let drawing = false;
  const again = async () => {
    drawing = true;
    const spec = curveSpec(answer);
    spec.datasets.power = rows.slice(-LIVE_POINTS);
    place.textContent = "";
    view = (await drawn(place, spec)).view;
    connect(place, view, answer, () => rows.slice(-LIVE_POINTS), "W");
  };
  drawings.set(place, () => drawing && again());
  source.addEventListener("samples", async (event) => {
    for (const row of JSON.parse(event.data)) { rows.push({ t: row.time_s, p: row.power_w, domain: row.domain, low: row.power_w, high: row.power_w }); }
    rows.splice(0, Math.max(0, rows.length - 2 * LIVE_POINTS));
    if (view) { view.data("power", rows.slice(-LIVE_POINTS)).runAsync(); } else if (!drawing) { await again(); }
  });
  const signals = document.querySelector("[data-live-signals]");
  if (signals) { followSignals(signals, source); }
  source.addEventListener("totals", (event) => {
    const run = JSON.parse(event.data);
    const now = document.getElementById("now");
    setText(now, "energy", joules(run.energy_j));
    setText(now, "power", watts(run.power_w));
    if (run.provenance) { setText(now, "provenance", run.provenance); }
    setText(now, "step", run.step_j === null ? "–" : joules(run.step_j));
    setText(now, "steps", String(run.steps));
  });
  const now = document.getElementById("now");
  const begun = Number(now.dataset.started);
  setInterval(() => setText(now, "elapsed", lasting(Math.max(0, Date.now() / 1000 - begun))), 1000);
  source.addEventListener("end", () => { source.close(); location.reload(); });
}

// One small chart per kind of signal, with the devices that have it.
const kindOf = (name) => (name === "memory/used" ? "memory used" : name.split("/").pop());

function smallChart(place, kind, curves, rows) {
  const words = kind.replaceAll("_", " ");
  const each = document.createElement("div");
  each.className = "curve low";
  each.setAttribute("role", "group");
  each.setAttribute("tabindex", "0");
  each.setAttribute("aria-label", `${words} over time`);
  place.append(each);
  const some = { curves, windows: [] };
  const again = async () => {
    const unit = (curves[0].unit ?? "").replace("degC", "°C");
    const spec = curveSpec(some, unit && unit !== "fraction" ? `${words} (${unit})` : words, 150);
    spec.datasets.power = rows();
    const { view } = await drawn(each, spec);
    connect(each, view, some, rows, unit);
    return view;
  };
  drawings.set(each, again);
  return again;
}

async function drawSignals(place) {
  const answer = await (await fetch(place.dataset.signals)).json();
  const kinds = new Map();
  for (const curve of answer.curves) {
    if (!curve.times_s.length) { continue; }
    kinds.set(kindOf(curve.name), [...(kinds.get(kindOf(curve.name)) ?? []), curve]);
  }
  if (!kinds.size) {
    place.textContent = "No signals were stored.";
    return;
  }
  for (const [kind, curves] of kinds) {
    const rows = curveRows({ curves });
    await smallChart(place, kind, curves, () => rows)();
  }
}

// The same of a live run: values are added as they come; a device that is new has it drawn again.
// Drawing them takes longer than a tick of a busy machine: once in two seconds, never twice at once.
const SIGNALS_MS = 2000;

function followSignals(place, source) {
  const kinds = new Map();
  let waiting = false, delay = 0, hasMore = false;
  const draw = async () => {
    hasMore = false;
    for (const one of kinds.values()) {
      one.rows.splice(0, Math.max(0, one.rows.length - LIVE_POINTS));
      if (one.isNew) {
        one.isNew = false;
        one.view = await one.again();
      } else {
        await one.view.data("power", one.rows.slice()).runAsync();
      }
    }
    delay = SIGNALS_MS;
    waiting = hasMore;
    if (hasMore) { setTimeout(draw, delay); }
  };
  source.addEventListener("signals", (event) => {
    for (const { signal, unit, time_s: t, value } of JSON.parse(event.data)) {
      const kind = kindOf(signal);
      if (!kinds.has(kind)) {
        const one = { curves: [], rows: [], view: null, isNew: true };
        one.again = smallChart(place, kind, one.curves, () => one.rows.slice());
        kinds.set(kind, one);
      }
      const one = kinds.get(kind);
      if (!one.curves.some((curve) => curve.name === signal)) {
        one.curves.push({ name: signal, unit, times_s: [] });
        one.isNew = true;
      }
      one.rows.push({ t, p: value, low: value, high: value, domain: signal });
    }
    place.querySelector(".wait")?.remove();
    hasMore = true;
    if (!waiting) { waiting = true; setTimeout(draw, delay); }
  });
}

for (const place of document.querySelectorAll("[data-curves]")) {
  drawCurves(place).catch((error) => { place.textContent = `The curve could not be drawn: ${error}`; });
}
for (const place of document.querySelectorAll("[data-signals]")) { drawSignals(place); }
