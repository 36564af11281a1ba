"""A small search: a strategy that halves, a problem, and a training that needs no library."""

import time
from dataclasses import dataclass, field

from wattloop.tune.search_problem import Limits, Problem, Quality
from wattloop.tune.segment import Segment, Until
from wattloop.tune.space import Choice, Space
from wattloop.tune.strategies.base import WAIT, Chosen, Strategy


def small_problem(target=None, limits=None, widths=(1, 2, 4)):
    return Problem(
        space=Space({"width": Choice(values=tuple(widths))}),
        quality=Quality(metric="accuracy", target=target),
        default={"width": widths[0]},
        limits=limits or Limits(),
        seed=3,
    )


class Halving(Strategy):
    """Every configuration for two epochs, the better half for four, the best to six."""

    def __init__(self, problem, rounds=(2, 4, 6)):
        super().__init__(problem)
        self.rounds = list(rounds)
        self.field = [f"w{c['width']}" for c in problem.space.grid()]
        self.params = {f"w{c['width']}": c for c in problem.space.grid()}
        self.number, self.queue, self.told = 0, list(self.field), {}
        self.waiting = set()

    def ask(self):
        if self.queue:
            name = self.queue.pop(0)
            self.waiting.add(name)
            epochs = self.rounds[self.number]
            return Segment(
                key=f"{name}/{epochs}",
                candidate=name,
                parameters=self.params[name],
                until=Until(epochs=epochs),
                seed=self.problem.seed,
            )
        return WAIT if self.waiting else None

    def tell(self, segment, progress):
        self.waiting.discard(segment.candidate)
        self.told[segment.candidate] = progress
        if progress.status.alive is False:
            self.field.remove(segment.candidate)
        if self.waiting or self.queue:
            return
        self.number += 1
        good = [name for name in self.field if self.told[name].best is not None]
        good.sort(key=lambda name: -self.told[name].best)
        self.field = good[: max(1, len(good) // 2)]
        self.queue = list(self.field) if self.number < len(self.rounds) else []

    def alive(self):
        return frozenset(self.field)

    def best(self):
        if not self.field or self.field[0] not in self.told:
            return None
        return Chosen(candidate=self.field[0], parameters=self.params[self.field[0]])


@dataclass
class Trainings:
    """A training function that remembers what it was made to do."""

    epochs: list = field(default_factory=list)
    ended: list = field(default_factory=list)
    sleep_s: float = 0.0

    def __call__(self, trial):
        try:
            for epoch in trial.epochs(8):
                self.epochs.append((trial["width"], epoch))
                if self.sleep_s:
                    time.sleep(self.sleep_s)
                trial.report(accuracy=1 - 1 / (1 + (epoch + 1) * trial["width"]), loss=0.1)
        finally:
            self.ended.append(trial["width"])
