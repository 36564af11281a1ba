"""Power of a CPU package from how busy its cores are: a physical form with few constants.

    P = idle + wake min(1, n) + S(load (TDP - idle) a (f / f_base)^2)         [W]

- idle: the package with all cores asleep, a share of TDP by maker and kind.
- wake: ring, mesh or fabric once any core runs; n busy cores.
- load: all cores busy with ordinary code at the base clock. The TDP is what a maker guarantees for
  the heaviest code at that clock, so this is a share of it, and a steadier one across processors
  than watts per core.
- a: busy cores over all; a core's second thread adds `SMT_GAIN` of the first one's power.
- f^2: dynamic power goes with f V^2, between f (V at its floor) and f^3 (V proportional to f).
- S: saturates softly at the package limit of the maker's firmware.

No constant was fitted to the processors of docs/benchmarks/estimate_accuracy.md: they come from
published measurements of others, `benchmarks/published_cpu_power.csv`, with the sources in
docs/adr/0022-the-estimate-learns-from-published-processors.md.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from wattloop.hardware.cpus import Processor

__all__ = [
    "PUBLISHED",
    "Constants",
    "StatedError",
    "core_activity",
    "estimate_error",
    "family",
    "package_power_w",
]

SMT_GAIN = 0.3
CLOCK_EXPONENT = 2.0
SHARPNESS = 6.0
"""How abruptly power meets the limit."""
LIMIT_SHARE = MappingProxyType(
    {"amd client": 1.35, "amd server": 1.0, "client": 1.25, "server": 1.2},
)
"""Package limit over TDP: AMD's package power tracking (142 of 105 W, 88 of 65 W; at TDP for
Threadripper and EPYC), Intel's usual PL2 over PL1."""

StatedError = tuple[float, float]
"""Half-width: relative to the estimate, and as a share of TDP."""


class Constants(NamedTuple):
    """What published measurements say; `family` tells which idle share is a processor's.

    Attributes:
        idle_share: of TDP, by family.
        wake_share: of TDP, once any core runs.
        load_share: of TDP less idle, all threads busy at the base clock.
        clock_ratio: clock over base clock of a busy package, where the clock cannot be read.
    """

    idle_share: Mapping[str, float]
    wake_share: float
    load_share: float
    clock_ratio: float


PUBLISHED = Constants(
    idle_share=MappingProxyType(
        {"amd client": 0.12, "amd server": 0.30, "client": 0.025, "server": 0.12},
    ),
    wake_share=0.08,
    load_share=0.71,
    clock_ratio=1.10,
)
KNOWN_CLOCK_ERROR: StatedError = (0.19, 0.10)
UNKNOWN_CLOCK_ERROR: StatedError = (0.28, 0.09)


def package_power_w(
    processor: Processor,
    activity: float,
    clock_ratio: float | None = None,
    constants: Constants = PUBLISHED,
) -> float:
    """Watts of a whole package.

    Args:
        processor: cores, TDP and kind.
        activity: 0 (all cores idle) to 1 (all threads busy), see `core_activity`.
        clock_ratio: mean clock of the busy cores over the base clock; None when unknown.
        constants: others than the shipped ones, to try them out.
    """
    tdp_w = processor.tdp_w
    idle_w = constants.idle_share[family(processor)] * tdp_w
    wake_w = constants.wake_share * tdp_w * min(1.0, activity * processor.cores)
    ratio = constants.clock_ratio if clock_ratio is None else clock_ratio
    wanted_w = constants.load_share * (tdp_w - idle_w) * activity * ratio**CLOCK_EXPONENT
    room_w = LIMIT_SHARE[family(processor)] * tdp_w - idle_w - wake_w
    fill = wanted_w / room_w
    return idle_w + wake_w + room_w * float(fill / (1 + fill**SHARPNESS) ** (1 / SHARPNESS))


def core_activity(cores: Iterable[Sequence[float]]) -> float:
    """Activity of a package from the busy share of each thread, grouped by core.

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


def estimate_error(processor: Processor, *, clock_known: bool) -> StatedError:
    """The stated error, meant to hold nine times in ten for a processor nobody has measured.

    It is the spread between published processors, each estimated from the others: a Student
    interval over processors, not over their load levels. A TDP that is itself a guess scales
    everything; its error has nothing to do with the model's, so their squares add.
    """
    relative, of_tdp = KNOWN_CLOCK_ERROR if clock_known else UNKNOWN_CLOCK_ERROR
    return math.hypot(relative, processor.tdp_error), of_tdp


def family(processor: Processor) -> str:
    """AMD's dies keep more awake than others of their kind, and its firmware limits differ."""
    kind = "client" if processor.kind == "client" else "server"
    return f"amd {kind}" if _AMD.search(processor.name) else kind


_AMD = re.compile(r"ryzen|epyc|threadripper|athlon|opteron|\bamd\b", re.I)
