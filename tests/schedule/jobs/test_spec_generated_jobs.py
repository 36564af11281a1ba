"""Promises of generated workloads: they follow thesis 5.5.1, and repeat."""

from dataclasses import fields, replace

import numpy as np
import pytest
from pydantic import ValidationError

from tests.schedule.jobs.synthetic_oracle import MadeOracle, made_cluster
from wattloop.core.errors import ConfigError
from wattloop.schedule.jobs import JobKind, JobTable
from wattloop.schedule.jobs.attributes import Deadlines, Users
from wattloop.schedule.jobs.kind import JobTemplate
from wattloop.schedule.jobs.spec import Arrivals, PoissonJobs

ORACLE = MadeOracle(made_cluster())
VIT = JobKind("vit", gpus=(1, 2, 4), batches=(32, 64))
ALBERT = JobKind("albert", gpus=(1, 8), batches=(16, 1024))
MADE = PoissonJobs(
    templates=(JobTemplate(VIT, 1e6, 1e6, 3.0), JobTemplate(ALBERT, 1e5, 1e7)),
    arrivals=Arrivals(rate_per_s=0.005, horizon_s=1e6),
    people=Users(count=5),
    deadlines=Deadlines(share=0.1, factor=3.5),
)


def differing(one: JobTable, other: JobTable) -> set[str]:
    names = [f.name for f in fields(JobTable) if isinstance(getattr(one, f.name), np.ndarray)]
    return {n for n in names if not np.array_equal(getattr(one, n), getattr(other, n))}


def test_the_same_seed_gives_the_same_jobs_and_another_seed_others() -> None:
    """Campaigns repeat, and their seeds differ."""
    assert not differing(MADE.table(7, ORACLE), MADE.table(7, ORACLE))
    assert {"arrival_s", "kind"} <= differing(MADE.table(7, ORACLE), MADE.table(8, ORACLE))


@pytest.mark.parametrize(
    ("changed", "columns"),
    [
        ({"deadlines": Deadlines(share=0.1, factor=2.0)}, {"deadline_s"}),
        ({"deadlines": Deadlines(share=0.5, factor=3.5)}, {"deadline_s"}),
        ({"people": Users(count=5, majority=0.5)}, {"user"}),
        ({"priorities": ((0, 0.5), (1, 0.5))}, {"priority"}),
        ({"rigid": True}, {"kind", "deadline_s"}),
        (
            {"arrivals": Arrivals(rate_per_s=0.005, count=4_000, daily=(1, 3))},
            {"arrival_s", "deadline_s"},
        ),
    ],
)
def test_changing_one_aspect_leaves_the_others_as_they_were(changed, columns) -> None:
    """A comparison of two settings is not blurred by other random draws."""
    made = replace(MADE, arrivals=Arrivals(rate_per_s=0.005, count=4_000))
    assert differing(made.table(3, ORACLE), replace(made, **changed).table(3, ORACLE)) == columns


def test_a_longer_workload_begins_with_the_shorter_one() -> None:
    """More hours or jobs extend the earlier ones."""
    short = replace(MADE, arrivals=Arrivals(rate_per_s=0.005, horizon_s=1e5)).table(1, ORACLE)
    counted = replace(MADE, arrivals=Arrivals(rate_per_s=0.005, count=len(short))).table(1, ORACLE)
    long = MADE.table(1, ORACLE)
    assert not differing(short, counted)
    assert np.array_equal(short.work, long.work[: len(short)])
    assert np.array_equal(short.deadline_s, long.deadline_s[: len(short)])


def test_rate_weights_shares_and_deadlines_are_those_asked_for() -> None:
    """5,000 jobs: five standard deviations around each expectation."""
    jobs = MADE.table(0, ORACLE)
    count = len(jobs)
    assert abs(count - 5_000) < 5 * 5_000**0.5
    assert abs(np.mean(jobs.kind == 0) - 0.75) < 5 * (0.1875 / count) ** 0.5
    assert abs(np.mean(jobs.urgent) - 0.1) < 5 * (0.09 / count) ** 0.5
    assert np.abs(np.bincount(jobs.user) / count - 0.2).max() < 5 * (0.16 / count) ** 0.5
    gaps_s = np.diff(jobs.arrival_s)
    assert abs(gaps_s.std() / gaps_s.mean() - 1) < 0.1  # exponential
    assert np.all(jobs.work[jobs.kind == 0] == 1e6)
    drawn = jobs.work[jobs.kind == 1]
    assert 1e5 <= drawn.min() < drawn.max() <= 1e7
    assert abs(np.log10(drawn).mean() - 6) < 5 * 0.58 / len(drawn) ** 0.5


def test_an_urgent_job_is_due_factor_times_its_best_runtime_after_it_came() -> None:
    """The best is over all options: 4 A100 at batch 64 for the ViT."""
    jobs = MADE.table(0, ORACLE)
    urgent = np.flatnonzero(jobs.urgent & (jobs.kind == 0))
    best_s = 1e6 / (200 * 4**0.9 * 64**0.1)
    assert jobs.deadline_s[urgent] == pytest.approx(jobs.arrival_s[urgent] + 3.5 * best_s)


def test_more_urgent_jobs_keep_those_that_were() -> None:
    """A sweep over the share compares the same jobs."""
    few = MADE.table(2, ORACLE).urgent
    many = replace(MADE, deadlines=Deadlines(share=0.3, factor=3.5)).table(2, ORACLE).urgent
    assert many.sum() > few.sum() and np.all(many[few])


def test_the_majority_user_submits_half_of_the_jobs() -> None:
    """Thesis 5.5.2.5."""
    jobs = replace(MADE, people=Users(count=5, majority=0.5)).table(0, ORACLE)
    shares = np.bincount(jobs.user) / len(jobs)
    assert abs(shares[0] - 0.5) < 0.04 and np.abs(shares[1:] - 0.125).max() < 0.03


def test_rigid_jobs_have_one_gpu_count_and_a_batch_that_fits() -> None:
    """ALBERT's batch of 1024 fits no GPU and is never drawn."""
    jobs = replace(MADE, rigid=True).table(0, ORACLE)
    ways = {(kind.model, *kind.gpus, *kind.batches) for kind in jobs.kinds}
    assert ways == {
        *(("vit", gpus, batch) for gpus in (1, 2, 4) for batch in (32, 64)),
        *(("albert", gpus, 16) for gpus in (1, 8)),
    }
    share = np.bincount(jobs.kind, minlength=8) / len(jobs)
    assert share[:6] == pytest.approx(0.125, abs=0.03)


def test_a_kind_that_fits_nowhere_stays_and_has_no_deadline() -> None:
    """Jobs that can never run are reported later, not dropped here."""
    never = JobTemplate(JobKind("huge", batches=(4096,)), 1.0, 1.0)
    made = replace(MADE, templates=(never,), deadlines=Deadlines(share=1.0, factor=2.0), rigid=True)
    jobs = made.table(0, ORACLE)
    assert len(jobs) > 4_000 and jobs.kinds == (never.kind,) and not jobs.urgent.any()


def test_arrivals_follow_the_hours_of_the_day() -> None:
    """Weights 0, 1, 3 of thirds of a day, over ten days, with the mean rate unchanged."""
    arrivals = Arrivals(rate_per_s=0.01, horizon_s=864_000, daily=(0, 1, 3))
    jobs = replace(MADE, arrivals=arrivals).table(5, ORACLE)
    thirds = np.bincount((jobs.arrival_s % 86_400 // 28_800).astype(int), minlength=3)
    assert thirds[0] == 0 and abs(thirds[2] / thirds[1] - 3) < 0.3
    assert abs(len(jobs) - 8_640) < 5 * 8_640**0.5


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rate_per_s": 0.0, "count": 3}, "rate_per_s"),
        ({"rate_per_s": 1.0}, "horizon"),
        ({"rate_per_s": 1e6, "horizon_s": 1e6}, "more than 1e\\+08"),
        ({"rate_per_s": 1.0, "count": 3, "daily": (0, 0)}, "all weights are 0"),
    ],
)
def test_arrivals_that_make_no_sense_are_refused(wrong, said) -> None:
    """Each error says what is wrong."""
    with pytest.raises(ValidationError, match=said):
        Arrivals(**wrong)


def test_templates_without_work_are_refused() -> None:
    """A generator cannot guess how long a training is."""
    with pytest.raises(ConfigError, match="vit: work is missing"):
        PoissonJobs((JobTemplate(VIT),), Arrivals(rate_per_s=1.0, count=1))
    with pytest.raises(ConfigError, match="no template"):
        PoissonJobs((), Arrivals(rate_per_s=1.0, count=1))
