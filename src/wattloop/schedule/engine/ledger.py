"""Every watt of the cluster over time: at work, idle, hosts, network."""

import math
from array import array

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.engine.settings import Settings
from wattloop.schedule.steps import Steps

__all__ = ["Ledger"]

JOULES_PER_KWH = 3.6e6
ROUNDING = 1e-9
"""Share by which sums of floats may miss a budget that they keep."""


class Ledger:
    """Power now by what draws it, and its integrals up to now.

    What works and what idles changes with every event and is integrated with every step of the
    clock; hosts and network, carbon and price change seldom and are integrated when they do.

    Args:
        cluster: what draws power.
        settings: budget, carbon and price.

    Attributes:
        now_s: up to when time has passed.
        active_w, idle_w: drawn now by GPUs at work and by the others.
        active_j, idle_j: what they have drawn.
        peak_w: most the whole cluster drew.
        over_budget_s, over_budget_j: how long it was above its budget, and by how much.
        budget_w: as it is now.
        times_s, powers_w: the whole cluster's power, each value from its time on.
    """

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self.now_s = 0.0
        self._host_w = sum(group.nodes * group.host_w for group in cluster.groups)
        self._network_w = cluster.network_w
        self._steady_w = self._host_w + self._network_w
        self.active_w = 0.0
        self.idle_w = cluster.idle_w - self._steady_w
        self.active_j = self.idle_j = 0.0
        self._host_j = 0.0
        self._host_since_s = 0.0
        self._carbon_g = self._cost = 0.0
        self._carbon_now = self._price_now = 0.0
        self._priced_j = 0.0
        self.peak_w = 0.0
        self.over_budget_s = self.over_budget_j = 0.0
        self.times_s = array("d")
        self.powers_w = array("d")
        self._last_w = math.nan
        self._budget = settings.budget_w
        self._carbon = settings.carbon_g_per_kwh
        self._price = settings.price_per_kwh
        self.turn(0.0)

    @property
    def power_w(self) -> float:
        """What the whole cluster draws now."""
        return self.active_w + self.idle_w + self._steady_w

    @property
    def host_w(self) -> float:
        """What hosts draw now."""
        return self._host_w

    @property
    def network_w(self) -> float:
        """What switches draw, always."""
        return self._network_w

    @property
    def host_j(self) -> float:
        """What hosts have drawn."""
        return self._host_j + self._host_w * (self.now_s - self._host_since_s)

    @property
    def network_j(self) -> float:
        """What switches have drawn."""
        return self._network_w * self.now_s

    @property
    def energy_j(self) -> float:
        """What the whole cluster has drawn."""
        return self.active_j + self.idle_j + self.host_j + self.network_j

    @property
    def carbon_g(self) -> float | None:
        """Emitted so far; None where nobody said what electricity emits."""
        return None if self._carbon is None else self._carbon_g + self._unpriced(self._carbon_now)

    @property
    def cost(self) -> float | None:
        """Paid so far; None where nobody said what electricity costs."""
        return None if self._price is None else self._cost + self._unpriced(self._price_now)

    def turn(self, now_s: float) -> None:
        """Budget, carbon or price change at this time."""
        if now_s:
            self._carbon_g += self._unpriced(self._carbon_now)
            self._cost += self._unpriced(self._price_now)
            self._priced_j = self.energy_j
        self.budget_w = self._budget.at(now_s)
        self._limit_w = self.budget_w * (1 + ROUNDING)
        self._carbon_now = _at(self._carbon, now_s)
        self._price_now = _at(self._price, now_s)

    def add_host_w(self, watts: float) -> None:
        """Hosts draw more from now on, or less."""
        self._host_j += self._host_w * (self.now_s - self._host_since_s)
        self._host_since_s = self.now_s
        self._host_w += watts
        self._steady_w = self._host_w + self._network_w

    def advance(self, now_s: float) -> None:
        """Let time pass with the power as it is."""
        passed_s = now_s - self.now_s
        if passed_s <= 0.0:
            return
        active_w, idle_w = self.active_w, self.idle_w
        self.active_j += active_w * passed_s
        self.idle_j += idle_w * passed_s
        power_w = active_w + idle_w + self._steady_w
        if power_w != self._last_w:
            self._last_w = power_w
            self.times_s.append(self.now_s)
            self.powers_w.append(power_w)
            self.peak_w = max(self.peak_w, power_w)
        if power_w > self._limit_w:
            self.over_budget_s += passed_s
            self.over_budget_j += (power_w - self.budget_w) * passed_s
        self.now_s = now_s

    def _unpriced(self, per_kwh: float) -> float:
        """What is due for the energy since the last turn."""
        return (self.energy_j - self._priced_j) / JOULES_PER_KWH * per_kwh if per_kwh else 0.0


def _at(steps: Steps | None, now_s: float) -> float:
    return 0.0 if steps is None else steps.at(now_s)
