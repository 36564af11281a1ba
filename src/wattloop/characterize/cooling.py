"""Waiting between runs until the machine is as cool as it was."""

from collections.abc import Callable, Mapping

from wattloop.characterize.sweep_spec import CoolDown
from wattloop.core.clock import Clock
from wattloop.core.records import Gap
from wattloop.meters.base import Context
from wattloop.meters.registry import detect

__all__ = ["Thermometer", "cool_down"]

LOOK_EVERY_S = 0.5


class Thermometer:
    """Temperatures of whatever the meters here can tell. A context manager."""

    def __init__(self, context: Context) -> None:
        self._inventory = detect(context, explain=False)

    def __enter__(self) -> "Thermometer":
        return self

    def __exit__(self, *_: object) -> None:
        self._inventory.close()

    def read_c(self) -> dict[str, float]:
        """Degrees by device; empty where nothing tells."""
        found: dict[str, float] = {}
        for meter in self._inventory.meters:
            names = [signal.name for signal in meter.signals]
            if not any(name.endswith("/temperature") for name in names):
                continue
            for name, value in zip(names, meter.read_signals(), strict=True):
                if name.endswith("/temperature") and not isinstance(value, Gap):
                    found[name.removesuffix("/temperature")] = float(value)
        return found

    @property
    def gpus(self) -> int:
        """How many GPUs the meters see."""
        names = {d.name for m in self._inventory.meters for d in m.domains if d.scope == "gpu"}
        return len({name.partition("/")[0] for name in names})


def cool_down(
    rule: CoolDown,
    idle_c: Mapping[str, float],
    read_c: Callable[[], Mapping[str, float]],
    clock: Clock,
) -> float:
    """Wait as the rule says; returns the seconds.

    Args:
        rule: how warm is cool enough, and how long to wait at most.
        idle_c: temperatures before anything ran; devices without one are not waited for.
        read_c: temperatures now.
        clock: time to wait on.
    """
    begin_s = clock.now_s()
    if rule.pause_s:
        clock.sleep(rule.pause_s)
    if rule.within_c is not None and idle_c:
        deadline_s = clock.now_s() + rule.limit_s
        while clock.now_s() < deadline_s:
            now_c = read_c()
            warm = [n for n, c in idle_c.items() if now_c.get(n, c) > c + rule.within_c]
            if not warm:
                break
            clock.sleep(min(LOOK_EVERY_S, max(0.0, deadline_s - clock.now_s())))
    return clock.now_s() - begin_s
