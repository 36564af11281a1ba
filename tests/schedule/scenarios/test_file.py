"""Promises of scenario files: understood as written; an error names file, line and remedy."""

import math
import pickle
from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.schedule.engine.settings import Keeps
from wattloop.schedule.scenarios.file import load_scenario, scenario_from, shipped_scenarios
from wattloop.schedule.scenarios.scenario import Scenario

CLUSTER = "cluster: {groups: [{gpu: a40, nodes: 2, gpus_per_node: 4, host_w: 100}]}\n"
JOBS = "jobs: {models: [{model: m, work: 1000}], generate: {rate_per_s: 0.01, count: 5}}\n"
WHOLE = """\
name: ours
cluster:
  groups:
    - {gpu: a40, nodes: 2, gpus_per_node: 4, host_w: 100}
jobs:
  models:
    - {model: m, gpus: [1, 2], work: 1000}
  generate: {rate_per_s: 0.01}
oracle: {kind: analytic, noise: 5%}
engine:
  rounds: 1 s
  horizon: 10 h
  preemption: {keeps: checkpoints, period: 10 min, cost: 20 s, restart: 5}
  interference: 5%
  failures: {outages: [{node: a40-1, at: 1 h, for: 30 min}]}
starts_at: "08:00"
budget: [{from: "06:00", value: 3 kW}, {from: "18:00", value: 2 kW}]
price: 0.25
carbon: FRA
policies: [fifo, {pollux: {age_weight: 0.5}}]
seeds: 3
variants:
  busy: {jobs.generate.rate_per_s: 0.02}
"""


def read(tmp_path: Path, text: str) -> Scenario:
    path = tmp_path / "ours.yaml"
    path.write_text(text)
    return load_scenario(str(path))


def test_a_whole_file_is_understood(tmp_path: Path) -> None:
    """Every section, with units."""
    scenario = read(tmp_path, WHOLE)
    settings = scenario.settings(seed=0)
    assert (scenario.name, scenario.cluster.gpus, scenario.seeds) == ("ours", 8, (0, 1, 2))
    assert (settings.round_s, settings.horizon_s, settings.interference) == (1, 36_000, 0.05)
    assert settings.preemption.keeps is Keeps.CHECKPOINTS
    assert settings.preemption.checkpoint_period_s == 600
    assert (settings.preemption.checkpoint_cost_s, settings.preemption.restart_s) == (20, 5)
    assert [(e.time_s, e.node, e.is_up) for e in settings.node_events] == [
        (3_600, 1, False),
        (5_400, 1, True),
    ]
    assert scenario.policies == ("fifo", {"pollux": {"age_weight": 0.5}})
    assert settings.price_per_kwh is not None
    assert settings.carbon_g_per_kwh is not None
    assert scenario.oracle.noise == 0.05


def test_the_day_begins_when_the_simulation_does(tmp_path: Path) -> None:
    """At 08:00 the day's budget holds, and ten hours later the evening's."""
    budget_w = read(tmp_path, WHOLE).settings(seed=0).budget_w
    assert [budget_w.at(hour * 3_600) for hour in (0, 9.9, 10, 21.9, 22)] == [
        *(3_000, 3_000, 2_000, 2_000, 3_000)
    ]


def test_jobs_come_until_the_simulation_ends(tmp_path: Path) -> None:
    """Their section may set another end."""
    scenario = read(tmp_path, WHOLE)
    assert scenario.jobs.generate is not None
    assert scenario.jobs.generate.horizon_s == 36_000


def test_what_is_not_said_has_a_default(tmp_path: Path) -> None:
    """Rounds on events, all jobs finish, no budget, and no other value."""
    settings = read(tmp_path, CLUSTER + JOBS).settings(seed=0)
    assert (settings.round_s, settings.horizon_s) == (None, math.inf)
    assert settings.budget_w.at(0) == math.inf
    assert (settings.price_per_kwh, settings.carbon_g_per_kwh) == (None, None)
    assert settings.node_events == ()


def test_a_variant_is_the_scenario_with_one_thing_changed(tmp_path: Path) -> None:
    """It has a name of its own."""
    scenario = read(tmp_path, WHOLE)
    busy = scenario.variants["busy"]
    assert busy.name == "ours/busy"
    assert scenario.jobs.generate is not None
    assert busy.jobs.generate is not None
    assert (scenario.jobs.generate.rate_per_s, busy.jobs.generate.rate_per_s) == (0.01, 0.02)
    assert busy.cluster == scenario.cluster
    assert not busy.variants


def test_a_file_like_another_changes_what_it_says(tmp_path: Path) -> None:
    """Sections are merged field by field, other values are replaced, and variants are its own."""
    read(tmp_path, WHOLE)
    (tmp_path / "night.yaml").write_text(
        "like: ours.yaml\nname: night\nengine: {interference: 0}\nbudget: 5 kW\nseeds: [7]\n"
    )
    night = load_scenario(str(tmp_path / "night.yaml"))
    assert (night.name, night.seeds, night.engine.interference) == ("night", (7,), 0)
    assert night.engine.horizon_s == 36_000
    assert night.budget is not None
    assert night.budget.steps.values == (5_000,)
    assert not night.variants


def test_files_are_found_next_to_the_file_that_names_them(tmp_path: Path) -> None:
    """This also holds when a scenario in another folder extends it."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "grid.csv").write_text("g\n10\n20\n")
    (tmp_path / "shared" / "lab.yaml").write_text(
        "groups:\n  - {gpu: a40, nodes: 3, gpus_per_node: 4, host_w: 0}\n"
    )
    (tmp_path / "shared" / "base.yaml").write_text(
        "cluster: lab.yaml\n" + JOBS + "carbon: {csv: grid.csv}\n"
    )
    scenario = read(tmp_path, "like: shared/base.yaml\n")
    assert scenario.cluster.gpus == 12
    assert scenario.carbon is not None
    assert scenario.carbon.steps.values == (10, 20)


def test_a_section_written_as_one_value_can_be_built_on(tmp_path: Path) -> None:
    """`oracle: table` and `noise: 10%` on top of it both apply."""
    (tmp_path / "base.yaml").write_text(
        CLUSTER + JOBS + "oracle: table\nengine: {preemption: nothing}\n"
    )
    text = "like: base.yaml\noracle: {noise: 10%}\nengine: {preemption: {restart: 5 s}}\n"
    scenario = read(tmp_path, text)
    assert (scenario.oracle.kind, scenario.oracle.noise) == ("table", 0.1)
    preemption = scenario.engine.preemption
    assert (preemption.keeps, preemption.restart_s) == ("nothing", 5)


def test_changes_come_on_top(tmp_path: Path) -> None:
    """The command line makes them; numbers select entries of lists."""
    path = tmp_path / "ours.yaml"
    path.write_text(WHOLE)
    changes = {"engine.horizon": "1 h", "jobs.models.0.gpus": [4], "cluster": "thesis"}
    scenario = load_scenario(str(path), {**changes, "engine.failures": None, "budget": None})
    assert scenario.engine.horizon_s == 3_600
    assert scenario.jobs.models[0].gpus == [4]
    assert scenario.cluster.name == "thesis"
    with pytest.raises(ConfigError, match=r"jobs\.models\.3\.gpus: no item '3' in a list of 1"):
        load_scenario(str(path), {"jobs.models.3.gpus": [4]})


def test_a_cluster_file_is_found_next_to_the_scenario(tmp_path: Path) -> None:
    """Errors in it name its own lines."""
    cluster = "groups:\n  - {gpu: a40, nodes: 3, gpus_per_node: 4, host_w: 0}\n"
    (tmp_path / "lab.yaml").write_text(cluster)
    assert read(tmp_path, "cluster: lab.yaml\n" + JOBS).cluster.gpus == 12
    (tmp_path / "lab.yaml").write_text(cluster.replace("a40", "a41"))
    with pytest.raises(ConfigError, match=r"ours\.yaml:1: cluster: .*lab\.yaml:2: groups\.0\.gpu"):
        read(tmp_path, "cluster: lab.yaml\n" + JOBS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"ours\.yaml: is empty; a scenario has at least 'cluster' and 'jobs'"),
        ("name: x", r"cluster: it is missing\n.*jobs: it is missing"),
        (
            CLUSTER + JOBS + "polices: [fifo]",
            r":3: polices: unknown field; did you mean 'policies'",
        ),
        (CLUSTER + JOBS + "engine: {ruonds: 1}", r":3: engine\.ruonds: .*mean 'rounds'"),
        (CLUSTER + JOBS + "engine: {rounds: fast}", r":3: engine\.rounds: 'fast' is not a time"),
        (CLUSTER + JOBS + "engine: {rounds: 0}", r"engine\.rounds: .*greater than 0"),
        (CLUSTER + JOBS + "engine: {horizon: .nan}", r"engine\.horizon: "),
        (CLUSTER + JOBS + "engine: {interference: .nan}", r"engine\.interference: .*finite"),
        (CLUSTER + JOBS + "engine: {preemption: all}", r"preemption\.keeps: .*'nothing'"),
        (CLUSTER + JOBS + "engine: {preemption: checkpoints}", r"Give a period such as 10 min"),
        (
            CLUSTER + JOBS + "engine: {preemption: {keeps: nothing, cost: 3}}",
            r"period and cost are of checkpoints",
        ),
        (
            CLUSTER + JOBS + "engine: {failures: {outages: [{node: b, at: 1, for: 1}]}}",
            r":3: engine\.failures\.outages\.0\.node: no node 'b'",
        ),
        (CLUSTER + JOBS + "oracle: {noise: 1.5}", r"oracle\.noise: .*less than 1"),
        (CLUSTER + JOBS + "oracle: crystal", r":3: oracle\.kind: .*'analytic'"),
        (CLUSTER + JOBS + "policies: [fifo, polux]", r":3: policies\.1: unknown policy 'polux'"),
        (
            CLUSTER + JOBS + "policies:\n  - fifo\n  - pollux: {age: 3}",
            r":5: policies\.1: policy pollux: unknown parameter 'age'",
        ),
        (CLUSTER + JOBS + "policies: [fifo, fifo]", r":3: policies\.1: fifo is given twice"),
        (CLUSTER + JOBS + "policies: [3]", r":3: policies\.0: write a name"),
        (CLUSTER + JOBS + "policies: 3", r":3: policies: write names such as \[fifo, zeus\]"),
        (CLUSTER + JOBS + "engine: 3", r":3: engine: write 'key: value' lines$"),
        (CLUSTER + JOBS + "seeds: some", r":3: seeds: write how many, such as 10"),
        ("cluster: 3\n" + JOBS, r":1: cluster: write a name, or 'key: value' lines, not 3$"),
        (CLUSTER + JOBS + "variants:\n  a: {jobs.models.7.gpus: 3}", r":4: variants\.a: jobs.*'7'"),
        (CLUSTER + JOBS + "seeds: 0", r":3: seeds: write how many, 1 to"),
        (CLUSTER + JOBS + "seeds: [1, 1]", r":3: seeds: a seed is given twice"),
        (CLUSTER + JOBS + "seeds: [-1]", r"seeds\.0: .*greater than or equal to 0"),
        (CLUSTER + JOBS + "starts_at: noon", r":3: starts_at: 'noon' is not a time of the day"),
        (CLUSTER + JOBS + "budget: much", r":3: budget: 'much' is not a power"),
        (
            CLUSTER + JOBS + "budget:\n  - {from: '06:00', value: 9 kW}\n  - {from: 1, value: 3}",
            r":5: budget\.1\.from: 1 is not a time of the day",
        ),
        (CLUSTER + JOBS + "carbon: Frnace", r":3: carbon: no carbon intensity .*FRA"),
        (CLUSTER + JOBS + "carbon: -1", r":3: carbon: must be a number, 0 or more"),
        (
            "cluster: tesis\n" + JOBS,
            r":1: cluster: no cluster called 'tesis': did you mean 'thesis'",
        ),
        (
            "cluster:\n  groups:\n    - {gpu: a41, nodes: 1, gpus_per_node: 1, host_w: 0}\n" + JOBS,
            r":3: cluster\.groups\.0\.gpu: no GPU called 'a41'",
        ),
        (
            "cluster:\n  groups:\n    - {gpu: a40, nodes: 1, gpus_per_nod: 1, host_w: 0}\n" + JOBS,
            r":3: cluster\.groups\.0\.gpus_per_nod: .*did you mean 'gpus_per_node'",
        ),
        (
            CLUSTER + "jobs:\n  models: [{model: m, work: 9, wieght: 3}]\n  generate: {count: 1}",
            r":3: jobs\.models\.0\.wieght: .*'weight'\?\n.*jobs\.generate\.rate_per_s: .*missing",
        ),
        (
            CLUSTER + "jobs:\n  models:\n    - {model: m, work: 9, types: [a30]}\n"
            "  generate: {rate_per_s: 1, count: 1}",
            r":4: jobs\.models\.0\.types: cluster ours has no GPU type 'a30'; did you mean 'a40'",
        ),
        (
            CLUSTER + JOBS + "variants:\n  a: {engine.horizn: 3}",
            r":4: variants\.a: .*engine\.horizn: .*'horizon'",
        ),
        ("like: thesiss", r":1: like: no scenario or file 'thesiss'; did you mean 'thesis'"),
        ("like: ours.yaml", r"like: more than 10 files are like each other"),
        ("like: thesis\nengine: {horizon: long}", r"ours\.yaml:2: engine\.horizon: 'long'"),
        (
            CLUSTER + "jobs: {models: none.yaml, generate: {rate_per_s: 1, count: 1}}",
            r":2: jobs\.models: .*none\.yaml: cannot be read",
        ),
    ],
)
def test_a_fault_names_its_line_and_what_to_write(tmp_path: Path, text: str, said: str) -> None:
    """File, line, field, the fault and the allowed values."""
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, text)


def test_a_fault_of_the_file_below_names_that_file(tmp_path: Path) -> None:
    """In a scenario that extends another, the error names the file of the wrong line."""
    (tmp_path / "base.yaml").write_text(CLUSTER + JOBS + "engine: {rounds: never}\n")
    with pytest.raises(ConfigError, match=r"base\.yaml:3: engine\.rounds: 'never' is not a time"):
        read(tmp_path, "like: base.yaml\nname: mine\n")


def test_a_budget_below_idle_power_says_both_figures(tmp_path: Path) -> None:
    """The least of the day counts; 2 nodes of 4 A40 draw 8 x 90 + 2 x 100 W when idle."""
    said = r"ours\.yaml:3: budget: 900 W is below the 920 W that cluster ours draws"
    with pytest.raises(ConfigError, match=said):
        read(
            tmp_path,
            CLUSTER + JOBS + "budget: [{from: '06:00', value: 3 kW}, "
            "{from: '18:00', value: 900}]\n" + "name: ours\n",
        )
    assert read(tmp_path, CLUSTER + JOBS + "budget: 920").budget is not None


def test_failures_without_end_need_a_horizon(tmp_path: Path) -> None:
    """A time after which no node fails is enough, too."""
    text = CLUSTER + JOBS + "engine: {failures: {mtbf: 1 d, mttr: 1 h%s}}\n"
    with pytest.raises(ConfigError, match=r"give a horizon, or failures\.until"):
        read(tmp_path, text % "").settings(seed=0)
    assert read(tmp_path, text % ", until: 9 d").settings(seed=0).node_events


def test_seeds_have_failures_of_their_own(tmp_path: Path) -> None:
    """They repeat for the same seed."""
    text = CLUSTER + JOBS + "engine: {failures: {mtbf: 1 d, mttr: 1 h}, horizon: 30 d}\n"
    scenario = read(tmp_path, text)
    first, again, other = (scenario.settings(seed).node_events for seed in (0, 0, 1))
    assert first == again != other


def test_plain_data_is_a_scenario_too() -> None:
    """Programs may pass it."""
    group = {"gpu": "a40", "nodes": 1, "gpus_per_node": 4, "host_w": 0}
    jobs = {"models": [{"model": "m", "work": 9}], "generate": {"rate_per_s": 1, "count": 2}}
    data = {"cluster": {"groups": [group]}, "jobs": jobs}
    assert scenario_from(data, name="lab").cluster.gpus == 4
    with pytest.raises(ConfigError, match=r"^lab: seeds: "):
        scenario_from({**data, "seeds": 0}, name="lab")


def test_a_scenario_travels_to_other_processes(tmp_path: Path) -> None:
    """Campaigns run in several processes."""
    scenario = read(tmp_path, WHOLE)
    assert pickle.loads(pickle.dumps(scenario)).digest() == scenario.digest()


def test_a_wrong_name_is_an_error_with_near_ones() -> None:
    """It also lists the other possible values."""
    with pytest.raises(ConfigError, match=r"'thesis-paretto': did you mean 'thesis-pareto'"):
        load_scenario("thesis-paretto")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_scenario("none.yaml")


def test_shipped_scenarios_are_found_by_name_and_say_what_they_are() -> None:
    """The thesis's five experiments and its load sweep."""
    found = shipped_scenarios()
    experiments = ("malleability", "pareto", "sla", "budget", "imbalanced", "load")
    assert {"thesis", *(f"thesis-{name}" for name in experiments)} <= set(found)
    assert all(found.values())


def test_a_scenario_like_another_can_switch_to_a_table(tmp_path: Path) -> None:
    """The base's estimator of the analytic oracle does not apply to a table; its noise does."""
    (tmp_path / "mine.yaml").write_text("like: thesis\noracle: {kind: table}\n")
    found = load_scenario(str(tmp_path / "mine.yaml")).oracle
    assert (found.kind, found.noise) == ("table", 0.1)
    assert load_scenario("thesis", {"oracle.kind": "table"}).oracle.kind == "table"
