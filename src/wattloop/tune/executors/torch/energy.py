"""Energy of time intervals, with its uncertainty, for the PyTorch executor."""

import time
from typing import Protocol

from wattloop.core.settings import Settings, load_settings
from wattloop.measure.api import active_session
from wattloop.measure.session import Session
from wattloop.tune.segment_meter import Joules, scope_energy, widest_scope

LONGEST_SETTLE_S = 0.5
LOOK_S = 0.005


class EnergySource(Protocol):
    """Source of energies for the executor."""

    @property
    def run_id(self) -> str | None:
        """Return the id of the measured run, if it is stored."""

    @property
    def session(self) -> Session | None:
        """Return the session whose meters are read; None when there are none."""

    def now_s(self) -> float:
        """Return the time on the clock of the readings."""

    def between(self, begin_s: float, end_s: float) -> Joules:
        """Return the energy between two times, as far as it is known."""

    def settle(self, end_s: float) -> None:
        """Wait until later readings can hardly improve the energy up to `end_s`."""

    def close(self) -> None: ...


class SessionEnergy:
    """Energy from the meters of this machine, over one session.

    Args:
        scope: `gpu`, `cpu`, `dram` or `node`; unless given the widest that is read.
        gpus: whether the training uses GPUs, if any; idle ones are left out of the scope.
    """

    def __init__(
        self,
        scope: str | None = None,
        settings: Settings | None = None,
        *,
        gpus: bool = True,
        name: str = "search",
        keep: bool = True,
    ) -> None:
        self.settings = load_settings() if settings is None else settings
        given = active_session()  # left open
        self._ours = given is None
        self.session = given or Session.open(self.settings, name=name, keep=keep)
        self.scope = scope or widest_scope(self.session, gpus=gpus)

    @property
    def run_id(self) -> str | None:
        return self.session.run_id

    def now_s(self) -> float:
        return self.session.clock.now_s()

    def between(self, begin_s: float, end_s: float) -> Joules:
        return scope_energy(self.session.between(begin_s, end_s), self.scope, self.settings)

    def settle(self, end_s: float) -> None:
        give_up_s = self.now_s() + LONGEST_SETTLE_S
        while not self.session.settled(end_s) and self.now_s() < give_up_s:
            time.sleep(LOOK_S)

    def close(self) -> None:
        if self._ours:
            self.session.close()


def relative_error(joules: Joules) -> float | None:
    return joules.uncertainty_j / joules.energy_j if joules.energy_j else None
