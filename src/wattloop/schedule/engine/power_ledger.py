"""Every watt of the cluster over time: at work, idle, hosts, network."""

import math
from array import array

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.engine.settings import EngineSettings
from wattloop.schedule.step_function import StepFunction

JOULES_PER_KWH = 3.6e6
ROUNDING = 1e-9
"""Share by which sums of floats may miss a budget that they keep."""


class PowerLedger:
    """Power of the whole cluster now, and its integral up to now.

    Power changes with every event and is integrated with every step of the clock; hosts, carbon
    and price change seldom and are integrated when they do. What GPUs at work have drawn is in
    the accounts of their jobs; what is left of the whole was drawn by idle ones.

    Args:
        cluster: what draws power.
        settings: budget, carbon and price.

    Attributes:
        now_s: up to when time has passed.
        power_w: what the whole cluster draws now.
        resting_w: what it would draw now if nothing ran.
        energy_j: what it has drawn.
        peak_w: most it drew.
        over_budget_s, over_budget_j: how long it was above its budget, and by how much.
        budget_w: as it is now.
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
        self.turn(0.0)

    @property
    def host_j(self) -> float:
        return self._host_j + self.host_w * (self.now_s - self._host_since_s)

    @property
    def network_j(self) -> float:
        return self.network_w * self.now_s

    def idle_j(self, active_j: float) -> float:
        """What idle GPUs have drawn, given what those at work have."""
        rest_j = self.energy_j - active_j - self.host_j - self.network_j
        return rest_j if rest_j > ROUNDING * self.energy_j else 0.0

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
        self._host_j += self.host_w * (self.now_s - self._host_since_s)
        self._host_since_s = self.now_s
        self.host_w += watts
        self.power_w += watts

    def add_node_w(self, host_w: float, gpus_w: float) -> None:
        """A node that runs nothing is back, or gone (negative)."""
        self.add_host_w(host_w)
        self.power_w += gpus_w
        self.resting_w += host_w + gpus_w

    def advance(self, now_s: float) -> None:
        """Let time pass with the power as it is."""
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

    def _unpriced(self, per_kwh: float) -> float:
        """What is due for the energy since the last turn."""
        return (self.energy_j - self._priced_j) / JOULES_PER_KWH * per_kwh if per_kwh else 0.0


def _at(steps: StepFunction | None, now_s: float) -> float:
    return 0.0 if steps is None else steps.at(now_s)
