"""Every watt of the cluster over time: at work, idle, hosts, network."""

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

    Args:
        cluster: what draws power.
        settings: budget, carbon and price.
    """

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self.now_s = 0.0
        self.active_w = 0.0
        self.host_w = sum(group.nodes * group.host_w for group in cluster.groups)
        self.network_w = cluster.network_w
        self.idle_w = cluster.idle_w - self.host_w - self.network_w
        self.active_j = self.idle_j = self.host_j = self.network_j = 0.0
        self.carbon_g = self.cost = 0.0
        self.peak_w = 0.0
        self.over_budget_s = 0.0
        self.over_budget_j = 0.0
        self.times_s = array("d")
        self.powers_w = array("d")
        self._budget = settings.budget_w
        self._carbon = settings.carbon_g_per_kwh
        self._price = settings.price_per_kwh
        self.turn(0.0)

    @property
    def power_w(self) -> float:
        """What the whole cluster draws now."""
        return self.active_w + self.idle_w + self.host_w + self.network_w

    @property
    def energy_j(self) -> float:
        """What the whole cluster has drawn."""
        return self.active_j + self.idle_j + self.host_j + self.network_j

    def turn(self, now_s: float) -> None:
        """Budget, carbon or price change at this time."""
        self.budget_w = self._budget.at(now_s)
        self._carbon_now = _at(self._carbon, now_s)
        self._price_now = _at(self._price, now_s)

    def advance(self, now_s: float) -> None:
        """Let time pass with the power as it is."""
        passed_s = now_s - self.now_s
        if passed_s <= 0.0:
            return
        power_w = self.active_w + self.idle_w + self.host_w + self.network_w
        self.active_j += self.active_w * passed_s
        self.idle_j += self.idle_w * passed_s
        self.host_j += self.host_w * passed_s
        self.network_j += self.network_w * passed_s
        if self._carbon_now or self._price_now:
            kwh = power_w * passed_s / JOULES_PER_KWH
            self.carbon_g += kwh * self._carbon_now
            self.cost += kwh * self._price_now
        if power_w > self.peak_w:
            self.peak_w = power_w
        if power_w > self.budget_w * (1 + ROUNDING):
            self.over_budget_s += passed_s
            self.over_budget_j += (power_w - self.budget_w) * passed_s
        self.times_s.append(self.now_s)
        self.powers_w.append(power_w)
        self.now_s = now_s


def _at(steps: Steps | None, now_s: float) -> float:
    return 0.0 if steps is None else steps.at(now_s)
