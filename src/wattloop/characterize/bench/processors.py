"""Which CPUs a number of threads is pinned to: one per core first, as `likwid-pin` does."""

import os

from wattloop.core.errors import ConfigError
from wattloop.hardware.host import Host

__all__ = ["pinned", "usable_cpus"]


def usable_cpus() -> list[int]:
    """CPUs this process may use."""
    return sorted(os.sched_getaffinity(0))


def pinned(threads: int, host: Host, cpus: list[int]) -> tuple[int, ...]:
    """So many of `cpus`, on as many cores as possible.

    Raises:
        ConfigError: there are fewer.
    """
    if not 1 <= threads <= len(cpus):
        raise ConfigError(
            f"--threads {threads}: this process may use {len(cpus)} CPU(s); give 1 to {len(cpus)}"
        )
    # a core's second thread shares its units: it comes after all first threads
    order = sorted(cpus, key=lambda cpu: (_place_in_core(cpu, host), cpu))
    return tuple(sorted(order[:threads]))


def _place_in_core(cpu: int, host: Host) -> int:
    text = host.read_text("sys", f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or ""
    siblings: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        try:
            siblings += range(int(first), int(last or first) + 1)
        except ValueError:
            return 0
    return siblings.index(cpu) if cpu in siblings else 0
