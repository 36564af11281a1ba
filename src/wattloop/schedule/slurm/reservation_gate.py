"""Reservation of the managed nodes that expires unless the driver extends it.

Jobs start only if they name the reservation, and the driver sets it for the jobs that it releases.
If the driver crashes, the reservation expires after `lease_s`, Slurm clears it from waiting jobs
(NO_HOLD_JOBS_AFTER) and schedules by itself again. No job is ever held (ADR 0043).
"""

import time
from collections.abc import Iterable

from wattloop.core.errors import SlurmAway, SlurmError
from wattloop.fleet.slurm_text import expand_nodes
from wattloop.schedule.slurm.client import SlurmClient

PREFIX = "wattloop_"
FLAGS = "FLEX,IGNORE_JOBS,NO_HOLD_JOBS_AFTER,OVERLAP"
"""FLEX: running jobs may outlive it. IGNORE_JOBS: running jobs do not prevent its creation."""


class ReservationGate:
    """Reservation with a lease.

    Args:
        name: name of the reservation, `wattloop_` and an identifier of the driver.
        owner: user who may always name it: the user who runs the driver.
        lease_s: time after which it expires unless extended.
    """

    def __init__(
        self, client: SlurmClient, name: str, nodes: str, owner: str, lease_s: float
    ) -> None:
        self._client, self.name, self.nodes = client, name, nodes
        self._owner, self.lease_s = owner, lease_s
        self.ahead_s = 0.0
        """Lead of slurmctld's clock: scontrol evaluates `now` on the local machine."""
        self.users: frozenset[str] = frozenset()
        """Users whose jobs may start."""
        self.unknown_users: frozenset[str] = frozenset()
        self._extended_s = float("-inf")

    def extend(self, users: Iterable[str]) -> bool:
        """Extend the lease when a third of it is over, or admit further users.

        Only users with a released job are admitted. Other users cannot start jobs by naming the
        reservation.

        Returns:
            True if the reservation had to be created again: jobs may have started without a
                release.
        """
        wanted = frozenset({*users, self._owner}) - self.unknown_users
        now_s = time.monotonic()
        if now_s - self._extended_s < self.lease_s / 3 and wanted <= self.users:
            return False
        fields = self._fields(wanted)
        is_known = self._extended_s != float("-inf")
        made = not (is_known and self._try_update(fields)) and self._make(fields)
        self.users, self._extended_s = wanted, now_s
        return made

    def move(self, nodes: str) -> None:
        """Move the reservation to other nodes."""
        self._client.update_reservation({"ReservationName": self.name, "Nodes": nodes})
        self.nodes = nodes

    def doubt(self) -> None:
        """Extend the lease at the next call: slurmctld may have lost the reservation."""
        self._extended_s = float("-inf")

    def remove(self) -> None:
        """Delete the reservation, so that Slurm schedules by itself. Running jobs continue."""
        self.users, self._extended_s = frozenset(), float("-inf")
        try:
            self._client.delete_reservation(self.name)
        except SlurmAway:
            raise
        except SlurmError:
            if any(each.name == self.name for each in self._client.reservations()):
                fields = {"ReservationName": self.name}
                if not self._try_update({**fields, "EndTime": _later(self.ahead_s)}):
                    # It started in this second, and cannot end in the same second.
                    later = {**fields, "EndTime": _later(self.ahead_s + 2)}
                    self._client.update_reservation(later)

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

    def _try_update(self, fields: dict[str, str]) -> bool:
        """Change the reservation; False when Slurm refuses."""
        try:
            self._client.update_reservation(fields)
        except SlurmAway:
            raise
        except SlurmError:
            return False
        return True

    def _make(self, fields: dict[str, str]) -> bool:
        """Create the reservation; return True if it had disappeared."""
        # An expired reservation stays listed for a while and blocks its name.
        listed = [each for each in self._client.reservations() if each.name == self.name]
        if not listed:
            begin = {"StartTime": _later(self.ahead_s), "Nodes": self.nodes, "Flags": FLAGS}
            self._client.create_reservation({**fields, **begin, "Users": self._owner})
        if not self._try_update(fields):
            # Slurm refuses a whole list if it does not know one user of it.
            self._client.update_reservation(self._fields([self._owner]))
            for name in set(fields["Users"].split(",")) - {self._owner}:
                if not self._try_update({"ReservationName": self.name, "Users+": name}):
                    self.unknown_users |= {name}
        return not (listed and listed[0].is_active)


def _later(seconds: float) -> str:
    whole = round(seconds)
    return f"now{whole:+d}seconds" if whole else "now"
