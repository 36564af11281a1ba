"""Promise: each policy ranks and places by its formula in the thesis, computed by hand.

Two GPUs. Job 0 has both until 100 s. Job 1 comes at 10 s and takes 100 s at 600 W, job 2 comes at
80 s and takes 50 s at 600 W; each needs both GPUs. At 100 s one of them is chosen.
"""

import pytest

from tests.schedule.policies.by_hand import Job, starts

PAIR = {"pair": [(2, 0.5, 600.0)]}
JOBS = (Job("pair", 0, 200), Job("pair", 10, 200, user=1), Job("pair", 80, 100))
JOB_1_FIRST = [(0, 0.0, 2), (1, 100.0, 2), (2, 200.0, 2)]
JOB_2_FIRST = [(0, 0.0, 2), (2, 100.0, 2), (1, 150.0, 2)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fifo", JOB_1_FIRST),
        ("backfill", JOB_1_FIRST),
        # T: 100 s against 50 s
        ("sjf", JOB_2_FIRST),
        # T - W (now - A): 100 - 1 x 90 = 10 against 50 - 1 x 20 = 30
        ("pollux", JOB_1_FIRST),
        # 100 - 0.5 x 90 = 55 against 50 - 0.5 x 20 = 40
        ("pollux{age_weight: 0.5}", JOB_2_FIRST),
        ("chronos", JOB_1_FIRST),
        # T (C + 1): user 0 has had 2 x 100 GPU s, user 1 none: 100 x 1 against 50 x 201
        ("themis", JOB_1_FIRST),
        # T / (C + 1): 100 / 1 against 50 / 201
        ("themis-as-printed", JOB_2_FIRST),
        # P T^2 / (1 + W (now - A)): 6e6 / (1 + 90 / 600) against 1.5e6 / (1 + 20 / 600)
        ("zeus", JOB_2_FIRST),
        # 6e6 / (1 + 90) = 65,934 against 1.5e6 / (1 + 20) = 71,429
        ("zeus{age_weight_per_s: 1}", JOB_1_FIRST),
        # P T^2 (C + 1): 6e6 x 1 against 1.5e6 x 201
        ("hades", JOB_1_FIRST),
        # P T^2 / (C + 1): 6e6 / 1 against 1.5e6 / 201
        ("hades-as-printed", JOB_2_FIRST),
    ],
)
def test_who_starts_when(policy: str, expected: list[tuple[int, float, int]]) -> None:
    """The formula stands next to each case."""
    assert starts(policy, PAIR, JOBS) == expected


@pytest.mark.parametrize(
    ("policy", "gpus"),
    # 100 s at 300 W on one GPU, 80 s at 600 W on two: T 100 > 80, but P T^2 3.0e6 < 3.84e6
    [("fifo", 2), ("sjf", 2), ("pollux", 2), ("chronos", 2), ("themis", 2), ("zeus", 1),
     ("hades", 1), ("hades-as-printed", 1)],
)  # fmt: skip
def test_who_takes_how_many_gpus(policy: str, gpus: int) -> None:
    """Policies of time take the faster placement, and policies of energy the one of least EDP."""
    tables = {"malleable": [(1, 1.0, 300.0), (2, 0.8, 600.0)]}
    assert starts(policy, tables, [Job("malleable", 0, 100)]) == [(0, 0.0, gpus)]


def test_sjf_ranks_by_machines_it_cannot_have_now_and_pollux_by_those_it_can() -> None:
    """A job's length: SJF takes its fastest placement anywhere, Pollux the fastest that is free.

    Job 0 has one GPU until 100 s. Jobs 1 and 2 wait for the other, which job 3 leaves at 50 s. On
    two GPUs job 1 would take 20 s, on one 90 s; job 2 takes 40 s on one and nothing else.
    """
    tables = {
        "solo": [(1, 1.0, 300.0)],
        "wide": [(1, 0.9, 300.0), (2, 0.2, 600.0)],
        "narrow": [(1, 0.4, 300.0)],
    }
    first = [Job("solo", 0, 100), Job("solo", 0, 50)]
    jobs = [*first, Job("wide", 1, 100), Job("narrow", 1, 100)]
    assert starts("sjf", tables, jobs)[2:] == [(2, 50.0, 1), (3, 100.0, 1)]
    assert starts("pollux", tables, jobs)[2:] == [(3, 50.0, 1), (2, 90.0, 1)]


def test_chronos_puts_deadlines_before_everything_and_least_slack_first() -> None:
    """Tier 0 by slack: D - (now + T) at 100 s is 300 - 200 = 100 s against 240 - 150 = 90 s."""
    late = [JOBS[0], JOBS[1]._replace(deadline_s=300), JOBS[2]._replace(deadline_s=240)]
    assert starts("chronos", PAIR, late) == JOB_2_FIRST
    only_1 = [JOBS[0], JOBS[1]._replace(deadline_s=1e9), JOBS[2]]
    assert starts("chronos{age_weight: 0}", PAIR, JOBS) == JOB_2_FIRST
    assert starts("chronos{age_weight: 0}", PAIR, only_1) == JOB_1_FIRST


def test_no_score_outweighs_a_tier() -> None:
    """A job that has aged by 1e18 s of score still waits for one with a deadline a day away."""
    jobs = [JOBS[0], JOBS[1], JOBS[2]._replace(deadline_s=86_400.0)]
    assert starts("chronos{age_weight: 1e16}", PAIR, jobs) == JOB_2_FIRST


@pytest.mark.parametrize("policy", ["sjf", "pollux", "themis", "chronos", "zeus", "hades"])
@pytest.mark.parametrize(("first", "expected"), [(1, JOB_1_FIRST), (2, JOB_2_FIRST)])
def test_priority_goes_before_tier_and_score(
    policy: str, first: int, expected: list[tuple[int, float, int]]
) -> None:
    """Priority exceeds any formula, and even a deadline."""
    jobs = [job._replace(priority=int(n == first)) for n, job in enumerate(JOBS)]
    jobs[3 - first] = jobs[3 - first]._replace(deadline_s=250.0)
    assert starts(policy, PAIR, jobs) == expected


def test_equal_scores_go_in_order_of_arrival() -> None:
    """Their rows in the queue do not matter."""
    jobs = [Job("pair", 0, 200), *[Job("pair", 10, 100)] * 5]
    assert [job for job, _, _ in starts("zeus", PAIR, jobs)] == [0, 1, 2, 3, 4, 5]


def test_the_rigid_are_jobs_with_one_option() -> None:
    """No flag of the policy decides: Pollux waits for two GPUs where a job has no other option."""
    tables = {"solo": [(1, 1.0, 300.0)], "rigid": [(2, 0.5, 600.0)],
              "malleable": [(1, 1.0, 300.0), (2, 0.5, 600.0)]}  # fmt: skip
    jobs = [Job("solo", 0, 100), Job("rigid", 1, 100)]
    assert starts("pollux", tables, jobs) == [(0, 0.0, 1), (1, 100.0, 2)]
    jobs[1] = jobs[1]._replace(kind="malleable")
    assert starts("pollux", tables, jobs) == [(0, 0.0, 1), (1, 1.0, 1)]
