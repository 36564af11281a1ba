"""Promise: a running job can move to other GPUs or another batch, at a stated cost."""

import pytest

from tests.schedule.engine.scripted import Scripted
from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.core.errors import ImpossibleAction
from wattloop.schedule.actions import Preempt, Resize, Start
from wattloop.schedule.engine import EngineSettings, Keeps, Preemption, Simulation, SimulationResult
from wattloop.schedule.engine.event_log import EventKind
from wattloop.schedule.jobs import JobKind
from wattloop.schedule.metrics.curves import gpu_allocations

SIZES = JobKind("toy", gpus=(1, 2, 4))
"""Option 0: one GPU, 1 s a sample; option 1: two, 0.5 s; option 2: four."""


def run(
    script: dict[float, list[object]], resize_s: float | None = 3.0, work: float = 40
) -> SimulationResult:
    cluster = small_cluster()
    rules = Preemption(Keeps.NOTHING, resize_s=resize_s)
    return Simulation(
        cluster,
        jobs_of([(0, work)], kind=SIZES),
        Scripted(script),
        truth=PlainOracle(cluster),
        settings=EngineSettings(checks=True, strict=True, preemption=rules),
    ).run()


def test_a_job_goes_on_from_where_it_was_on_more_gpus() -> None:
    """10 of 40 samples on one GPU, 3 s for the move, 30 on two GPUs in 15 s."""
    result = run({0.0: [Start(0, 0)], 10.0: [Resize(0, 1)]})
    assert result.finished_s.tolist() == [28.0]
    assert result.energy_j.tolist() == pytest.approx([10 * 300 + 18 * 600])
    assert result.wasted_j.tolist() == pytest.approx([3 * 600])
    assert result.resizes.tolist() == [1]
    assert result.preemptions.tolist() == [0]
    assert [event.detail for event in result.log if event.what is EventKind.RESIZE] == [1]


def test_only_whole_iterations_are_kept() -> None:
    """At 10.5 s half a sample of the eleventh iteration is lost, with its energy."""
    result = run({0.0: [Start(0, 0)], 10.5: [Resize(0, 1)]})
    assert result.finished_s.tolist() == [10.5 + 3 + 15]
    assert result.wasted_j.tolist() == pytest.approx([0.5 * 300 + 3 * 600])


def test_a_stop_after_a_resize_falls_back_to_its_checkpoint() -> None:
    """Stopped jobs lose all work here, but the resize at 10 s wrote a checkpoint."""
    script = {0.0: [Start(0, 0)], 10.0: [Resize(0, 1)], 20.0: [Preempt(0)], 30.0: [Start(0, 0)]}
    result = run(script)
    assert result.finished_s.tolist() == [60.0]


def test_allocations_show_both_placements() -> None:
    cluster = small_cluster()
    result = run({0.0: [Start(0, 0)], 10.0: [Resize(0, 1)]})
    found = gpu_allocations(result, PlainOracle(cluster))
    assert [(each.begin_s, each.end_s, each.end) for each in found] == [
        (0.0, 10.0, "resized"),
        (10.0, 28.0, "finished"),
        (10.0, 28.0, "finished"),
    ]


@pytest.mark.parametrize(
    ("script", "resize_s", "why"),
    [
        ({0.0: [Start(0, 0)], 5.0: [Resize(0, 1)]}, None, "cannot be resized here"),
        ({0.0: [Start(0, 0)], 5.0: [Resize(0, 2)]}, 3.0, "GPUs of option 2 are not free"),
        ({0.0: [Start(0, 0)], 5.0: [Resize(0, 0)]}, 3.0, "by its cap at most"),
        ({0.0: [Start(0, 0)], 5.0: [Resize(0, 7)]}, 3.0, "has 3 options"),
        ({0.0: [Resize(0, 1)]}, 3.0, "does not run"),
    ],
)
def test_an_impossible_resize_is_refused(
    script: dict[float, list[object]], resize_s: float | None, why: str
) -> None:
    with pytest.raises(ImpossibleAction, match=why):
        run(script, resize_s)
