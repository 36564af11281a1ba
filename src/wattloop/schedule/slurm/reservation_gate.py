"""The gate: a reservation over the managed nodes that ends by itself unless it is extended.

Jobs start only if they name it, and the driver names it for them. When the driver dies,
whatever
kills it, Slurm lets the reservation end after `lease_s`, clears it from jobs that wait with it
(NO_HOLD_JOBS_AFTER), and goes on by itself: nothing is ever held (ADR 0043).
"""

import time
from collections.abc import Callable, Iterable

from wattloop.core.errors import SlurmAway, SlurmError
from wattloop.schedule.slurm.scontrol import SlurmClient
from wattloop.schedule.slurm.squeue import expanded

PREFIX = "wattloop_"


FLAGS = "FLEX,IGNORE_JOBS,NO_HOLD_JOBS_AFTER,OVERLAP"


"""FLEX: running jobs outlive it. IGNORE_JOBS: nobody who runs now is in its way."""


class ReservationGate:
    """One reservation and its lease.

    Args:
        client: Slurm.
        name: of the reservation, `wattloop_` and something of this driver's own.
        nodes: names, as Slurm takes them.
        owner: a user who may always name it: whoever runs the driver.
        lease_s: after which it ends unless extended.
        now_s: a clock that never goes back.
    """

    def __init__(
        self,
        client: SlurmClient,
        name: str,
        nodes: str,
        owner: str,
        lease_s: float,
        now_s: Callable[[], float],
    ) -> None:
        self._client, self.name, self.nodes = client, name, nodes
        self._owner, self.lease_s, self._now_s = owner, lease_s, now_s
        self.ahead_s = 0.0
        """By how much slurmctld's clock is ahead: `now` is that of whoever runs scontrol."""
        self.unknown_users: frozenset[str] = frozenset()
        self._users: frozenset[str] = frozenset()
        self._extended_s = float("-inf")

    @property
    def is_open_for(self) -> frozenset[str]:
        """Users whose jobs may start."""
        return self._users

    def keep(self, users: Iterable[str]) -> bool:
        """Extend the lease where a third of it is over, or others need to be let in.

        Only users with a start at hand are let in: nobody else gets through by naming the
        reservation himself.

        Returns:
            Whether it had to be made anew: jobs may have started by themselves meanwhile.
        """
        wanted = frozenset({*users, self._owner}) - self.unknown_users
        now_s = self._now_s()
        fresh = now_s - self._extended_s < self.lease_s / 3
        if fresh and wanted <= self._users:
            return False
        made = self._extend(self._fields(wanted))
        self._users, self._extended_s = wanted, now_s
        return made

    def move(self, nodes: str) -> None:
        """Stand over other nodes from now on.

        Raises:
            SlurmError: Slurm does not let us.
        """
        self._client.update_reservation({"ReservationName": self.name, "Nodes": nodes})
        self.nodes = nodes

    def doubt(self) -> None:
        """It may be gone: slurmctld was away, and may have forgotten its last seconds."""
        self._extended_s = float("-inf")

    def remove(self) -> None:
        """Let Slurm go on by itself, now. Running jobs that have it keep it until they end."""
        self._users, self._extended_s = frozenset(), float("-inf")
        try:
            self._client.delete_reservation(self.name)
        except SlurmAway:
            raise
        except SlurmError:
            if any(each.name == self.name for each in self._client.reservations()):
                self._end()

    def others(self) -> list[str]:
        """Gates of other drivers over any of our nodes that still hold."""
        mine = set(expanded(self.nodes))
        return [
            each.name
            for each in self._client.reservations()
            if each.name.startswith(PREFIX)
            and each.name != self.name
            and each.is_active
            # one that running jobs still have is listed beyond its end
            and each.end_s > time.time() + self.ahead_s
            and mine & set(expanded(each.nodes))
        ]

    def _fields(self, users: Iterable[str]) -> dict[str, str]:
        return {
            "ReservationName": self.name,
            "EndTime": _later(self.lease_s + self.ahead_s),
            "Users": ",".join(sorted(users)),
        }

    def _extend(self, fields: dict[str, str]) -> bool:
        """Whether it had to be made."""
        try:
            if self._extended_s == float("-inf"):
                raise SlurmError("perhaps not there")
            self._client.update_reservation(fields)
        except SlurmAway:
            raise
        except SlurmError:
            return self._make(fields)
        return False

    def _end(self) -> None:
        fields = {"ReservationName": self.name, "EndTime": _later(self.ahead_s)}
        try:
            self._client.update_reservation(fields)
        except SlurmAway:
            raise
        except SlurmError:  # it began in this very second, and cannot end in it
            self._client.update_reservation({**fields, "EndTime": _later(self.ahead_s + 2)})

    def _make(self, fields: dict[str, str]) -> bool:
        """Whether it was not there any more."""
        # One that has ended stays listed for a while, and its name with it.
        listed = [each for each in self._client.reservations() if each.name == self.name]
        if not listed:
            begin = {"StartTime": _later(self.ahead_s), "Nodes": self.nodes, "Flags": FLAGS}
            self._client.create_reservation({**fields, **begin, "Users": self._owner})
        try:
            self._client.update_reservation(fields)
        except SlurmAway:
            raise
        except SlurmError:
            self._client.update_reservation(self._fields([self._owner]))
            for name in fields["Users"].split(","):
                self._let_in(name)
        return not (listed and listed[0].is_active)

    def _let_in(self, name: str) -> None:
        """One user; Slurm refuses all where it does not know one of them."""
        if name == self._owner:
            return
        try:
            self._client.update_reservation({"ReservationName": self.name, "Users+": name})
        except SlurmAway:
            raise
        except SlurmError:
            self.unknown_users |= {name}


def _later(seconds: float) -> str:
    whole = round(seconds)
    return f"now{whole:+d}seconds" if whole else "now"
