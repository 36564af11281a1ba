"""What a shared domain draws with nothing to do: stated, fitted, or the least that was seen."""

from collections.abc import Mapping
from typing import Any

from wattloop.accounting.idle import idle_path, load_idle
from wattloop.core.errors import WattloopError
from wattloop.core.records import Domain, Scope
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host

__all__ = ["IdlePower", "fitted_idle_w"]

OVER_S = 10.0
"""The least mean power over so long: shorter ones are noise of the sensor."""


class IdlePower:
    """Watts by domain.

    Args:
        domains: those that are shared by CPU time.
        stated_w: of one CPU package, if the operator knows it.
        fitted_w: from this machine's idle lines (`wattloop idle`).
    """

    def __init__(
        self,
        domains: Mapping[str, Domain],
        stated_w: float | None = None,
        fitted_w: Mapping[str, float] | None = None,
    ) -> None:
        self.watts: dict[str, float] = {}
        self.sources: dict[str, str] = {}
        self._learned = []
        for name, domain in domains.items():
            if stated_w is not None and domain.scope is Scope.CPU and domain.inside is None:
                self.watts[name], self.sources[name] = stated_w, "as set by cpu_idle_w"
            elif fitted_w and name in fitted_w:
                self.watts[name], self.sources[name] = fitted_w[name], "fitted by 'wattloop idle'"
            else:
                self._learned.append(name)
                self.sources[name] = "the least seen over 10 s"
        self._begin_s = 0.0
        self._sum_j: dict[str, float] = {}
        self._least_w: dict[str, float] = {}

    def saw(self, totals_j: Mapping[str, float], now_s: float) -> None:
        """Energy of each domain since the beginning, as known now."""
        if not self._sum_j:
            self._begin_s, self._sum_j = now_s, dict(totals_j)
        length_s = now_s - self._begin_s
        if length_s < OVER_S:
            return
        for name in self._learned:
            gained_j = totals_j.get(name, 0.0) - self._sum_j.get(name, 0.0)
            if gained_j > 0 and length_s < 2 * OVER_S:
                least_w = min(self._least_w.get(name, float("inf")), gained_j / length_s)
                self._least_w[name] = self.watts[name] = least_w
        self._begin_s, self._sum_j = now_s, dict(totals_j)

    def to_state(self) -> dict[str, Any]:
        """What was learned."""
        return dict(self._least_w)

    def take_up(self, state: Mapping[str, Any]) -> None:
        """Go on with what was learned before."""
        for name in self._learned:
            if isinstance(state.get(name), int | float):
                self._least_w[name] = self.watts[name] = float(state[name])


def fitted_idle_w(settings: Settings, host: Host) -> dict[str, float]:
    """Slopes of this machine's idle lines; {} without them."""
    try:
        record = load_idle(idle_path(settings.store_location, host.machine_id))
    except WattloopError:
        return {}
    return {} if record is None else {name: line.beta_w for name, line in record.lines.items()}
