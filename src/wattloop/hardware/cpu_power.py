"""Power of a CPU package from how busy its cores are: a physical form with few constants.

    P = idle + S(C x core_w x activity x (f / f_base)^2)         [W]

- idle: what the package draws with all cores asleep, as a share of TDP.
- core_w: a core with all its threads busy at the base clock. Makers share a TDP among models of
  very different core counts, so watts per core vary less than TDP per core; many-core parts, whose
  cores cannot all have `core_w`, get their share of the TDP and some boost.
- activity: busy cores; a core's second thread adds `SMT_GAIN` of the first one's power.
- f^2: dynamic power goes with f V^2, and V falls by less than f (its floor is near 0.7 V).
- S: saturates softly at the package limit, which firmware holds near TDP.

The form and the range of each constant come from physics; the values within the ranges were chosen
by comparing some 35 settings on the two processors of docs/benchmarks/estimate_accuracy.md. What
that is worth on a processor nobody has seen is the leave-one-processor-out row there, not the
error of the shipped constants.
"""

from collections.abc import Iterable, Sequence

from wattloop.hardware.cpus import Processor

__all__ = ["StatedError", "core_activity", "estimate_error", "package_power_w"]

IDLE_SHARE = {"client": 0.08, "server": 0.20}
"""Monolithic desktop and laptop dies sleep deeply; meshes, chiplets and I/O dies stay awake."""
CORE_W = 10.5
SMT_GAIN = 0.3
CLOCK_EXPONENT = 2.0
LIMIT_SHARE = 0.96
"""Share of TDP at which firmware's power limit holds a fully loaded package."""
BOOST_SHARE = 1.5
"""Few busy cores of a many-core part may draw this much above their share of the TDP."""
USUAL_CLOCK_RATIO = 1.05
"""Clock over base clock of a busy package, where the clock cannot be read."""
SHARPNESS = 6.0
"""How abruptly power meets the limit."""

StatedError = tuple[float, float]
"""Half-width: relative to the estimate, and as a share of TDP."""


def package_power_w(
    processor: Processor, activity: float, clock_ratio: float | None = None
) -> float:
    """Watts of a whole package.

    Args:
        processor: cores, TDP and kind.
        activity: 0 (all cores idle) to 1 (all threads busy), see `core_activity`.
        clock_ratio: mean clock of the busy cores over the base clock; None when unknown.
    """
    tdp_w = processor.tdp_w
    idle_w = IDLE_SHARE.get(processor.kind, IDLE_SHARE["server"]) * tdp_w
    all_cores_w = min(CORE_W * processor.cores, BOOST_SHARE * (tdp_w - idle_w))
    ratio = USUAL_CLOCK_RATIO if clock_ratio is None else clock_ratio
    wanted_w = all_cores_w * activity * ratio**CLOCK_EXPONENT
    room_w = LIMIT_SHARE * tdp_w - idle_w
    fill = wanted_w / room_w
    return idle_w + room_w * float(fill / (1 + fill**SHARPNESS) ** (1 / SHARPNESS))


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
    """The stated error, meant to hold nine times in ten; so far shown on two processors only.

    Idle shares of real parts spread by about +-0.1 of TDP and watts per core by some 20% below
    the limit; without the clock a governor may halve the power unseen. A TDP that is itself a
    guess scales everything.
    """
    relative, of_tdp = (0.10, 0.12) if clock_known else (0.10, 0.20)
    return relative + processor.tdp_error, of_tdp
