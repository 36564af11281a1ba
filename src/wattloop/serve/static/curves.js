"use strict";
// Power of every domain of a run over time: limits as dashed lines, windows as bands; zooming in
// fetches a finer curve; of a run that goes on, new samples are added as they come.

const colours = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a5195"];
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

// White behind it whatever the theme: one palette, always readable.
function curveSpec(answer, title = "Power (W)") {
  const names = answer.curves.map((curve) => curve.name);
  const limits = answer.curves.filter((curve) => curve.tdp_w)
    .map((curve) => ({ domain: curve.name, limit: curve.tdp_w }));
  const colour = { field: "domain", type: "nominal", title: null,
    legend: { symbolOpacity: 1, symbolType: "stroke", symbolStrokeWidth: 3 },
    scale: { domain: names, range: names.map((_, n) => colours[n % colours.length]) } };
  const x = { field: "t", type: "quantitative", title: "Time since the start (s)",
    scale: { nice: false } };
  const layers = [];
  if (answer.windows.length && answer.windows.length <= 200) {
    layers.push({ data: { values: answer.windows },
      mark: { type: "rect", opacity: 0.08, color: "#6b7280" },
      encoding: { x: { field: "begin_s", type: "quantitative" }, x2: { field: "end_s" },
        tooltip: [{ field: "name" }, { field: "energy_j", title: "energy (J)" }] } });
  }
  layers.push({ data: { name: "power" }, mark: { type: "area", opacity: 0.15 },
    encoding: { x, y: { field: "low", type: "quantitative", title },
      y2: { field: "high" }, color: colour } });
  layers.push({ data: { name: "power" }, mark: { type: "line", strokeWidth: 1.5 },
    params: [{ name: "zoom", select: { type: "interval", encodings: ["x"] }, bind: "scales" }],
    encoding: { x, y: { field: "p", type: "quantitative", title }, color: colour } });
  if (limits.length) {
    layers.push({ data: { values: limits }, mark: { type: "rule", strokeDash: [6, 4] },
      encoding: { y: { field: "limit", type: "quantitative" }, color: colour,
        tooltip: [{ field: "domain" }, { field: "limit", title: "limit (W)" }] } });
  }
  return { width: "container",
    height: 320, background: "white", datasets: { power: curveRows(answer) }, layer: layers,
    config: { font: "Helvetica, Arial, sans-serif", view: { stroke: null } } };
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
  const result = await drawn(place, curveSpec(answer));
  const view = result.view;
  const rows = curveRows(answer);
  let waiting = null;
  view.addSignalListener("zoom", (_, value) => {
    const range = value && value.t;
    clearTimeout(waiting);
    if (!range) { return; }
    waiting = setTimeout(async () => {
      const begin = Math.max(0, range[0]);
      const finer = await (await fetch(`${url}?begin_s=${begin}&end_s=${Math.max(begin, range[1])}`)).json();
      const fine = curveRows(finer);
      const rest = rows.filter((row) => row.t < begin || row.t > range[1]);
      view.data("power", rest.concat(fine).sort((a, b) => a.t - b.t)).runAsync();
    }, 250);
  });
}

// The chart is drawn with the first samples: axes without a line would look like a failure.
function follow(place, answer) {
  const source = new EventSource(place.dataset.live);
  const rows = [];
  let view = null;
  let drawing = false;
  source.addEventListener("samples", async (event) => {
    for (const row of JSON.parse(event.data)) { rows.push({ t: row.time_s, p: row.power_w, domain: row.domain, low: row.power_w, high: row.power_w }); }
    if (view) {
      view.data("power", rows.slice(-LIVE_POINTS)).runAsync();
    } else if (!drawing) {
      drawing = true;
      const spec = curveSpec(answer);
      spec.datasets.power = rows.slice(-LIVE_POINTS);
      place.textContent = "";
      view = (await drawn(place, spec)).view;
    }
  });
  source.addEventListener("end", () => { source.close(); location.reload(); });
}

async function drawSignals(select) {
  const place = document.getElementById("signal-chart");
  const answer = await (await fetch(select.dataset.signals)).json();
  for (const curve of answer.curves) {
    select.add(new Option(curve.unit ? `${curve.name} (${curve.unit})` : curve.name, curve.name));
  }
  async function draw() {
    const chosen = answer.curves.filter((curve) => curve.name === select.value);
    if (!chosen.length || !chosen[0].times_s.length) {
      place.textContent = "No values of this signal were kept.";
      place.classList.add("empty");
      return;
    }
    place.classList.remove("empty");
    const spec = curveSpec({ curves: chosen, windows: [] }, `${chosen[0].name} (${chosen[0].unit})`);
    await drawn(place, { ...spec, height: 180 });
  }
  select.addEventListener("change", draw);
  await draw();
}

for (const select of document.querySelectorAll("[data-signals]")) { drawSignals(select); }
for (const place of document.querySelectorAll("[data-curves]")) {
  drawCurves(place).catch((error) => { place.textContent = `The curve could not be drawn: ${error}`; });
}
