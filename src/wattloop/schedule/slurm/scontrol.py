"""Slurm client: the calls of scontrol, squeue, sinfo and sacctmgr that the driver makes."""

import re
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wattloop.core.errors import SlurmAway, SlurmError
from wattloop.schedule.slurm.commands import SlurmCommands
from wattloop.schedule.slurm.nodes import SlurmNode, nodes_from
from wattloop.schedule.slurm.squeue import JobLister, SlurmJob

FIELD = re.compile(r"(\w+)=(\S*)")


class Reservation(NamedTuple):
    """Slurm reservation.

    Attributes:
        end_s: seconds since 1970.
        users: users who may name it.
    """

    name: str
    nodes: str
    end_s: float
    users: tuple[str, ...]
    is_active: bool


def reservations_from(text: str) -> list[Reservation]:
    """Parse the output of `scontrol show reservation`."""
    found = []
    for line in text.splitlines():
        fields = dict(FIELD.findall(line))
        if "ReservationName" in fields:
            found.append(
                Reservation(
                    fields["ReservationName"],
                    fields.get("Nodes", ""),
                    _time_s(fields.get("EndTime", "")),
                    tuple(name for name in fields.get("Users", "").split(",") if name),
                    fields.get("State") == "ACTIVE",
                )
            )
    return found


def _time_s(text: str) -> float:
    return float(text) if text.isdigit() else 0.0


REFUSED = re.compile(r"for job (\d+(?:_\d+)?)", re.ASCII)


class SlurmClient:
    """Slurm client that calls Slurm's command-line programs.

    Args:
        commands: runner of the programs.
    """

    def __init__(self, commands: SlurmCommands | None = None) -> None:
        self.commands = commands or SlurmCommands()
        self._lister = JobLister(self.commands)

    def jobs(self) -> list[SlurmJob]:
        """Return all jobs that wait or have an allocation."""
        return self._lister.jobs()

    def nodes(self) -> list[SlurmNode]:
        return nodes_from(self.commands.json("sinfo", "--all", "--json"))

    def ahead_s(self) -> float:
        """Return the lead of slurmctld's clock over the local one; 0 when it is unknown."""
        asked_s = time.time()
        match = re.search(r"output at .*\((\d+)\)", self.commands.text("sdiag"))
        found_s = 0.0 if match is None else int(match[1]) + 0.5 - asked_s
        return found_s if abs(found_s) > 2.0 else 0.0  # sdiag shows whole seconds

    def cluster_name(self) -> str:
        """Return the cluster name of slurm.conf; empty when it is unknown."""
        text = self.commands.text("scontrol", "show", "config")
        match = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
        return "" if match is None else match[1]

    def note_in_accounts(self, number: str, text: str) -> None:
        """Write the AdminComment of a finished job into slurmdbd."""
        words = ("where", f"JobID={number}", "set", f"AdminComment={text}")
        self.commands.text("sacctmgr", "--immediate", "modify", "job", *words)

    def reservations(self) -> list[Reservation]:
        return reservations_from(self.commands.text("scontrol", "show", "reservation", "-o"))

    def create_reservation(self, fields: Mapping[str, str]) -> None:
        self.commands.text("scontrol", "create", "reservation", *_words(fields))

    def update_reservation(self, fields: Mapping[str, str]) -> None:
        """Change a reservation; `fields` contains its name."""
        self.commands.text("scontrol", "update", *_words(fields))

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation; waiting jobs that name it continue to wait without it."""
        self.commands.text("scontrol", "delete", f"ReservationName={name}")

    def update_job(self, command: Sequence[str]) -> None:
        """Change a job, with a command of `update_words`."""
        self.commands.text(*command)

    def update_jobs(self, keys: Sequence[str], fields: Mapping[str, str]) -> dict[str, str]:
        """Apply the same change to several jobs; return the error of each refused job."""
        # With a node list, scontrol misreads several job numbers as one invalid number.
        if "ReqNodeList" in fields and len(keys) > 1:
            return {k: v for key in keys for k, v in self.update_jobs([key], fields).items()}
        try:
            self.commands.text(*update_words(",".join(keys), fields))
        except SlurmAway:
            raise
        except SlurmError as error:
            named = dict.fromkeys(REFUSED.findall(str(error)), str(error))
            refused = {key: said for key, said in named.items() if key in keys}
            return refused or dict.fromkeys(keys, str(error))
        return {}

    def requeue(self, key: str) -> None:
        """Stop a job and put it back into the queue."""
        self.commands.text("scontrol", "requeue", key)


def update_words(key: str, fields: Mapping[str, str]) -> tuple[str, ...]:
    """Build the command that changes a job."""
    return ("scontrol", "update", f"JobId={key}", *_words(fields))


def _words(fields: Mapping[str, str]) -> list[str]:
    """Format fields as `Name=value`. Without a shell, a value cannot start another field."""
    for name, value in fields.items():
        if "\n" in value or "\0" in value:
            raise SlurmError(f"Slurm: {name} would have a line break in it")
    return [f"{name}={value}" for name, value in fields.items()]
