"""Commands as trainings: real processes, followed, paused and ended."""

import sys
import time

import pytest

from tests.tune.small import small_problem
from wattloop.tune.command_bench import CommandBench
from wattloop.tune.progress import Status
from wattloop.tune.segment import Segment, Until

TRAIN = """
import sys, time
width = float(sys.argv[1])
print("loading")
for epoch in range(1, 9):
    time.sleep(0.05)
    print(f"epoch {epoch}: loss={1 / epoch:.3f} accuracy={1 - 1 / (1 + epoch * width):.4f}")
"""


def segment(epochs=None, *, width=1, key="", **options):
    return Segment(
        key=key or f"w{width}/{epochs}",
        candidate=f"w{width}",
        parameters={"width": width},
        until=Until(epochs=epochs),
        **options,
    )


@pytest.fixture
def bench(settings, tmp_path):
    made = []

    def make(program, *arguments, problem=None, **options):
        script = tmp_path / "train.py"
        script.write_text(program)
        command = [sys.executable, str(script), *(arguments or ("{width}",))]
        made.append(
            CommandBench(
                command,
                problem or small_problem(),
                settings,
                folder=tmp_path / "files",
                search_id="s",
                **options,
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_program_is_paused_and_goes_on(bench):
    """Promise: paused at the end of an epoch it does nothing; then it goes on where it was."""
    one = bench(TRAIN)
    first = one.run(segment(2))
    assert (first.status, first.epochs) == (Status.PAUSED, 2)
    assert first.metrics["loss"] == 0.5
    assert [point.epoch for point in first.curve] == [1, 2]
    time.sleep(0.3)
    second = one.run(segment(5))
    assert (second.status, second.epochs) == (Status.PAUSED, 5)
    assert second.time_s < 0.29  # what it slept is not in it
    assert second.curve[0].energy_j > first.curve[-1].energy_j
    last = one.run(segment())
    assert (last.status, last.epochs) == (Status.ENDED, 8)
