"""Speeds of the hosts that the suite's steps were measured on, relative to the twelve networks'.

Steps that wait for the host take as long as the host does, and every sitting of the suite had
another one. Its speed is one number, as a probe would tell it. It is found with constants that
never saw the network to be judged: those of one half of the networks for judging the other half.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from predict_points import Measured
from wattloop.predict.calibrate.fit_steps import at_host_speed
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.model import Point

__all__ = ["Hosts", "moved_points"]


@dataclass(frozen=True)
class Hosts:
    """Group of the judged network -> the suite's points, each at its host's speed."""

    points: Mapping[str, Sequence[Point]]

    @classmethod
    def of(
        cls, model: KernelModel, measured: Sequence[Measured], own: Sequence[Measured]
    ) -> "Hosts":
        """By `model`, fitted to every other network in turn of the alphabet."""
        groups = sorted({m.point.group for m in measured})
        points: dict[str, Sequence[Point]] = {}
        for half in (groups[::2], groups[1::2]):
            others = [m.point for m in measured if m.point.group not in half]
            moved = moved_points(model.fit(others), own) if others and own else []
            points |= dict.fromkeys(half, moved)
        return cls(points)


def moved_points(fitted: KernelModel, own: Sequence[Measured]) -> list[Point]:
    """The suite's points at the speed of their hosts, sitting by sitting, in their order."""
    found: dict[int, Point] = {}
    for sitting in dict.fromkeys(m.sitting for m in own):
        numbers = [n for n, m in enumerate(own) if m.sitting == sitting]
        found |= dict(
            zip(numbers, at_host_speed(fitted, [own[n].point for n in numbers]), strict=True)
        )
    return [found[n] for n in range(len(own))]
