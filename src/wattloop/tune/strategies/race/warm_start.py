"""Memory of a race about a job, for the next run of the same job."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wattloop.core.records import from_plain, to_plain
from wattloop.tune.segment import Value
from wattloop.tune.space import configuration_key
from wattloop.tune.strategies.race.runner import Runner


@dataclass(slots=True)
class WarmStart:
    """Trainings of each configuration, merged into at most two: one that reached the target, and
    the most advanced of the others.
    """

    reached: dict[str, Runner] = field(default_factory=dict)
    short: dict[str, Runner] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.reached)

    def add(self, runners: Iterable[tuple[Mapping[str, Value], Runner]]) -> None:
        for configuration, runner in runners:
            key = configuration_key(configuration)
            if runner.reached is not None:
                known = self.reached.get(key)
                self.reached[key] = runner if known is None else _folded(known, runner)
            elif runner.points or runner.epoch is not None:
                other = self.short.get(key)
                if other is None or runner.epochs >= other.epochs:
                    self.short[key] = runner

    def of(self, configuration: Mapping[str, Value]) -> list[Runner]:
        """Return the trainings of a configuration, those that reached the target first."""
        key = configuration_key(configuration)
        return [found[key] for found in (self.reached, self.short) if key in found]

    def to_dict(self) -> dict[str, Any]:
        return to_plain(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "WarmStart":
        return from_plain(cls, data)


def _folded(known: Runner, new: Runner) -> Runner:
    """Merge by the geometric mean of the epochs; curve, cap and levers are those of the new one."""
    assert known.reached is not None
    assert new.reached is not None
    count = known.trainings + 1
    mean, latest = math.log(known.reached), math.log(new.reached)
    new.trainings = count
    new.spread2 = known.spread2 + (latest - mean) ** 2 * known.trainings / count
    new.reached = math.exp(mean + (latest - mean) / count)
    new.capped.add(known.capped)
    new.uncapped.add(known.uncapped)
    return new
