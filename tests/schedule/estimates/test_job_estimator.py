"""Promises of estimates of submitted jobs, and of the order of their sources."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedule.estimates.stored_runs import job_run
from tests.schedule.small_world import PlainOracle, small_cluster
from wattloop.core.errors import ConfigError
from wattloop.schedule.estimates.fleet_file import FleetOracle, ModelNames
from wattloop.schedule.estimates.history import History
from wattloop.schedule.estimates.job_estimator import UNLIMITED_S, EstimateSource, JobEstimator
from wattloop.schedule.estimates.job_rules import JobRule, JobRules, SubmittedJob
from wattloop.schedule.jobs.kind import ServiceLoad
from wattloop.store.database import open_store
from wattloop.store.runs import insert_run

TAG = "wattloop:model=toy,batch=8,samples=1000"
CLUSTER = small_cluster(nodes=2, gpus_per_node=4)
NAMES = ModelNames({"toy": "toy", "toy-large": "toy-large"})


def _oracle() -> FleetOracle:
    return FleetOracle(CLUSTER, lambda: PlainOracle(CLUSTER), NAMES)


def _job(**changes: Any) -> SubmittedJob:
    usual: dict[str, Any] = {"user": "ada", "name": "train", "gpus": 2, "time_limit_s": 600.0}
    return SubmittedJob(**{**usual, **changes})


def test_a_named_model_is_predicted() -> None:
    """Work, choices and deadline come from the comment, GPUs from the batch system."""
    oracle = _oracle()
    found = JobEstimator(oracle).describe(_job(comment=f"{TAG},deadline=1h,caps=0.5|1"))
    assert found.source is EstimateSource.COMMENT and found.refusals == ()
    assert found.kind is not None and found.kind.gpus == (2,) and found.kind.caps == (0.5, 1.0)
    assert (found.work, found.deadline_s) == (1000.0, 3600.0)
    assert len(oracle.options(found.kind)) == 2


def test_layouts_and_services_of_a_comment() -> None:
    """The layout of a model on its GPUs; a service runs for its allowed time."""
    tag = "wattloop:model=toy,batch=8,samples=1000,parallel=tp=2+sp+fsdp,checkpointing=full"
    found = JobEstimator(_oracle()).describe(_job(comment=f"{tag},sharding=zero1,global-batch=64"))
    kind = found.kind
    assert kind is not None and (kind.parallel, kind.zero) == ("tp=2,sp,fsdp", 1)
    assert (kind.checkpointing, kind.global_batch, kind.precision) == ("full", 64, "bf16")
    tag = "wattloop:model=toy,requests-per-s=2.5,prompt=100,output=20,weights=fp8,tp=2"
    found = JobEstimator(_oracle()).describe(_job(comment=tag))
    assert found.kind is not None and found.work == 600.0
    assert found.kind.service == ServiceLoad(2.5, 100, 20, "fp8", 2)


def test_a_comment_overrules_rules_and_rules_overrule_history(tmp_path: Path) -> None:
    """Each source applies only where the one before gives nothing."""
    job = {"model": "toy-large", "batch": 4, "samples": 5}
    rules = JobRules(rules=[JobRule(name=["tr*"], job=job)])
    with open_store(tmp_path / "runs.db") as store:
        for number in range(1, 5):
            insert_run(store, job_run(number, 100.0, 250.0))
        whole = JobEstimator(_oracle(), rules=rules, history=History(store))
        assert whole.describe(_job(comment=TAG)).source is EstimateSource.COMMENT
        ruled = whole.describe(_job(comment="wattloop:low-power,deadline=1h"))
        assert ruled.source is EstimateSource.RULES
        assert ruled.kind is not None and ruled.kind.model == "toy-large"
        assert ruled.low_power and ruled.kind.caps == (0.7,) and ruled.deadline_s == 3600.0
        measured = JobEstimator(_oracle(), history=History(store)).describe(_job())
    assert measured.source is EstimateSource.HISTORY and measured.work == 100.0
    assert measured.past is not None and measured.past.jobs == 4
    assert "4 jobs of this name" in measured.provenance and "simulated" in measured.provenance
    assert measured.kind is not None
    options = _oracle().options(measured.kind)
    assert options.power_w[0] == pytest.approx(500.0, rel=0.02)
    assert options.sample_s[0] == pytest.approx(1.0)


def test_an_unknown_job_takes_all_it_may() -> None:
    """It takes the time limit at its GPUs' power limit: no budget relies on a low guess."""
    oracle = _oracle()
    found = JobEstimator(oracle).describe(_job())
    assert found.source is EstimateSource.TIME_LIMIT and found.work == 600.0
    assert found.kind is not None
    assert oracle.options(found.kind).power_w[0] == 2 * CLUSTER.types[0].tdp_w
    assert JobEstimator(oracle).describe(_job(time_limit_s=None)).work == UNLIMITED_S


def test_a_refused_comment_is_told_and_the_next_source_asked() -> None:
    """Unknown models are reported with the nearest names."""
    found = JobEstimator(_oracle()).describe(_job(comment="wattloop:model=toi"))
    assert found.source is EstimateSource.TIME_LIMIT
    assert found.refusals == ("comment: model 'toi': unknown; did you mean toy?",)


def test_samples_that_were_not_stated_fill_the_time() -> None:
    """2 GPUs do 2 samples a second for 600 s."""
    found = JobEstimator(_oracle()).describe(_job(comment="wattloop:model=toy,batch=8"))
    assert found.work == pytest.approx(1200.0)
    assert "samples not stated" in found.provenance


def test_a_job_without_gpus_is_left_alone() -> None:
    """It has no kind, whatever its comment."""
    assert JobEstimator(_oracle()).describe(_job(gpus=0, comment=TAG)).kind is None


def test_what_the_batch_system_was_asked_for_wins_over_types() -> None:
    """A comment cannot move a job to GPUs that it did not request."""
    found = JobEstimator(_oracle()).describe(_job(gpu_type="A100", comment=f"{TAG},types=h100"))
    assert found.kind is not None and found.kind.types == ("a100",)


def test_while_a_model_is_predicted_another_estimate_is_used() -> None:
    """A round of scheduling does not wait for a trace; the next round has it."""
    oracle = _oracle()
    kind = JobEstimator(oracle).describe(_job(comment=TAG)).kind
    fresh = _oracle()
    describer = JobEstimator(fresh, wait_s=0.0)
    with fresh._prepared._one_at_a_time:  # the worker cannot finish before this ends
        found = describer.describe(_job(comment=TAG))
        assert found.source is EstimateSource.TIME_LIMIT
        assert "being predicted" in found.refusals[0]
    assert kind is not None and fresh.soon(kind, wait_s=30.0) is not None
    assert describer.describe(_job(comment=TAG)).source is EstimateSource.COMMENT


def test_what_users_invent_does_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds above the limit are dropped, also by the oracle behind."""
    monkeypatch.setattr("wattloop.schedule.estimates.fleet_file.MOST_KINDS", 5)
    made: list[PlainOracle] = []

    def make() -> PlainOracle:
        made.append(PlainOracle(CLUSTER))
        return made[-1]

    oracle = FleetOracle(CLUSTER, make, NAMES)
    describer = JobEstimator(oracle)
    for batch in range(1, 21):
        describer.describe(_job(comment=f"wattloop:model=toy,batch={batch},samples=9"))
    assert len(oracle._prepared._values) == 5
    assert len(made) == 4 and all(len(each._known) <= 5 for each in made)


def test_unknown_names_are_refused_whatever_they_look_like() -> None:
    """No path, module or scheme is accepted: names of the table only."""
    for text in ("torch:os:system", "x.py:main", "a.json", "hf:gpt2", "", "toy/../toy2"):
        with pytest.raises(ConfigError, match="unknown"):
            NAMES.find(text)
    assert NAMES.find("TOY_Large") == "toy-large"


TEXT = st.text(max_size=60)


@given(
    comment=st.one_of(TEXT, TEXT.map(lambda text: f"wattloop:model=toy,{text}")),
    texts=st.tuples(TEXT, TEXT, TEXT, TEXT, TEXT, TEXT),
    gpus=st.integers(-5, 10_000),
    limit_s=st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)),
)
def test_no_job_breaks_it(
    comment: str, texts: tuple[str, ...], gpus: int, limit_s: float | None
) -> None:
    """For any record of Slurm a job gets an estimate with usable work."""
    names = ("name", "user", "account", "partition", "script", "gpu_type")
    job = SubmittedJob(
        comment=comment, gpus=gpus, time_limit_s=limit_s, **dict(zip(names, texts, strict=True))
    )
    oracle = _oracle()
    found = JobEstimator(
        oracle, rules=JobRules(rules=[JobRule(name=["*a*"], job={"model": "toy"})])
    ).describe(job)
    assert math.isfinite(found.work) and found.work >= 0
    if found.kind is not None:
        oracle.options(found.kind)
