"""Reservation of the managed nodes that expires unless the driver extends it.

Jobs start only if they name the reservation, and the driver sets it for the jobs that it releases.
If the driver crashes, the reservation expires after `lease_s`, Slurm clears it from waiting jobs
(NO_HOLD_JOBS_AFTER) and schedules by itself again. No job is ever held (ADR 0043).
"""

import time
from collections.abc import Callable, Iterable

from wattloop.core.errors import SlurmAway, SlurmError
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.squeue import expand_nodes

PREFIX = "wattloop_"
FLAGS = "FLEX,IGNORE_JOBS,NO_HOLD_JOBS_AFTER,OVERLAP"
"""FLEX: running jobs may outlive it. IGNORE_JOBS: running jobs do not prevent its creation."""


class ReservationGate:
    """Reservation with a lease.

    Args:
        client: Slurm.
        name: name of the reservation, `wattloop_` and an identifier of the driver.
        nodes: node list in Slurm's notation.
        owner: user who may always name it: the user who runs the driver.
        lease_s: time after which it expires unless extended.
        now_s: monotonic clock.
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
        """Lead of slurmctld's clock: scontrol evaluates `now` on the local machine."""
        self.unknown_users: frozenset[str] = frozenset()
        self._users: frozenset[str] = frozenset()
        self._extended_s = float("-inf")

    @property
    def is_open_for(self) -> frozenset[str]:
        """Return the users whose jobs may start."""
        return self._users

    def keep(self, users: Iterable[str]) -> bool:
        """Extend the lease when a third of it is over, or admit further users.

        Only users with a released job are admitted. Other users cannot start jobs by naming the
        reservation.

        Returns:
            True if the reservation had to be created again: jobs may have started without a
                release.
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
        """Move the reservation to other nodes.

        Raises:
            SlurmError: Slurm refuses.
        """
        self._client.update_reservation({"ReservationName": self.name, "Nodes": nodes})
        self.nodes = nodes

    def doubt(self) -> None:
        """Extend the lease at the next call: slurmctld may have lost the reservation."""
        self._extended_s = float("-inf")

    def remove(self) -> None:
        """Delete the reservation, so that Slurm schedules by itself. Running jobs continue."""
        self._users, self._extended_s = frozenset(), float("-inf")
        try:
            self._client.delete_reservation(self.name)
        except SlurmAway:
            raise
        except SlurmError:
            if any(each.name == self.name for each in self._client.reservations()):
                self._end()

    def others(self) -> list[str]:
        """Return valid reservations of other drivers on any of these nodes."""
        mine = set(expand_nodes(self.nodes))
        return [
            each.name
            for each in self._client.reservations()
            if each.name.startswith(PREFIX)
            and each.name != self.name
            and each.is_active
            # a reservation that running jobs use stays listed after its end
            and each.end_s > time.time() + self.ahead_s
            and mine & set(expand_nodes(each.nodes))
        ]

    def _fields(self, users: Iterable[str]) -> dict[str, str]:
        return {
            "ReservationName": self.name,
            "EndTime": _later(self.lease_s + self.ahead_s),
            "Users": ",".join(sorted(users)),
        }

    def _extend(self, fields: dict[str, str]) -> bool:
        """Extend the reservation; return True if it had to be created."""
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
        except SlurmError:  # it started in this second, and cannot end in the same second
            self._client.update_reservation({**fields, "EndTime": _later(self.ahead_s + 2)})

    def _make(self, fields: dict[str, str]) -> bool:
        """Create the reservation; return True if it had disappeared."""
        # An expired reservation stays listed for a while and blocks its name.
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
        """Admit one user: Slurm refuses a whole list if it does not know one user of it."""
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
