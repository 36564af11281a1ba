"""Plausibility limits of sensors: the highest power of a device, and the rise of a counter."""

from wattloop.core.records import Scope

HIGHEST_W = {Scope.GPU: 4_000.0, Scope.CPU: 3_000.0, Scope.DRAM: 1_000.0}
"""Above what any one card or module, package, or memory of a package draws. The largest on sale:
2,700 W for a GB200 module (NVIDIA), 500 W for a server processor."""
HIGHEST_NODE_W = 100_000.0
"""Limit of a node, or of a part of unknown kind."""
WRAP_SLACK_S = 0.01


def highest_power_w(scope: Scope | str) -> float:
    """Return the highest plausible power of a domain, by its scope or by its name (`gpu:3`,
    `cpu:0/core`).
    """
    kind = scope.partition(":")[0].partition("/")[0]
    return next((power_w for one, power_w in HIGHEST_W.items() if one == kind), HIGHEST_NODE_W)


def counter_rise_j(rise_j: float, step_s: float, wrap_j: float | None) -> float | None:
    """Return the joules between two readings of a counter that differ by `rise_j`; None after a
    reset.

    A counter that fell has wrapped where that explains the fall with a plausible power.
    """
    if rise_j >= 0:
        return rise_j
    if wrap_j is None or not 0 <= rise_j + wrap_j <= HIGHEST_NODE_W * (step_s + WRAP_SLACK_S):
        return None
    return rise_j + wrap_j
