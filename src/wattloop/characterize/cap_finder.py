"""The best power cap with few probes: ask for a cap, tell what it took, until nothing is asked.

finder = CapFinder([100, 125, 150, 175, 200, 225, 250], metric="edp")
while (cap_w := finder.ask()) is not None:
    finder.tell(cap_w, *measure_at(cap_w))  # time in s, energy in J
finder.best().cap_w

Reads no clock and touches no device; the same readings always give the same answers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wattloop.analyze.metrics import METRICS, Point, objective
from wattloop.characterize.cap_belief import Belief, Reading, believe
from wattloop.characterize.cap_choice import Choice
from wattloop.characterize.cap_choice import choose as chosen
from wattloop.characterize.cap_prior import CurveFamily, physical_curves
from wattloop.characterize.cap_probe import further_probe, next_probe
from wattloop.characterize.cap_stop import (
    CERTAINTY,
    FEWEST,
    USUAL,
    enough,
    most_allowed,
    spent,
    why_on,
)
from wattloop.core.errors import ConfigError

__all__ = ["FINDER_METRICS", "CapFinder", "Choice", "Probe"]

FINDER_METRICS = tuple(name for name in METRICS if name not in ("time", "power"))
"""Time and power alone have their best cap at an end."""
NOISE = 0.01


@dataclass(frozen=True, slots=True)
class Probe:
    """What one cap took.

    Attributes:
        time_s: for a fixed piece of work, the same at every cap (a run, a step).
        energy_j: of all devices under the cap together.
        noise: relative standard deviation of both.
    """

    cap_w: float
    time_s: float
    energy_j: float
    noise: float


class CapFinder:
    """Finds the cap that makes a metric smallest.

    Args:
        caps_w: caps that may be set, per device; the highest is the reference.
        metric: `energy`, `edp`, `ed2p`, `eds` or `gain_minus_loss`.
        k: of EDS.
        noise: relative standard deviation of a reading of time or of power, where `tell` does not
            say.
        devices: how many devices share the energy, each under the same cap.
        most_probes: never more than this, the reference included, nor more than there are caps.
            Unless given four, and more where noisy readings make them worth it (`cap_stop`).
        certainty: stop when the choice is within 2% of the best cap with this probability.

    Raises:
        ConfigError: fewer than two caps, one that is no positive number, unknown metric, or `k`
            not above 1.
    """

    def __init__(
        self,
        caps_w: Sequence[float],
        metric: str = "eds",
        k: float = 2.0,
        *,
        noise: float = NOISE,
        devices: int = 1,
        most_probes: int | None = None,
        certainty: float = CERTAINTY,
    ) -> None:
        if not all(math.isfinite(cap) and cap > 0 for cap in caps_w):
            raise ConfigError(f"caps {list(caps_w)}: every cap is a number of watts above 0")
        self.caps_w = sorted({float(cap) for cap in caps_w})
        if len(self.caps_w) < 2:
            raise ConfigError(f"caps {list(caps_w)}: give at least two different ones")
        objective(metric, Point(1.0, 1.0), k)  # refuses an unknown metric
        if metric not in FINDER_METRICS:
            raise ConfigError(
                f"metric '{metric}' needs no finder: its best cap is the highest or the lowest; "
                f"use one of {', '.join(FINDER_METRICS)}"
            )
        if not (math.isfinite(noise) and 0 <= noise < 0.5):
            raise ConfigError(f"noise is {noise:g}; give a share between 0 and 0.5")
        if not 0 < certainty <= 1:
            raise ConfigError(f"certainty is {certainty:g}; give a probability up to 1")
        if (most_probes is not None and most_probes < 1) or devices < 1:
            raise ConfigError("a cap finder needs at least one probe and one device")
        self.metric, self.k, self.noise, self.devices = metric, k, noise, devices
        self.most_probes, self.certainty = most_probes, certainty
        self.probes: list[Probe] = []
        self._belief: Belief | None = None
        self._why = ""
        self.why_on = ""
        """Why the cap that was last asked for is one more than the usual four."""

    @property
    def reference_w(self) -> float:
        """The highest cap: what others are compared with."""
        return self.caps_w[-1]

    def ask(self) -> float | None:
        """The cap to try next; None when enough is known. Asking twice changes nothing."""
        if not any(probe.cap_w == self.reference_w for probe in self.probes):
            return self.reference_w
        if len(self.probes) >= self.limit:
            self._why = spent(len(self.caps_w), self.most_probes, len(self.probes))
            return None
        choice = self.best()
        if choice.flat:
            self._why = "no cap changes anything"
            return None
        if len(self.probes) >= FEWEST and choice.certainty >= self.certainty:
            self._why = f"within 2% of the best cap with {100 * choice.certainty:.0f}% certainty"
            return None
        index = self._next() if len(self.probes) < USUAL else self._further(choice)
        return None if index is None else self.caps_w[index]

    @property
    def limit(self) -> int:
        """Probes at most, as far as the noise is known by now."""
        return most_allowed(len(self.caps_w), self.most_probes, self._largest_noise)

    def tell(
        self, cap_w: float, time_s: float, energy_j: float, noise: float | None = None
    ) -> None:
        """What one cap took; a cap may be told several times.

        Raises:
            ConfigError: not one of the caps, not positive numbers, or a noise below 0.
        """
        if float(cap_w) not in self.caps_w:
            known = ", ".join(f"{cap:g}" for cap in self.caps_w)
            raise ConfigError(f"{cap_w:g} W is none of the caps of this search ({known})")
        for name, value in (("time", time_s), ("energy", energy_j)):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} at {cap_w:g} W is {value:g}; it must be above 0")
        own = self.noise if noise is None else noise
        if not (math.isfinite(own) and own >= 0):
            raise ConfigError(f"noise at {cap_w:g} W is {own:g}; it must be a share from 0")
        self.probes.append(Probe(float(cap_w), float(time_s), float(energy_j), float(own)))
        self._belief, self._why, self.why_on = None, "", ""

    def best(self) -> Choice:
        """The best cap as far as known, with its gains against the reference.

        Raises:
            ConfigError: nothing was told yet.
        """
        return chosen(self.belief, self.caps_w, self.metric, self.k, len(self.probes), self._why)

    @property
    def belief(self) -> Belief:
        """What is believed of the curve."""
        if not self.probes:
            raise ConfigError("nothing was tried yet: tell the finder what a cap took")
        if self._belief is None:
            readings = [
                Reading(
                    self.caps_w.index(p.cap_w),
                    math.log(p.time_s),
                    math.log(p.energy_j / p.time_s / self.devices),
                    p.noise,
                )
                for p in self.probes
            ]
            self._belief = believe(self.family(), np.array(self.caps_w), readings)
        return self._belief

    def family(self) -> CurveFamily:
        """The curves that are possible before anything is told."""
        return physical_curves()

    @property
    def _largest_noise(self) -> float:
        return max((probe.noise for probe in self.probes), default=self.noise)

    def _looked_at(self) -> tuple[Belief, set[int], str, float, float, int]:
        tried = {self.caps_w.index(probe.cap_w) for probe in self.probes}
        seed = len(self.probes)
        return self.belief, tried, self.metric, self.k, self._largest_noise, seed

    def _next(self) -> int | None:
        index = next_probe(*self._looked_at())
        if index is None:
            self._why = "every cap was tried"
        return index

    def _further(self, choice: Choice) -> int | None:
        further = further_probe(*self._looked_at())
        self._why = enough(choice, further, self._largest_noise)
        if self._why or further is None:
            return None
        self.why_on = why_on(choice, self._largest_noise)
        return further.cap

    def to_dict(self) -> dict[str, Any]:
        """Everything that `from_dict` needs, as plain data for JSON."""
        return {
            "caps_w": self.caps_w,
            "metric": self.metric,
            "k": self.k,
            "noise": self.noise,
            "devices": self.devices,
            "most_probes": self.most_probes,
            "certainty": self.certainty,
            "probes": [asdict(probe) for probe in self.probes],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "CapFinder":
        """A finder that goes on where the other was."""
        options = {name: value for name, value in data.items() if name != "probes"}
        finder = cls(**options)
        for probe in data["probes"]:
            finder.tell(**probe)
        return finder
