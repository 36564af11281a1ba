"""Power ledger: power of the whole cluster over time, its energy, carbon and cost."""

import math
from array import array

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.engine.settings import EngineSettings
from wattloop.schedule.step_function import StepFunction

JOULES_PER_KWH = 3.6e6
ROUNDING = 1e-9
"""Relative rounding error of sums that is not counted as exceeding the budget."""


class PowerLedger:
    """Current power of the whole cluster, and its integral.

    Power changes with every event and is integrated at every step of the clock. Host power, carbon
    and price change rarely and are integrated when they change. The accounts of jobs have the
    energy of allocated GPUs; the rest of the total is idle energy.

    Attributes:
        resting_w: power of the cluster if nothing ran.
        over_budget_s, over_budget_j: time and energy above the budget.
        times_s, powers_w: power over time, each value from its time on.
    """

    def __init__(self, cluster: Cluster, settings: EngineSettings) -> None:
        self.now_s = 0.0
        self.power_w = self.resting_w = cluster.idle_w
        self.energy_j = 0.0
        self.network_w = cluster.network_w
        self.host_w = sum(group.nodes * group.host_w for group in cluster.groups)
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
        self.change_rates(0.0)

    @property
    def host_j(self) -> float:
        return self._host_j + self.host_w * (self.now_s - self._host_since_s)

    @property
    def network_j(self) -> float:
        return self.network_w * self.now_s

    def idle_j(self, active_j: float) -> float:
        """Return the energy of idle GPUs, given that of allocated ones."""
        rest_j = self.energy_j - active_j - self.host_j - self.network_j
        return rest_j if rest_j > ROUNDING * self.energy_j else 0.0

    @property
    def carbon_g(self) -> float | None:
        """Emissions; None without a carbon intensity."""
        return (
            None if self._carbon is None else self._carbon_g + self._since_change(self._carbon_now)
        )

    @property
    def cost(self) -> float | None:
        """Cost; None without a price."""
        return None if self._price is None else self._cost + self._since_change(self._price_now)

    def change_rates(self, now_s: float) -> None:
        """Update budget, carbon intensity and price."""
        if now_s:
            self._carbon_g += self._since_change(self._carbon_now)
            self._cost += self._since_change(self._price_now)
            self._priced_j = self.energy_j
        self.budget_w = self._budget.at(now_s)
        self._limit_w = self.budget_w * (1 + ROUNDING)
        self._carbon_now = _at(self._carbon, now_s)
        self._price_now = _at(self._price, now_s)

    def add_host_w(self, watts: float) -> None:
        """Add to the power of hosts from now on."""
        self._host_j += self.host_w * (self.now_s - self._host_since_s)
        self._host_since_s = self.now_s
        self.host_w += watts
        self.power_w += watts

    def add_node_w(self, host_w: float, gpus_w: float) -> None:
        """Add the power of an idle node, or subtract it (negative)."""
        self.add_host_w(host_w)
        self.power_w += gpus_w
        self.resting_w += host_w + gpus_w

    def advance(self, now_s: float) -> None:
        """Advance the clock at constant power."""
        passed_s = now_s - self.now_s
        if passed_s <= 0.0:
            return
        power_w = self.power_w
        self.energy_j += power_w * passed_s
        if power_w != self._last_w:
            self._last_w = power_w
            self.times_s.append(self.now_s)
            self.powers_w.append(power_w)
            if power_w > self.peak_w:  # noqa: PLR1730 - max() takes twice as long
                self.peak_w = power_w
        if power_w > self._limit_w:
            self.over_budget_s += passed_s
            self.over_budget_j += (power_w - self.budget_w) * passed_s
        self.now_s = now_s

    def _since_change(self, per_kwh: float) -> float:
        """Return carbon or cost of the energy since the last change of rates."""
        return (self.energy_j - self._priced_j) / JOULES_PER_KWH * per_kwh if per_kwh else 0.0


def _at(steps: StepFunction | None, now_s: float) -> float:
    return 0.0 if steps is None else steps.at(now_s)
