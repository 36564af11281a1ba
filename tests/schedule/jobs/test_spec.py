"""Promises of the jobs section of a scenario: allowed fields, and resulting jobs."""

import os
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.schedule.jobs.synthetic_oracle import MadeOracle, made_cluster
from wattloop.core.errors import ConfigError
from wattloop.schedule.jobs.spec import JobsSpec
from wattloop.schedule.jobs.table import save_jobs

CLUSTER = made_cluster()
ORACLE = MadeOracle(CLUSTER)
MODEL = {
    "model": "vit",
    "gpus": [1, 2, 4],
    "batches": 32,
    "work": {"samples": 50_000, "epochs": 50},
}
MADE = {"models": [MODEL], "generate": {"rate_per_s": 0.005, "horizon": "10 h"}}
ROWS = "arrival_s,gpus,duration_s,vc\n0,1,60,a\n100,2,60,b\n200,1,60,b\n"


def faults(section: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as refused:
        JobsSpec(**section)
    return "\n".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in refused.value.errors())


def test_generated_jobs() -> None:
    """A few lines describe thesis 5.5.1."""
    spec = JobsSpec(
        **MADE, users={"count": 5, "majority": 0.5}, deadlines={"share": 0.1, "factor": 3.5}
    )
    jobs = spec.table(3, CLUSTER, ORACLE)
    assert abs(len(jobs) - 180) < 70 and jobs.arrival_s[-1] < 36_000 and len(jobs.users) == 5
    assert set(jobs.work.tolist()) == {2.5e6} and jobs.urgent.any()
    assert np.array_equal(jobs.arrival_s, spec.table(3, CLUSTER, ORACLE).arrival_s)
    assert JobsSpec(**spec.model_dump()).table(3, CLUSTER, ORACLE).kinds == jobs.kinds


def test_a_trace_is_found_next_to_the_scenario_and_cut(tmp_path) -> None:
    """The path is relative to the scenario; a file name alone may be plain text."""
    (tmp_path / "t.csv").write_text(ROWS)
    models = [{"model": "vit", "batches": [32]}]
    spec = JobsSpec(models=models, trace="t.csv").located(tmp_path)
    jobs = spec.table(0, CLUSTER, ORACLE)
    assert len(jobs) == 3 and jobs.users == ("a", "b")
    cut = JobsSpec(models=models, trace={"file": "t.csv", "begin": "1.5 min", "speed": 2})
    jobs = cut.located(tmp_path).table(0, CLUSTER, ORACLE)
    assert jobs.arrival_s.tolist() == [5, 55] and jobs.users == ("b",)


def test_a_trace_is_read_once_and_again_when_it_changes(tmp_path) -> None:
    """Every seed and policy of a campaign reads it."""
    file = tmp_path / "t.csv"
    file.write_text(ROWS)
    spec = JobsSpec(models=[MODEL], trace=str(file))
    one, other = (spec.table(seed, CLUSTER, ORACLE).arrival_s for seed in (0, 1))
    assert one is other and not one.flags.writeable
    file.write_text(ROWS + "300,1,60,c\n")
    os.utime(file, ns=(1, 1))
    assert len(spec.table(0, CLUSTER, ORACLE)) == 4


def test_a_saved_table_is_taken_as_it_is(tmp_path) -> None:
    """It keeps its models and work; a request to cut it is refused, not ignored."""
    jobs = JobsSpec(**MADE).table(0, CLUSTER, ORACLE)
    save_jobs(jobs, tmp_path / "jobs.csv")
    trace = {"file": str(tmp_path / "jobs.csv")}
    again = JobsSpec(models=[MODEL], trace=trace).table(5, CLUSTER, ORACLE)
    assert again.kinds == jobs.kinds and np.array_equal(again.work, jobs.work)
    with pytest.raises(ConfigError, match="holds whole jobs"):
        JobsSpec(models=[MODEL], trace={**trace, "head": 3}).table(0, CLUSTER, ORACLE)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"generate": None}, "give either 'generate' or 'trace'"),
        ({"trace": "t.csv"}, "give either 'generate' or 'trace'"),
        ({"models": []}, "models: List should have at least 1 item"),
        ({"models": ["vit"]}, "models.0: generated jobs need 'work'"),
        ({"models": [{**MODEL, "gpu": 1}]}, "models.0.gpu: Extra inputs"),
        ({"models": [{**MODEL, "gpus": [0]}]}, "models.0.gpus.0: Input should be greater"),
        ({"models": [{**MODEL, "caps": ["70 pct"]}]}, "'70 pct' is not a number"),
        ({"models": [{**MODEL, "caps": ["120%"]}]}, "models.0.caps.0: Input should be less"),
        ({"models": [{**MODEL, "when_gpus": [8, 1]}]}, "from and to, in this order"),
        ({"models": [{**MODEL, "work": {"least": 2}}]}, "or least and most"),
        ({"models": [{**MODEL, "work": {"least": 2, "most": 1}}]}, "least is 2, above most"),
        ({"models": [{**MODEL, "work": [1]}]}, "write samples, or samples and epochs"),
        ({"models": [{**MODEL, "work": -1}]}, "work.samples: Input should be greater than 0"),
        ({"generate": {"rate_per_s": 0.1}}, "give a horizon such as 10 h"),
        ({"generate": {"rate_per_s": 0, "count": 1}}, "generate.rate_per_s"),
        ({"generate": {"rate_per_s": 1, "horizon": "10 moons"}}, "is not a time"),
        ({"generate": {"rate_per_s": 1, "count": 1, "daily": [0, 0]}}, "all weights are 0"),
        ({"users": "five"}, "write a number, or count and majority"),
        ({"users": {"shares": {"a": 1}, "count": 2}}, "leave count and majority out"),
        ({"deadlines": {"share": 2}}, "deadlines.share"),
    ],
)
def test_faults_name_their_field(changed, said) -> None:
    """The scenario adds file and line."""
    assert said in faults({**MADE, **changed})


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (3, "write the path of a trace"),
        ({"file": ""}, "trace.file"),
        ({"file": "t", "begin": 5, "end": 5}, "not after begin"),
        ({"file": "t", "speed": 0}, "trace.speed"),
        ({"file": "t", "colums": {}}, "trace.colums: Extra inputs"),
        ({"file": "t", "unusable": "drop"}, "trace.unusable"),
    ],
)
def test_faults_of_a_trace_section(trace, said) -> None:
    """They name their field as well."""
    assert said in faults({"models": [MODEL], "trace": trace})


def test_shorthands() -> None:
    """One value for a list, percent for shares, a name for a model, ranges of work."""
    spec = JobsSpec(
        models=[{"model": "vit", "gpus": 4, "caps": "70%", "work": {"least": 1e5, "most": 1e6}}],
        generate={"rate_per_s": 1, "count": 50, "priorities": {0: 0.5, 5: 0.5}},
        users={"shares": {"ann": 3, "bob": 1}},
    )
    jobs = spec.table(0, CLUSTER, ORACLE)
    assert jobs.kinds[0].gpus == (4,) and jobs.kinds[0].caps == (0.7,)
    assert jobs.users == ("ann", "bob") and set(jobs.priority.tolist()) == {0, 5}
    assert 1e5 <= jobs.work.min() < jobs.work.max() <= 1e6
    spec = JobsSpec(models=["vit", {"model": "b", "when_duration": ["1 h", np.inf]}], trace="t")
    assert spec.models[0].model == "vit" and spec.models[1].template().trace_s == (3_600, np.inf)
    again = JobsSpec(**spec.model_dump(mode="json", by_alias=True))
    assert again.models[1].template() == spec.models[1].template()


SERVED = {"model": "hf:llama-3.1-8b", "serve": {"requests_per_s": 4, "duration": ["1 h", "2 h"]}}


def test_services_last_as_long_as_the_section_says() -> None:
    """Work is in seconds, within the bounds; a single duration applies to all."""
    jobs = JobsSpec(**{**MADE, "models": [SERVED]}).table(1, CLUSTER, ORACLE)
    assert 3600 <= jobs.work.min() < jobs.work.max() <= 7200
    assert jobs.kinds[0].label == "llama-3.1-8b service"
    one = {**SERVED, "serve": {"requests_per_s": 4, "duration": 90}}
    assert set(JobsSpec(**{**MADE, "models": [one]}).table(1, CLUSTER, ORACLE).work) == {90.0}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({**SERVED, "serve": {"requests_per_s": 4}}, "generated services need serve.duration"),
        ({**SERVED, "serve": {"duration": "1 h"}}, "requests_per_s: Field required"),
        ({**SERVED, "sharding": "fsdp"}, "sharding is of a training; leave it out"),
        ({**SERVED, "work": 5}, "work is of a training"),
        ({**MODEL, "parallel": "tp=0"}, "tp=0 is not a whole number from 1 on"),
        ({**MODEL, "parallel": "xp=2"}, "xp is not known; use dp, fsdp"),
        ({**MODEL, "checkpointing": "full"}, "go with 'parallel', such as tp=2"),
        ({**MODEL, "global_batch": 8}, "go with 'parallel', such as tp=2"),
    ],
)
def test_what_a_layout_and_a_service_refuse(model: dict[str, Any], said: str) -> None:
    """Each error names the field and its valid values."""
    assert said in faults({**MADE, "models": [model]})
