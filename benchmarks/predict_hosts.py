"""Speeds of the hosts that the suite's steps were measured on, relative to the twelve networks'.

Steps that wait for the host take as long as the host does, and every sitting of the suite had
another one. Its speed is one number, as from a probe. A fit that has steps of a sitting
finds it by itself; this is for constants that saw the twelve networks alone.
"""

from collections.abc import Sequence

from predict_fits import at_host_speed
from predict_points import Measured
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.model import MeasuredStep

__all__ = ["moved_points"]


def moved_points(fitted: KernelModel, own: Sequence[Measured]) -> list[MeasuredStep]:
    """Return the suite's points at the speed of their hosts, sitting by sitting, in their order."""
    found: dict[int, MeasuredStep] = {}
    for sitting in dict.fromkeys(m.sitting for m in own):
        numbers = [n for n, m in enumerate(own) if m.sitting == sitting]
        found |= dict(
            zip(numbers, at_host_speed(fitted, [own[n].point for n in numbers]), strict=True)
        )
    return [found[n] for n in range(len(own))]
