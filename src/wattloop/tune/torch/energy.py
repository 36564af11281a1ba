"""Joules of stretches of time, and how sure they are."""

import time
from typing import NamedTuple, Protocol

from wattloop.core.records import Scope, WindowResult
from wattloop.core.settings import Settings
from wattloop.measure.api import active_session
from wattloop.measure.configfile import load_settings
from wattloop.measure.session import Session

__all__ = ["EnergySource", "Joules", "SessionEnergy"]

LONGEST_SETTLE_S = 0.5
LOOK_S = 0.005


class Joules(NamedTuple):
    """Energy of one scope; None when nothing of it could be read."""

    energy_j: float | None
    uncertainty_j: float = 0.0
    provenance: str = ""

    @property
    def error(self) -> float | None:
        """Relative half-width; None without energy."""
        return self.uncertainty_j / self.energy_j if self.energy_j else None


class EnergySource(Protocol):
    """What a bench asks for joules."""

    @property
    def run_id(self) -> str | None:
        """The measured run, where it is kept."""

    def now_s(self) -> float:
        """The clock that stretches are given in."""

    def between(self, begin_s: float, end_s: float) -> Joules:
        """Energy of a stretch, as far as it is known."""

    def settle(self, end_s: float) -> None:
        """Wait until later readings can hardly sharpen what ended at `end_s`."""

    def close(self) -> None:
        """No more is asked for."""


class SessionEnergy:
    """Energy from the meters of this machine, over one session.

    Args:
        scope: `gpu` or `cpu`; None for everything that is read.
        settings: how to measure; from environment and file unless given.
        name: of the measured run.
        keep: whether the run is written to the store.
        session: one that is open already, and is left open.
    """

    def __init__(
        self,
        scope: Scope | None = None,
        settings: Settings | None = None,
        *,
        name: str = "search",
        keep: bool = True,
        session: Session | None = None,
    ) -> None:
        self._scope = scope
        given = session or active_session()
        self._ours = given is None
        self._session = given or Session.open(
            settings if settings is not None else load_settings(), name=name, keep=keep
        )

    @property
    def run_id(self) -> str | None:
        """The measured run."""
        return self._session.run_id

    def now_s(self) -> float:
        """The session's monotonic clock."""
        return self._session.clock.now_s()

    def between(self, begin_s: float, end_s: float) -> Joules:
        """Energy of the scope."""
        return _joules(self._session.between(begin_s, end_s), self._scope)

    def settle(self, end_s: float) -> None:
        """Wait for the next reading of every sensor, half a second at most."""
        give_up_s = self.now_s() + LONGEST_SETTLE_S
        while not self._session.settled(end_s) and self.now_s() < give_up_s:
            time.sleep(LOOK_S)

    def close(self) -> None:
        """Close the session, if it was opened here."""
        if self._ours:
            self._session.close()


def _joules(result: WindowResult, scope: Scope | None) -> Joules:
    parts = result.counted if scope is None else result.scope_domains(scope)
    if not parts:
        return Joules(None)
    return Joules(
        sum(part.energy_j or 0.0 for part in parts),
        float(sum(part.uncertainty_j**2 for part in parts) ** 0.5),
        ", ".join(sorted({part.provenance.value for part in parts})),
    )
