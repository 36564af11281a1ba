"""Draw deploy/grafana/wattloop.json from a real Prometheus: docs/images/grafana.png.

    python scripts/grafana_picture.py FOLDER [--minutes 6]

No package registry carries Grafana. This script reads the dashboard's own definition, asks a real
Prometheus (Debian's package) for the expressions of each panel, and draws the panels where the
definition places them. Prometheus scrapes two agents with virtual GPUs, a run with
`--metrics-port` and `wattloop serve`, which this script starts in FOLDER and stops.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
DASHBOARD = ROOT / "deploy" / "grafana" / "wattloop.json"
PICTURE = ROOT / "docs" / "images" / "grafana.png"
CELL_W, CELL_H, GAP = 54, 30, 6
"""Grafana's grid has 24 columns; a row of it is 30 pixels high."""
STEPS = 120
UNITS = {
    "watt": ("W", 1.0), "kwatth": ("kWh", 1.0), "percentunit": ("%", 100.0), "joule": ("J", 1.0),
    "hertz": ("GHz", 1e-9), "celsius": ("°C", 1.0), "s": ("s", 1.0), "ops": ("1/s", 1.0),
}  # fmt: skip
Found = list[dict[str, Any]]


class PrometheusApi:
    """Queries of one Prometheus over the last `range_s` seconds."""

    def __init__(self, url: str, range_s: float) -> None:
        self._url, self._range_s, self._now_s = url, range_s, time.time()
        self.step_s = range_s / STEPS

    def ask(self, target: Mapping[str, Any]) -> Found:
        """Return the series of a panel's target, with the dashboard's variables set to all."""
        text = target["expr"].replace("$__range", f"{round(self._range_s)}s")
        text = re.sub(r"\$(cluster|node|job)\b", ".*", text).replace("[5m]", "[1m]")
        if target.get("instant"):
            return self._get("query", query=text, time=self._now_s)
        begin_s = self._now_s - self._range_s
        return self._get(
            "query_range", query=text, start=begin_s, end=self._now_s, step=self.step_s
        )

    def _get(self, path: str, **query: object) -> Found:
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(query)}", timeout=60) as answer:
            found: Found = json.load(answer)["data"]["result"]
            return found


def picture(dashboard: Mapping[str, Any], api: PrometheusApi) -> str:
    """Return the dashboard as SVG."""
    parts, bottom = [], 0
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        x, y = place["x"] * CELL_W, place["y"] * CELL_H + 40
        wide, high = place["w"] * CELL_W - GAP, place["h"] * CELL_H - GAP
        bottom = max(bottom, y + high)
        if panel["type"] == "row":
            inner = _text(4, 20, panel["title"], 15, weight=600)
        else:
            box = f'<rect width="{wide}" height="{high}" fill="white" stroke="#d5dae1" rx="3"/>'
            inner = box + _text(10, 20, panel["title"], 12, weight=600)
            inner += DRAW[panel["type"]](panel, api, wide, high)
        parts.append(f'<g transform="translate({x},{y})">{inner}</g>')
    size = f'width="{24 * CELL_W + 8}" height="{bottom + 8}"'
    head = _text(4, 26, dashboard["title"], 18, weight=600)
    body = f'<rect {size} fill="#f4f5f5"/><g transform="translate(4,4)">{head}{"".join(parts)}</g>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{body}</svg>'


def _stat(panel: Mapping[str, Any], api: PrometheusApi, wide: int, high: int) -> str:
    found = api.ask(panel["targets"][0])
    text = _shown(float(found[0]["value"][1]), panel) if found else "No data"
    return _text(wide / 2, high / 2 + 22, text, 30, anchor="middle", colour="#00875f", weight=600)


def _bars(panel: Mapping[str, Any], api: PrometheusApi, wide: int, high: int) -> str:
    found = sorted(
        ((_legend(panel["targets"][0], one), float(one["value"][1])) for one in _all(panel, api)),
        key=lambda pair: -pair[1],
    )
    most = max((value for _, value in found), default=1.0) or 1.0
    rows = []
    for number, (name, value) in enumerate(found[:8]):
        y = 34 + number * min(26, (high - 40) / max(1, len(found)))
        length = (wide - 200) * value / most
        rows.append(
            _text(10, y + 13, name[:16], 11)
            + f'<rect x="110" y="{y}" width="{length:.0f}" height="18" fill="#0067a5"/>'
            + _text(118 + length, y + 13, _shown(value, panel), 11)
        )
    return "".join(rows) or _text(wide / 2, high / 2, "No data", 14, anchor="middle")


def _table(panel: Mapping[str, Any], api: PrometheusApi, wide: int, high: int) -> str:
    found = sorted(_all(panel, api), key=lambda one: -float(one["value"][1]))
    names = sorted({name for one in found for name in one["metric"]})
    left = [10 + n * (wide - 20) / (len(names) + 1) for n in range(len(names) + 1)]
    heads = [_text(x, 42, n, 11, weight=600) for x, n in zip(left, [*names, "power"], strict=True)]
    for number, one in enumerate(found[: int((high - 50) / 20)]):
        cells = [one["metric"].get(name, "") for name in names]
        cells.append(_shown(float(one["value"][1]), panel))
        y = 62 + 20 * number
        heads += [_text(x, y, cell, 11) for x, cell in zip(left, cells, strict=True)]
    return "".join(heads)


def _lines(panel: Mapping[str, Any], api: PrometheusApi, wide: int, high: int) -> str:
    import vl_convert

    from wattloop.report.figures.chart import mark, spec_of, styled

    unit, scale = _unit(panel)
    rows = []
    for target in panel["targets"]:
        for one in api.ask(target):
            part, last_s = 0, float(one["values"][0][0])
            for at_s, value in one["values"]:
                part += at_s - last_s > 1.5 * api.step_s  # a series that is absent is not drawn
                last_s = at_s
                if value not in ("NaN", "+Inf", "-Inf"):
                    row = {"time": _instant(at_s), "value": scale * float(value)}
                    rows.append({**row, "name": _legend(target, one), "part": part})
    if not rows:
        return _text(wide / 2, high / 2, "No data", 14, anchor="middle", colour="#6b7280")
    chart = mark(
        "line",
        {"strokeWidth": 1.6},
        rows=rows,
        x={"field": "time", "type": "temporal", "title": None, "axis": {"format": "%H:%M:%S"}},
        y={"field": "value", "type": "quantitative", "title": unit},
        detail={"field": "part", "type": "nominal"},
        color={"field": "name", "type": "nominal", "title": None, "legend": {"symbolLimit": 9}},
    )
    spec = spec_of(styled(chart, "", ""))
    spec |= {"width": wide - 250, "height": high - 80, "title": None, "background": None}
    svg = vl_convert.vegalite_to_svg(spec)
    return f'<g transform="translate(6,26)">{svg}</g>'


def _instant(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")


DRAW = {"stat": _stat, "bargauge": _bars, "table": _table, "timeseries": _lines}


def _all(panel: Mapping[str, Any], api: PrometheusApi) -> Found:
    return [one for target in panel["targets"] for one in api.ask(target)]


def _legend(target: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    form = target.get("legendFormat") or ""
    return re.sub(r"\{\{(\w+)\}\}", lambda name: one["metric"].get(name[1], ""), form).strip()


def _unit(panel: Mapping[str, Any]) -> tuple[str, float]:
    unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "")
    return UNITS.get(unit, ("", 1.0))


def _shown(value: float, panel: Mapping[str, Any]) -> str:
    unit, scale = _unit(panel)
    return f"{value * scale:,.4g} {unit}".strip()


def _text(
    x: float, y: float, text: str, size: int, *, anchor: str = "start", colour: str = "#1f2937",
    weight: int = 400,
) -> str:  # fmt: skip
    style = f'font-family="Liberation Sans, Arial, sans-serif" font-size="{size}"'
    place = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text {place} {style} font-weight="{weight}">{escape(text)}</text>'


# -- a cluster to look at ------------------------------------------------------------------

JOBS = (  # node, job, name, user, project, GPUs, from second, to second, load, compute, memory
    ("n1", "7001", "gpt2-finetune", "ada", "language", (0, 1), 15, 9_999, 0.95, 1.0, 0.5),
    ("n1", "7003", "resnet50", "grace", "vision", (2,), 60, 240, 0.7, 0.8, 0.9),
    ("n2", "7002", "vit-base", "mei", "vision", (0, 1, 2), 40, 9_999, 0.85, 1.0, 0.3),
    ("n2", "7004", "idle-notebook", "linus", "assistant", (3,), 30, 9_999, 0.02, 0.5, 0.5),
)
TRAIN = """
import time, torch
from wattloop.virtual.node import shared_gpus
from wattloop.virtual.timeline import this_process
shared_gpus(1)[0].load(0.6, owner=this_process())
net = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
while True:
    net.train()
    for _ in range(100):
        net(torch.randn(32, 64)).square().mean().backward()
        optimizer.step(); optimizer.zero_grad(); time.sleep(0.1)
    net.eval()
    with torch.no_grad():
        for _ in range(20):
            net(torch.randn(32, 64)); time.sleep(0.1)
    torch.save(net.state_dict(), "net.pt")
"""
OF_JOB = {"SLURM_JOB_ID": "7002", "SLURM_JOB_USER": "mei", "SLURM_JOB_ACCOUNT": "vision",
          "SLURMD_NODENAME": "n2"}  # fmt: skip
"""The run belongs to this job, so that the agent of its node shows the job's steps."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def running(words: Sequence[str], folder: Path, **environment: str) -> Iterator[None]:
    with (folder / f"{Path(words[0]).name}-{len(list(folder.iterdir()))}.log").open("w") as log:
        env = {**os.environ, "WATTLOOP_STORE": str(folder / "runs.db"), **environment}
        process = subprocess.Popen(words, stdout=log, stderr=log, env=env, cwd=folder)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def play(folder: Path, cards: Mapping[str, Sequence[Any]], seconds: float) -> None:
    """Begin and end jobs as Slurm's hooks do, and load the virtual GPUs."""
    began_s, done = time.monotonic(), set[tuple[str, str]]()
    while (now_s := time.monotonic() - began_s) < seconds:
        for node, job, name, user, project, gpus, first_s, last_s, load, compute, memory in JOBS:
            for kind, at_s in (("start", first_s), ("end", last_s)):
                if now_s < at_s or (job, kind) in done:
                    continue
                done.add((job, kind))
                facts = {"cpus": "2", "uid": str(os.getuid()), "user": user, "account": project,
                         "name": name, "gpus": ",".join(map(str, gpus)), "job": job,
                         "whole": "yes"}  # fmt: skip
                text = "".join(f"{key}={value}\n" for key, value in facts.items())
                (folder / node / "events" / f"{time.time_ns()}-{job}-{kind}").write_text(text)
                for gpu in gpus:
                    cards[node][gpu].load(load if kind == "start" else 0.0, compute, memory)
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=6.0)
    given = parser.parse_args()
    folder = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    import vl_convert

    from wattloop.virtual.node import shared_gpus

    ports = {name: free_port() for name in ("n1", "n2", "run", "serve", "prometheus")}
    wattloop = str(Path(sys.executable).with_name("wattloop"))
    cards: dict[str, list[Any]] = {}
    with ExitStack() as stack:
        for node in ("n1", "n2"):
            state = str(folder / f"{node}.cards")
            config = {"folder": f"{folder}/{{node}}", "cluster": "lab", "virtual_gpus": 4,
                      "virtual_state": state, "cpus": 8, "metrics": f"127.0.0.1:{ports[node]}",
                      "meters": ["virtual"], "store": str(folder / "runs.db"),
                      "unallocated_hours": 1 / 60}  # fmt: skip
            (folder / f"{node}.yaml").write_text(json.dumps(config))
            (folder / node / "events").mkdir(parents=True, exist_ok=True)
            cards[node] = shared_gpus(4, environment={"WATTLOOP_VIRTUAL_STATE": state})
            words = [wattloop, "agent", "run", "--node", node, "--config", f"{folder}/{node}.yaml"]
            stack.enter_context(running(words, folder))
        (folder / "train.py").write_text(TRAIN)
        train = [sys.executable, "train.py"]
        words = [wattloop, "run", "--name", "tiny-net", "--metrics-port", str(ports["run"])]
        once = {"OMP_NUM_THREADS": "1", "WATTLOOP_VIRTUAL_STATE": str(folder / "run.cards"),
                "WATTLOOP_VIRTUAL_GPUS": "1", "WATTLOOP_METERS": "virtual"}  # fmt: skip
        stack.enter_context(running([*words, "--", *train], folder, **once, **OF_JOB))
        words = [wattloop, "serve", "--port", str(ports["serve"])]
        stack.enter_context(running(words, folder))
        targets = json.dumps([f"127.0.0.1:{ports[n]}" for n in ("n1", "n2", "run", "serve")])
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 2s}\nscrape_configs:\n  - job_name: wattloop\n"
            f"    static_configs: [{{targets: {targets}}}]\n"
        )
        words = ["prometheus", f"--config.file={folder}/prometheus.yml",
                 f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address=127.0.0.1:{ports['prometheus']}"]  # fmt: skip
        stack.enter_context(running(words, folder))
        play(folder, cards, 60 * given.minutes)
        api = PrometheusApi(f"http://127.0.0.1:{ports['prometheus']}", 60 * given.minutes)
        svg = picture(json.loads(DASHBOARD.read_text()), api)
    (folder / "grafana.svg").write_text(svg)
    PICTURE.write_bytes(vl_convert.svg_to_png(svg, scale=1.0))
    sys.stdout.write(f"{PICTURE}\n")


if __name__ == "__main__":
    main()
