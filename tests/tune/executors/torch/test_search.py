"""sm2 on torch trainings, through the store, cut and resumed."""

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="trainings in PyTorch need torch")

from tests.tune.executors.torch.test_executor import Sensor, training  # noqa: E402 - after the check for torch

from wattloop.store.experiments import read_trials  # noqa: E402 - after the skip
from wattloop.tune.executors.torch.executor import TorchExecutor  # noqa: E402 - after the skip
from wattloop.tune.search_loop import Search  # noqa: E402 - after the skip
from wattloop.tune.search_problem import Limits, Problem, Quality  # noqa: E402 - after the skip
from wattloop.tune.search_store import SearchRecord, open_search  # noqa: E402 - after the skip
from wattloop.tune.space import (  # noqa: E402 - after the skip
    Choice,
    Real,
    Space,
)
from wattloop.tune.strategies.sm2.sm2 import Sm2  # noqa: E402 - after the skip

PROBLEM = Problem(
    space=Space(
        {
            "batch_size": Choice(values=(16, 32, 64, 128)),
            "learning_rate": Real(low=1e-3, high=1.0, log=True),
        }
    ),
    quality=Quality(metric="accuracy"),
    limits=Limits(epochs=6),
    rate="learning_rate",
)


class Killed(BaseException):
    """As a signal would end the process."""


class Cut(TorchExecutor):
    """Dies before a segment."""

    left = 10**9

    def run(self, segment):
        if not self.left:
            raise Killed
        self.left -= 1
        return super().run(segment)


class Steady(Sensor):
    """Energy that does not depend on how busy the machine is."""

    def between(self, begin_s, end_s):
        return super().between(0.0, 1.0)


def searched(store, folder, name: str, left: int = 10**9):
    experiment, _ = open_search(store, {"name": name}, name)
    record = SearchRecord(store, experiment)
    bench = Cut(training(), PROBLEM.quality, energy=Steady(), checkpoints=folder)
    bench.left = left
    strategy = Sm2(PROBLEM, epochs=2, last_epochs=2, rates=6, alpha=1.0)
    with contextlib.suppress(Killed):
        Search(record, PROBLEM, strategy, bench).run()
    trials = read_trials(store, record.search_id)
    return strategy, {t.key: t.outcome["quality"] for t in trials if t.outcome}


def test_a_search_that_is_cut_ends_as_if_it_had_not_been(store, tmp_path) -> None:
    """Promise: after a kill at any segment sm2 continues with the same models, and pays once."""
    whole, qualities = searched(store, tmp_path / "whole", "whole")
    assert len(qualities) >= 9
    for left in (1, 5, 7):
        _, first = searched(store, tmp_path / f"cut{left}", f"cut{left}", left)
        assert len(first) == left
        again, both = searched(store, tmp_path / f"cut{left}", f"cut{left}")
        assert both.keys() == qualities.keys()
        assert both == qualities
        assert again.best() == whole.best()
