"""The best power cap with few probes: the next probe, the stop rule, and the choice."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wattloop.accounting.energy_delay import METRICS, Point, objective
from wattloop.cap.curve_model import (
    Array,
    CapReading,
    CurveFamily,
    CurveSurrogate,
    fit_curves,
    physical_curves,
)
from wattloop.core.errors import ConfigError

CLOSE = 0.02
FLAT = 0.07
FLAT_CERTAINTY = 0.75
"""The curve is flat when with this certainty no cap changes power by more than FLAT."""


@dataclass(frozen=True, slots=True)
class GainInterval:
    """A value with the bounds between which it lies in nine of ten cases."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f} ({self.low:.1f} to {self.high:.1f})"


@dataclass(frozen=True, slots=True)
class CapChoice:
    """The cap that was found.

    Attributes:
        energy_gain_pct, time_loss_pct: against the highest cap, of all devices under the cap.
        expected_regret_pct: how much worse than the best cap it is expected to be.
        certainty: probability that it is within 2% of the best cap.
        flat: whether no cap changes anything; then the lowest is taken.
        why: why no more were asked for; empty while more would help.
        unfinished: whether the work ended while more were asked for; then it is the best so far.
    """

    cap_w: float
    energy_gain_pct: GainInterval
    time_loss_pct: GainInterval
    metric_gain_pct: GainInterval
    expected_regret_pct: float
    certainty: float
    flat: bool
    probes: int
    why: str = ""
    unfinished: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def choose(
    belief: CurveSurrogate, caps_w: Sequence[float], metric: str, k: float, probes: int, why: str
) -> CapChoice:
    """The cap with the smallest expected loss; the lowest where the curve is flat."""
    table = regrets(belief.sampled_time, belief.sampled_power, metric, k)
    change = belief.log_power - belief.log_power[:, -1:]
    # At or above the highest cap a constant power only says that the card takes caps lightly.
    below = belief.log_power[:, -1] < np.log(caps_w[-1])
    flat = float(((np.abs(change).max(axis=1) < FLAT) & below).mean()) > FLAT_CERTAINTY
    index = 0 if flat else int(np.argmin(table.mean(axis=0)))
    time = belief.sampled_time[:, index] - belief.sampled_time[:, -1]
    energy = time + belief.sampled_power[:, index] - belief.sampled_power[:, -1]
    metrics = log_metric(belief.sampled_time, belief.sampled_power, metric, k)
    own = metrics[:, index] - metrics[:, -1]
    return CapChoice(
        cap_w=caps_w[index],
        energy_gain_pct=_interval(-100 * np.expm1(energy)),
        time_loss_pct=_interval(100 * np.expm1(time)),
        metric_gain_pct=_interval(-100 * np.expm1(own)),
        expected_regret_pct=100 * float(table[:, index].mean()),
        certainty=float((table[:, index] <= CLOSE).mean()),
        flat=flat,
        probes=probes,
        why=why,
    )


def log_metric(log_time: Array, log_power: Array, metric: str, k: float) -> Array:
    """Logarithm of the metric per curve (rows) and cap; the last cap is the reference."""
    energy = log_time + log_power
    powers = {"energy": 0.0, "edp": 1.0, "ed2p": 2.0}
    if metric in powers:
        return energy + powers[metric] * log_time
    # Gain minus loss is 2 (1 - EDS(2)), so both have the same best cap.
    alpha = (k - 1) / k if metric == "eds" else 0.5
    relative_energy = np.exp(energy - energy[:, -1:])
    relative_time = np.exp(log_time - log_time[:, -1:])
    summed: Array = np.log(alpha * relative_energy + (1 - alpha) * relative_time)
    return summed


def regrets(log_time: Array, log_power: Array, metric: str, k: float) -> Array:
    """Return how much worse than its best each curve is at each cap: 0.02 is 2%."""
    values = log_metric(log_time, log_power, metric, k)
    worse: Array = np.expm1(values - values.min(axis=1, keepdims=True))
    return worse


def _interval(values: Array) -> GainInterval:
    low, high = np.quantile(values, (0.05, 0.95))
    return GainInterval(float(values.mean()), float(low), float(high))


OUTCOMES = 48
"""Outcomes of a probe that are looked at."""
MORE_OUTCOMES = 200
"""The same where the figure itself decides, not only which cap has the smallest."""
BANDWIDTH = 0.2
"""Curves within this part of the spread of outcomes explain an outcome, even without noise."""
HOPE = 1.0
"""Weight of the chance that the cap itself turns out the best so far."""


class FurtherProbe(NamedTuple):
    """One more probe: index of the cap, and by how much it is expected to lower the regret."""

    cap: int
    gain: float


class _Outlook(NamedTuple):
    cap: int
    after: float
    """Expected regret of the choice after a reading there."""
    improvement: float
    """Expected gain over the best cap tried so far if this one is taken."""


def next_probe(
    belief: CurveSurrogate, tried: Collection[int], metric: str, k: float, noise: float, seed: int
) -> int | None:
    """Index of the cap to try; None when every cap was tried and trying again teaches nothing."""
    ahead = _outlooks(belief, tried, metric, k, noise, seed, OUTCOMES)
    best = min(ahead, key=lambda x: x.after - HOPE * x.improvement, default=None)
    return None if best is None else best.cap


def further_probe(
    belief: CurveSurrogate, tried: Collection[int], metric: str, k: float, noise: float, seed: int
) -> FurtherProbe | None:
    """Return the best further probe, also of a cap that was tried; None if nothing is to learn."""
    ahead = _outlooks(belief, tried, metric, k, noise, seed, MORE_OUTCOMES)
    best = min(ahead, key=lambda x: x.after, default=None)
    if best is None:
        return None
    now = regrets(belief.sampled_time, belief.sampled_power, metric, k).mean(axis=0).min()
    return FurtherProbe(best.cap, float(now) - best.after)


def _outlooks(
    belief: CurveSurrogate,
    tried: Collection[int],
    metric: str,
    k: float,
    noise: float,
    seed: int,
    outcomes: int,
) -> Iterator[_Outlook]:
    draw = np.random.default_rng(seed)
    # Single precision is plenty here, and twice as fast.
    time: npt.NDArray[Any] = belief.sampled_time.astype(np.float32)
    power: npt.NDArray[Any] = belief.sampled_power.astype(np.float32)
    table = regrets(time, power, metric, k)
    so_far = table[:, sorted(tried)].min(axis=1)
    for cap in range(time.shape[1]):
        if cap in tried and noise <= 1e-3:
            continue
        error = np.zeros((outcomes, len(time)), dtype=np.float32)
        for values in (time[:, cap], power[:, cap]):
            seen = values[:outcomes] + noise * draw.standard_normal(outcomes, dtype=np.float32)
            width = noise**2 + (BANDWIDTH * values.std()) ** 2 + 1e-6
            error = error + (seen[:, None] - values[None, :]) ** 2 / width
        weights = np.exp(-0.5 * (error - error.min(axis=1, keepdims=True)))
        weights /= weights.sum(axis=1, keepdims=True)
        after = float((weights @ table).min(axis=1).mean())
        yield _Outlook(cap, after, float(np.maximum(so_far - table[:, cap], 0.0).mean()))


# When a search for a cap has read enough.
#
# Where readings are exact, four probes are. Where they are further off than the 2% that the choice
# is to be within, another probe is weighed: it has to lower the expected regret by its price.

USUAL = 4
"""Probes that do for exact readings, the reference included."""
FEWEST = 3
"""Fewer only where no cap changes anything."""
CERTAINTY = 0.9999
"""With this probability to be within 2% of the best cap, more probes would not pay. Real curves
deviate more than is believed: on measured ones 0.98 was right nine times in ten."""
NOISY = CLOSE
"""One reading that is off by more than this does not tell which caps are within 2%. As people are
shown it: two runs that are stated 2% apart stay so with the small error of the energy."""
ENOUGH = CLOSE / 2
"""Expected regret at which the search ends: half of what is allowed, so that most are within."""
PRICE = 0.001
"""A further probe is to lower the expected regret by so much: that repays a probe whose work is
thrown away in a job of a thousand times its length."""


def most_allowed(caps: int, asked: int | None, noise: float) -> int:
    """Return the most probes: `asked`, else the usual number; with noisy readings one per cap."""
    if asked is not None:
        return min(asked, caps)
    return caps if round(noise, 3) > NOISY else min(USUAL, caps)


def format_limit_reached(caps: int, asked: int | None, probes: int) -> str:
    """Why a search that has made so many probes may make no more."""
    if asked is not None and probes >= asked:
        return f"{asked} {'was' if asked == 1 else 'were'} allowed"
    if probes >= caps:
        return "as many as there are caps"
    return f"the usual number where readings are within {100 * NOISY:g}%"


def stop_reason(choice: CapChoice, further: FurtherProbe | None, noise: float) -> str:
    """After the usual probes: why another would not pay; empty where it does."""
    if choice.expected_regret_pct <= 100 * ENOUGH:
        return f"expected within {100 * ENOUGH:g}% of the best cap"
    if further is None or further.gain < PRICE:
        return f"another probe, with an error of {_per_cent(noise)}, would hardly change the choice"
    return ""


def continue_reason(choice: CapChoice, noise: float) -> str:
    return (
        f"readings are {_per_cent(noise)} apart and the choice is "
        f"{choice.expected_regret_pct:.1f}% from the best cap on average: probing on"
    )


def _per_cent(noise: float) -> str:
    return f"{100 * noise:.0f}%" if noise >= 0.1 else f"{100 * noise:.2g}%"


# The best power cap with few probes: ask for a cap, tell what it took, until nothing is asked.
#
# finder = CapFinder([100, 125, 150, 175, 200, 225, 250], metric="edp")
# while (cap_w := finder.ask()) is not None:
#     finder.tell(cap_w, *measure_at(cap_w))  # time in s, energy in J
# finder.best().cap_w
#
# Reads no clock and touches no device; the same readings always give the same answers.

FINDER_METRICS = tuple(name for name in METRICS if name not in ("time", "power"))
"""Time and power alone have their best cap at an end."""
NOISE = 0.01


@dataclass(frozen=True, slots=True)
class Probe:
    """Time and energy measured at one cap.

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
        noise: relative standard deviation of a reading of time or of power, where `tell` does not
            say.
        devices: how many devices share the energy, each under the same cap.
        most_probes: never more than this, the reference included, nor more than there are caps.
            Unless given four, and more where noisy readings make them worth it (`cap_stop`).
        certainty: stop when the choice is within 2% of the best cap with this probability.

    Raises:
        ConfigError: fewer than two caps, one that is not a positive number, unknown metric, or `k`
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
        self._belief: CurveSurrogate | None = None
        self._why = ""
        self.why_on = ""
        """Why the cap that was last asked for is one more than the usual four."""

    @property
    def reference_w(self) -> float:
        return self.caps_w[-1]

    def ask(self) -> float | None:
        """The cap to try next; None when enough is known. Asking twice changes nothing."""
        if not any(probe.cap_w == self.reference_w for probe in self.probes):
            return self.reference_w
        if len(self.probes) >= self.limit:
            self._why = format_limit_reached(len(self.caps_w), self.most_probes, len(self.probes))
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
        """Add the time and energy of a cap; a cap may be told several times. Raises ConfigError."""
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

    def best(self) -> CapChoice:
        """Return the best cap so far and its gains. Raises ConfigError without probes."""
        return choose(self.belief, self.caps_w, self.metric, self.k, len(self.probes), self._why)

    @property
    def belief(self) -> CurveSurrogate:
        if not self.probes:
            raise ConfigError("nothing was tried yet: tell the finder what a cap took")
        if self._belief is None:
            readings = [
                CapReading(
                    self.caps_w.index(p.cap_w),
                    math.log(p.time_s),
                    math.log(p.energy_j / p.time_s / self.devices),
                    p.noise,
                )
                for p in self.probes
            ]
            self._belief = fit_curves(self.family(), np.array(self.caps_w), readings)
        return self._belief

    def family(self) -> CurveFamily:
        return physical_curves()

    @property
    def _largest_noise(self) -> float:
        return max((probe.noise for probe in self.probes), default=self.noise)

    def _probe_arguments(self) -> tuple[CurveSurrogate, set[int], str, float, float, int]:
        tried = {self.caps_w.index(probe.cap_w) for probe in self.probes}
        seed = len(self.probes)
        return self.belief, tried, self.metric, self.k, self._largest_noise, seed

    def _next(self) -> int | None:
        index = next_probe(*self._probe_arguments())
        if index is None:
            self._why = "every cap was tried"
        return index

    def _further(self, choice: CapChoice) -> int | None:
        further = further_probe(*self._probe_arguments())
        self._why = stop_reason(choice, further, self._largest_noise)
        if self._why or further is None:
            return None
        self.why_on = continue_reason(choice, self._largest_noise)
        return further.cap

    def to_dict(self) -> dict[str, Any]:
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
        options = {name: value for name, value in data.items() if name != "probes"}
        finder = cls(**options)
        for probe in data["probes"]:
            finder.tell(**probe)
        return finder
