"""Promises of completed traces: missing data is drawn by seed, keeps durations, and is noted."""

from dataclasses import replace

import numpy as np
import pytest

from tests.schedule.jobs.synthetic_oracle import MadeOracle, made_cluster
from wattloop.core.errors import ConfigError
from wattloop.schedule.jobs import JobKind
from wattloop.schedule.jobs.attributes import Deadlines, Users
from wattloop.schedule.jobs.kind import JobTemplate
from wattloop.schedule.jobs.trace_completion import Completion
from wattloop.schedule.traces.trace import Coded, Trace

CLUSTER = made_cluster()
ORACLE = MadeOracle(CLUSTER)
VIT = JobTemplate(JobKind("hf:google/vit", batches=(32, 64), caps=(0.6, 1.0)))
BERT = JobTemplate(JobKind("bert", batches=(8,)), weight=3.0, called=("bert-large",))
BOTH = Completion((VIT, BERT))
DRAW = np.random.default_rng(1)
ROWS = 2_000
TRACE = Trace(
    source="t.csv",
    arrival_s=np.arange(ROWS, dtype=float),
    gpus=2 ** DRAW.integers(0, 4, ROWS),
    duration_s=DRAW.lognormal(7, 2, ROWS) + 1,
    notes=("as read",),
)


def few(gpus=(1,), duration_s=(100.0,), **more) -> Trace:
    count = len(gpus)
    return Trace(
        source="t.csv",
        arrival_s=np.arange(count, dtype=float),
        gpus=np.array(gpus),
        duration_s=np.array(duration_s * count if len(duration_s) == 1 else duration_s),
        **more,
    )


def words(*values: str) -> Coded:
    distinct = tuple(dict.fromkeys(value for value in values if value))
    codes = [distinct.index(value) if value else -1 for value in values]
    return Coded(distinct, np.array(codes, np.int32))


@pytest.mark.parametrize("rigid", [False, True])
@pytest.mark.parametrize("reference", ["v100", "a100"])
def test_durations_are_those_of_the_trace_on_the_reference_gpu(rigid, reference) -> None:
    """At the requested number of GPUs, full power and the fastest batch, the seconds are the
    same.
    """
    jobs = replace(BOTH, rigid=rigid, reference=reference).table(TRACE, 0, CLUSTER, ORACLE)
    number = [each.name for each in CLUSTER.types].index(reference)
    for job in range(0, ROWS, 7):
        options = ORACLE.options(jobs.kinds[jobs.kind[job]])
        there = (options.type_index == number) & (options.gpus == TRACE.gpus[job])
        again_s = jobs.work[job] * options.sample_s[there].min()
        assert again_s == pytest.approx(TRACE.duration_s[job])


def test_jobs_may_take_half_the_same_and_twice_the_gpus() -> None:
    """At most 16, the largest type of the cluster; odd numbers are halved downwards."""
    jobs = Completion((BERT,)).table(few((1, 2, 3, 16)), 0, CLUSTER, ORACLE)
    assert [jobs.kinds[k].gpus for k in jobs.kind] == [(1, 2), (1, 2, 4), (1, 3, 6), (8, 16)]


def test_rigid_jobs_take_what_they_asked_for_and_one_batch() -> None:
    """Batches are drawn among those that fit, or are the trace's own."""
    jobs = replace(BOTH, rigid=True).table(TRACE, 0, CLUSTER, ORACLE)
    kinds = [jobs.kinds[k] for k in jobs.kind]
    assert all(kind.gpus == (gpus,) for kind, gpus in zip(kinds, TRACE.gpus, strict=True))
    assert {kind.batches for kind in kinds if kind.model != "bert"} == {(32,), (64,)}
    own = few((2, 2), batch=np.array([24.0, np.nan]))
    jobs = replace(BOTH, rigid=True, templates=(BERT,)).table(own, 0, CLUSTER, ORACLE)
    assert [jobs.kinds[k].batches for k in jobs.kind] == [(24,), (8,)]


def test_the_oracle_is_asked_for_few_kinds() -> None:
    """It is called for models x GPU counts, not for jobs."""
    oracle = MadeOracle(CLUSTER)
    jobs = BOTH.table(TRACE, 0, CLUSTER, oracle)
    assert len(jobs.kinds) == len(oracle.asked) == 2 * 4


def test_models_are_drawn_by_weight_and_seed() -> None:
    """Three BERTs to one ViT; other seeds draw others, and other draws stay the same."""
    jobs = BOTH.table(TRACE, 0, CLUSTER, ORACLE)
    share = np.mean([jobs.kinds[k].model == "bert" for k in jobs.kind])
    assert abs(share - 0.75) < 0.05
    again, other = (BOTH.table(TRACE, seed, CLUSTER, ORACLE) for seed in (0, 1))
    assert np.array_equal(jobs.kind, again.kind) and not np.array_equal(jobs.kind, other.kind)
    assert np.array_equal(jobs.arrival_s, other.arrival_s)


def test_models_can_be_bound_to_gpus_and_durations() -> None:
    """Classes decide; a job that fits none is drawn from all, with a note."""
    small = replace(VIT, trace_gpus=(1, 2), trace_s=(0, 1000.0))
    large = replace(BERT, trace_gpus=(8, 64))
    completion = Completion((small, large))
    jobs = completion.table(
        few((1, 2, 8, 2, 4), (10.0, 10.0, 10.0, 2000.0, 10.0)), 0, CLUSTER, ORACLE
    )
    models = [jobs.kinds[k].model for k in jobs.kind]
    assert models[:3] == ["hf:google/vit", "hf:google/vit", "bert"]
    assert "model: 2 jobs suit none by GPUs and duration, drawn from all" in jobs.notes


def test_models_and_samples_of_the_trace_are_kept() -> None:
    """By name, short name or alias; unknown ones are drawn and keep their durations."""
    trace = few(
        (1, 1, 1, 1),
        (100.0, 100.0, 100.0, np.nan),
        model=words("BERT-Large", "vit", "lstm", "lstm"),
        samples=np.array([5e4, np.nan, 7e4, 9e4]),
    )
    jobs = BOTH.table(trace, 0, CLUSTER, ORACLE)
    assert [jobs.kinds[k].model for k in jobs.kind][:2] == ["bert", "hf:google/vit"]
    assert jobs.work[0] == 5e4 and jobs.work[3] == 9e4
    assert jobs.work[1] == pytest.approx(100 * 100 * 64**0.1)
    assert jobs.work[2] != 7e4
    assert "model: 2 jobs train what the trace says" in jobs.notes
    assert "work: 2 jobs have the samples that the trace says" in jobs.notes


def test_users_deadlines_and_priorities_of_the_trace_are_kept() -> None:
    """Jobs without a user belong to 'unknown'; a job without a deadline gets none."""
    trace = few(
        (1, 1),
        user=words("ann", ""),
        deadline_s=np.array([50.0, np.nan]),
        priority=np.array([2.0, np.nan]),
    )
    jobs = replace(BOTH, deadlines=Deadlines(share=1.0, factor=2.0)).table(
        trace, 0, CLUSTER, ORACLE
    )
    assert [jobs.users[u] for u in jobs.user] == ["ann", "unknown"]
    assert jobs.deadline_s.tolist() == [50, np.inf] and jobs.priority.tolist() == [2, 0]


def test_users_and_deadlines_are_drawn_where_the_trace_has_none() -> None:
    """The same shares as for generated jobs."""
    completion = replace(BOTH, people=Users(count=4), deadlines=Deadlines(share=0.2, factor=3.0))
    jobs = completion.table(TRACE, 0, CLUSTER, ORACLE)
    assert abs(jobs.urgent.mean() - 0.2) < 0.05
    assert np.abs(np.bincount(jobs.user) / ROWS - 0.25).max() < 0.05
    assert "deadlines: 20% of the jobs, 3 x best runtime after arrival" in jobs.notes
    assert "user: drawn from 4" in jobs.notes


def test_gpu_types_of_the_trace_tell_where_durations_come_from() -> None:
    """An A100 is twice a V100 here: twice the work in the same time.

    Unknown types are the default.
    """
    trace = few((1, 1, 1), gpu_type=words("A100", "V100", "MISC"))
    jobs = Completion((BERT,)).table(trace, 0, CLUSTER, ORACLE)
    assert jobs.work[0] == pytest.approx(2 * jobs.work[1]) and jobs.work[2] == jobs.work[1]
    assert {kind.types for kind in jobs.kinds} == {()}
    assert any("(2 jobs), else on v100" in note for note in jobs.notes)


def test_jobs_can_be_tied_to_the_types_of_the_trace() -> None:
    """Unknown types are refused with the cluster's types, or renamed."""
    trace = few((1, 1), gpu_type=words("A100", "MISC"))
    tied = Completion((BERT,), match_types=True)
    with pytest.raises(ConfigError, match=r"t\.csv: GPU type 'MISC' \(1 jobs\).* v100, a100"):
        tied.table(trace, 0, CLUSTER, ORACLE)
    jobs = replace(tied, renamed_types={"misc": "v100"}).table(trace, 0, CLUSTER, ORACLE)
    assert [jobs.kinds[k].types for k in jobs.kind] == [("a100",), ("v100",)]
    with pytest.raises(ConfigError, match="MISC: the cluster has no type 't4', only v100, a100"):
        replace(tied, renamed_types={"MISC": "t4"}).table(trace, 0, CLUSTER, ORACLE)
    with pytest.raises(ConfigError, match="no column names them"):
        tied.table(few(), 0, CLUSTER, ORACLE)
    with pytest.raises(ConfigError, match="the cluster has no 'h100'"):
        replace(BOTH, reference="h100").table(few(), 0, CLUSTER, ORACLE)


def test_jobs_larger_than_the_cluster_are_kept_and_counted() -> None:
    """Rigid ones never run; malleable ones may on half, with the work of the nearest placement."""
    trace = few((32, 4096, 1))
    jobs = Completion((BERT,), rigid=True).table(trace, 0, CLUSTER, ORACLE)
    assert len(jobs) == 3 and np.isfinite(jobs.work).all() and (jobs.work > 0).all()
    assert "jobs that can never run on this cluster, kept and reported: 2" in jobs.notes
    jobs = Completion((BERT,)).table(trace, 0, CLUSTER, ORACLE)
    assert jobs.kinds[jobs.kind[0]].gpus == (16, 32)
    assert "jobs that can never run on this cluster, kept and reported: 1" in jobs.notes
    on_half = 100 * 100 * 16**0.9 * 8**0.1
    assert jobs.work[0] == pytest.approx(2 * 2 * on_half)  # twice the GPUs, on the faster A100


def test_every_assumption_is_a_note_after_those_of_the_trace() -> None:
    """Model, reference, GPUs, work, user."""
    notes = BOTH.table(TRACE, 0, CLUSTER, ORACLE).notes
    assert notes[0] == "as read"
    for said in ("drawn by weight from vit, bert, seed 0", "recorded on v100", "half, the same"):
        assert any(said in note for note in notes), said
    assert any("duration x samples per second" in note for note in notes)
    with pytest.raises(ConfigError, match="no models"):
        Completion(())
