"""Promises of docs/clusters.md and docs/scenarios.md: examples load, and fields are complete."""

import re
from pathlib import Path

import pytest
import yaml

from wattloop.schedule.cluster.file import (
    ClusterSpec,
    FailuresSpec,
    GroupSpec,
    cluster_from,
    shipped_clusters,
)
from wattloop.schedule.jobs.spec import JobsSpec
from wattloop.schedule.scenarios.file import load_scenario, scenario_from, shipped_scenarios
from wattloop.schedule.scenarios.spec import EngineSpec, PreemptionSpec, ScenarioSpec

DOCS = Path(__file__).parents[3] / "docs"
CLUSTERS = (DOCS / "clusters.md").read_text()
SCENARIOS = (DOCS / "scenarios.md").read_text()


def examples(page: str) -> list[dict[str, object]]:
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]


def test_the_example_cluster_is_one() -> None:
    """The blocks: the cluster, its power-down states, and its failures in detail."""
    cluster, sleepy, failures = examples(CLUSTERS)
    assert cluster_from(cluster).gpus == 48
    assert cluster_from(sleepy).can_sleep
    FailuresSpec.model_validate(failures["failures"])


def test_the_example_scenario_is_one(tmp_path: Path) -> None:
    """It uses the example cluster; the other block shows values over the day."""
    scenario, day = examples(SCENARIOS)
    (tmp_path / "lab-cluster.yaml").write_text(yaml.safe_dump(examples(CLUSTERS)[0]))
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump(scenario))
    (tmp_path / "grid.csv").write_text("hour,g_per_kwh,mix\n0,50,a\n1,60,b\n")
    (tmp_path / "day.yaml").write_text(yaml.safe_dump({"like": "lab.yaml", **day}))
    assert list(load_scenario(str(tmp_path / "lab.yaml")).variants) == ["busy"]
    carbon = load_scenario(str(tmp_path / "day.yaml")).carbon
    assert carbon is not None
    assert carbon.steps.values == (50, 60)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        *((CLUSTERS, model) for model in (ClusterSpec, GroupSpec, FailuresSpec)),
        *((SCENARIOS, model) for model in (ScenarioSpec, EngineSpec, PreemptionSpec, JobsSpec)),
    ],
)
def test_every_field_is_documented(text: str, model: type[ClusterSpec]) -> None:
    """Every field that a file may contain is on a page."""
    fields = [info.alias or name for name, info in model.model_fields.items()]
    assert [name for name in fields if f"`{name}`" not in text] == []


def test_everything_shipped_is_in_the_tables() -> None:
    """The tables list them by name."""
    assert [name for name in shipped_clusters() if f"| `{name}` |" not in CLUSTERS] == []
    assert [name for name in shipped_scenarios() if f"| `{name}` |" not in SCENARIOS] == []


def test_the_snippet_prints_what_it_says() -> None:
    """183 jobs of seed 0 under 4,500 W."""
    world = load_scenario("thesis-budget").world(seed=0)
    assert f"# ({len(world.jobs)}, {world.settings.budget_w.at(0)})" in SCENARIOS


def test_plain_data_of_the_page_needs_no_file() -> None:
    """Programs may build the same from a dictionary."""
    scenario = dict(examples(SCENARIOS)[0], cluster=examples(CLUSTERS)[0])
    assert scenario_from(scenario).cluster.gpus == 48
