"""Model of CPU package power from core utilisation: one load curve per kind of processor.

    P = TDP min(limit, idle + (start - idle) min(1, n) + (curve(u) - start) phi)         [W]

- curve: a straight line from `start` over `half` (u = 0.5) to `full` (u = 1), shares of TDP with
  load spread evenly over all threads. `start` is where the line through 10% and 50% meets no load:
  ring, mesh or fabric are awake once any core runs. n is the number of busy cores.
- u: the even load that keeps the cores as active as they are; a core's second thread adds
  `SMT_GAIN` of the first one's power.
- phi = (f / f_base)^2, 1 where the clock is unknown: dynamic power goes with f V^2, between f (V at
  its floor) and f^3 (V proportional to f). AMD's servers boost as a rule and their curve is of
  boosted clocks, so phi is at most 1 there.
- limit: the package limit of the maker's firmware.

The curves are means over published measurements of several hundred servers and some desktop
processors, `benchmarks/published_cpu_power.py`; none comes from the processors that judge the
estimate. Sources: docs/adr/0022-the-estimate-learns-from-published-processors.md.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from wattloop.hardware.cpus import Processor

SMT_GAIN = 0.3
CLOCK_EXPONENT = 2.0
LIMIT_SHARE: Mapping[str, float] = MappingProxyType(
    {"server": 1.2, "amd server": 1.0, "client": 1.25, "amd client": 1.35},
)
"""Package limit over TDP: AMD's package power tracking (142 of 105 W, 88 of 65 W; TDP for EPYC),
Intel's usual PL2 over PL1."""

StatedError = tuple[float, float]
"""Half-width: relative to the estimate, and as a share of TDP."""


class LoadCurve(NamedTuple):
    """Package power over TDP with all threads 0, 10, 50 and 100% busy."""

    idle: float
    tenth: float
    half: float
    full: float

    @property
    def start(self) -> float:
        """The line through 10% and 50% at no load: cores asleep, everything else awake."""
        return max(self.idle, self.tenth - (self.half - self.tenth) / 4)

    def at(self, load: float) -> float:
        """The share of TDP at an even load above 0."""
        if load <= 0.5:
            return self.start + (self.half - self.start) * load / 0.5
        return self.half + (self.full - self.half) * (load - 0.5) / 0.5


PUBLISHED: Mapping[str, LoadCurve] = MappingProxyType(
    {
        "server": LoadCurve(0.11, 0.25, 0.48, 0.77),
        "amd server": LoadCurve(0.22, 0.35, 0.50, 0.70),
        "client": LoadCurve(0.03, 0.18, 0.42, 0.74),
        "amd client": LoadCurve(0.12, 0.29, 0.55, 0.89),
    }
)
KNOWN_CLOCK_ERROR: StatedError = (0.18, 0.10)
UNKNOWN_CLOCK_ERROR: StatedError = (0.22, 0.10)


def package_power_w(
    processor: Processor,
    activity: float,
    clock_ratio: float | None = None,
    curves: Mapping[str, LoadCurve] = PUBLISHED,
) -> float:
    """Return watts of a whole package.

    Args:
        processor: cores, TDP and kind.
        activity: 0 (all cores idle) to 1 (all threads busy), see `core_activity`.
        clock_ratio: mean clock of the busy cores over the base clock; None when unknown.
        curves: others than the shipped ones, to try them out.
    """
    kind = family(processor)
    curve = curves[kind]
    awake = min(1.0, activity * processor.cores)
    load = even_load(activity, smt=processor.threads > processor.cores)
    dynamic = (curve.at(load) - curve.start) * clock_factor(kind, clock_ratio)
    share = curve.idle + (curve.start - curve.idle) * awake + dynamic
    return processor.tdp_w * min(LIMIT_SHARE[kind], share)


def clock_factor(kind: str, clock_ratio: float | None) -> float:
    """Return the power of busy cores relative to the published curve of their kind."""
    if clock_ratio is None:
        return 1.0
    if kind == "amd server":
        clock_ratio = min(1.0, clock_ratio)
    return float(clock_ratio**CLOCK_EXPONENT)


def core_activity(cores: Iterable[Sequence[float]]) -> float:
    """Return the activity of a package from the busy share of each thread, grouped by core.

    Threads of a core are taken as busy at random, so both are busy for the product of the shares.
    """
    total, count = 0.0, 0
    for threads in cores:
        idle = 1.0
        both = 1.0
        for busy in threads:
            idle *= 1 - busy
            both *= busy
        count += 1
        total += (1 - idle + SMT_GAIN * both) / (1 + SMT_GAIN) if len(threads) > 1 else 1 - idle
    return total / count if count else 0.0


def even_load(activity: float, *, smt: bool) -> float:
    """Return the load of each thread that gives this activity: the inverse of `core_activity`."""
    activity = min(1.0, max(0.0, activity))
    if not smt:
        return activity
    # (1 - (1 - u)^2 + g u^2) / (1 + g) = a, solved for u
    rest = 1 - SMT_GAIN
    return (1 - math.sqrt(max(0.0, 1 - rest * (1 + SMT_GAIN) * activity))) / rest


def estimate_error(processor: Processor, *, clock_known: bool) -> StatedError:
    """Return the stated error, meant to hold nine times in ten for a family of unmeasured
    processors.

    It comes from families of published processors, each estimated from the others. A TDP that is
    itself a guess scales everything; its error is independent of the model's, so squares add.
    """
    # The clock of AMD's servers tells little: none of their published curves has it.
    clock_helps = clock_known and family(processor) != "amd server"
    relative, of_tdp = KNOWN_CLOCK_ERROR if clock_helps else UNKNOWN_CLOCK_ERROR
    return math.hypot(relative, processor.tdp_error), of_tdp


def family(processor: Processor) -> str:
    """Return the kind of processor by maker.

    A Threadripper boosts to its limit as desktop processors do.
    """
    boosts = processor.kind == "client" or "threadripper" in processor.name.lower()
    kind = "client" if boosts else "server"
    return f"amd {kind}" if _AMD.search(processor.name) else kind


_AMD = re.compile(r"ryzen|epyc|threadripper|athlon|opteron|\bamd\b", re.I)
