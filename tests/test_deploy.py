"""Promises of docs/metrics.md: dashboard and rules use existing metrics."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
RULES = ROOT / "deploy" / "prometheus"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "wattloop.json").read_text("utf-8"))
METRIC = re.compile(r"\bwattloop_\w+")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (package prometheus) is missing"
)


def queries() -> list[str]:
    return [t["expr"] for panel in DASHBOARD["panels"] for t in panel.get("targets", ())]


def exported() -> set[str]:
    """Return the names of families in the source: a name's text stands at its definition."""
    places = [
        "fleet/agent/live_metrics.py",
        "measure/metrics_endpoint.py",
        "serve/api/metrics.py",
    ]
    text = "".join((ROOT / "src/wattloop" / place).read_text("utf-8") for place in places)
    names = set(re.findall(r'"(wattloop_\w+)"', text))
    suffixes = {f"{name}_total" for name in ("steps", "samples", "tokens")}
    suffixes |= set(re.findall(r'f"{prefix}_(\w+)"', text))
    return names | {f"wattloop_{whose}_{each}" for whose in ("run", "job") for each in suffixes}


def test_every_query_of_the_dashboard_has_its_metric() -> None:
    asked = {name for query in queries() for name in METRIC.findall(query)}
    assert asked
    assert asked - exported() == set()


def test_every_rule_has_its_metric() -> None:
    groups = yaml.safe_load((RULES / "wattloop-rules.yml").read_text("utf-8"))["groups"]
    asked = {n for g in groups for r in g["rules"] for n in METRIC.findall(r["expr"])}
    recorded = {n for g in groups for r in g["rules"] for n in METRIC.findall(r.get("record", ""))}
    assert asked - exported() - recorded == set()


def test_panels_do_not_overlap_and_ids_are_unique() -> None:
    """Grafana requires unique ids, and positions on its grid of 24 columns."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels:
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["datasource"]["uid"] == "${datasource}"


@needs_promtool
def test_queries_are_promql(tmp_path: Path) -> None:
    """promtool parses every query, with the dashboard's variables filled in."""
    rules = [
        {"record": f"q:{i}", "expr": q.replace("$__range", "6h").replace("$", "")}
        for i, q in enumerate(queries())
    ]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_alerts_fire_when_they_should() -> None:
    """Budget exceeded, GPU idle for 30 minutes within a job, agent silent; and no other time."""
    done = subprocess.run(
        ["promtool", "test", "rules", "wattloop-rules-test.yml"],
        cwd=RULES, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
