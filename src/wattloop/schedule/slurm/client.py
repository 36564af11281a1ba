"""Slurm client: runs scontrol, squeue, sinfo and sacctmgr, with a timeout and without a shell."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError, SlurmAway, SlurmError
from wattloop.schedule.driver.inventory import SchedulerJob, SchedulerNode
from wattloop.schedule.slurm.squeue import JobLister, parse_gpus

AWAY = (
    "Unable to contact slurm controller",
    "Connection refused",
    "Socket timed out",
    "Communication connection failure",
    "Zero Bytes were transmitted",
    "Slurm backup controller in standby mode",
    "Unable to establish configuration source",
    "Protocol authentication error",
    "Invalid authentication credential",
    "Munge",
)
LONGEST = 20_000
"""Longest error text kept of a program's output: one line for each of many jobs fits."""
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
FIELD = re.compile(r"(\w+)=(\S*)")
REFUSED = re.compile(r"for job (\d+(?:_\d+)?)", re.ASCII)


class SlurmReservation(NamedTuple):
    """Slurm reservation; `end_s` in seconds since 1970, `users` may name it."""

    name: str
    nodes: str
    end_s: float
    users: tuple[str, ...]
    is_active: bool


class SlurmClient:
    """Slurm client that calls Slurm's command-line programs.

    Every call raises SlurmAway when slurmctld does not answer in time, SlurmError when Slurm
    refuses, and ConfigError when the program is not installed.

    Args:
        timeout_s: time without an answer after which Slurm counts as unreachable.
        environment: variables of the programs, such as SLURM_CONF; by default those of this
            process.

    Attributes:
        calls: number of calls, by program.
    """

    def __init__(
        self, timeout_s: float = 10.0, environment: Mapping[str, str] | None = None
    ) -> None:
        self.timeout_s = timeout_s
        given = dict(os.environ if environment is None else environment)
        # Fixed formats of texts and times, independent of the operator's shell.
        unwanted = ("SQUEUE_", "SINFO_", "SCONTROL_", "SLURM_TIME_FORMAT")
        self._environment = {k: v for k, v in given.items() if not k.startswith(unwanted)}
        self._environment |= {"LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"}
        self._path = f"{given.get('PATH', '')}:{PATH}"
        self.calls: dict[str, int] = {}
        self._lister = JobLister(self.output)

    @property
    def total_calls(self) -> int:
        return sum(self.calls.values())

    # -- queries ---------------------------------------------------------------------------

    def jobs(self) -> list[SchedulerJob]:
        """Return all jobs that wait or have an allocation."""
        return self._lister.jobs()

    def nodes(self) -> list[SchedulerNode]:
        command = ("sinfo", "--all", "--json")
        try:
            data = json.loads(self.text(*command))
        except ValueError:
            raise SlurmError(
                f"Slurm: '{' '.join(command)}' printed no JSON; 22.05 or newer is needed, with "
                "its serializer plugin (Debian: slurm-wlm-basic-plugins)"
            ) from None
        return nodes_from(data)

    def ahead_s(self) -> float:
        """Return the lead of slurmctld's clock over the local one; 0 when it is unknown."""
        asked_s = time.time()
        match = re.search(r"output at .*\((\d+)\)", self.text("sdiag"))
        found_s = 0.0 if match is None else int(match[1]) + 0.5 - asked_s
        return found_s if abs(found_s) > 2.0 else 0.0  # sdiag shows whole seconds

    def cluster_name(self) -> str:
        """Return the cluster name of slurm.conf; empty when it is unknown."""
        text = self.text("scontrol", "show", "config")
        match = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
        return "" if match is None else match[1]

    def reservations(self) -> list[SlurmReservation]:
        return reservations_from(self.text("scontrol", "show", "reservation", "-o"))

    # -- changes ---------------------------------------------------------------------------

    def create_reservation(self, fields: Mapping[str, str]) -> None:
        self.text("scontrol", "create", "reservation", *_words(fields))

    def update_reservation(self, fields: Mapping[str, str]) -> None:
        """Change a reservation; `fields` contains its name."""
        self.text("scontrol", "update", *_words(fields))

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation; waiting jobs that name it continue to wait without it."""
        self.text("scontrol", "delete", f"ReservationName={name}")

    def update_job(self, key: str, fields: Mapping[str, str]) -> None:
        self.text(*update_command(key, fields))

    def update_jobs(self, keys: Sequence[str], fields: Mapping[str, str]) -> dict[str, str]:
        """Apply the same change to several jobs; return the error of each refused job."""
        # With a node list, scontrol misreads several job numbers as one invalid number.
        if "ReqNodeList" in fields and len(keys) > 1:
            return {k: v for key in keys for k, v in self.update_jobs([key], fields).items()}
        try:
            self.update_job(",".join(keys), fields)
        except SlurmAway:
            raise
        except SlurmError as error:
            named = dict.fromkeys(REFUSED.findall(str(error)), str(error))
            refused = {key: message for key, message in named.items() if key in keys}
            return refused or dict.fromkeys(keys, str(error))
        return {}

    def requeue(self, key: str) -> None:
        """Stop a job and put it back into the queue."""
        self.text("scontrol", "requeue", key)

    def annotate_finished_job(self, number: str, text: str) -> None:
        """Write the AdminComment of a finished job into slurmdbd."""
        words = ("where", f"JobID={number}", "set", f"AdminComment={text}")
        self.text("sacctmgr", "--immediate", "modify", "job", *words)

    # -- programs --------------------------------------------------------------------------

    def text(self, *command: str) -> str:
        return self.output(*command).decode("utf-8", "replace")

    def output(self, *command: str) -> bytes:
        program = shutil.which(command[0], path=self._path)
        if program is None:
            raise ConfigError(f"Slurm: no program {command[0]} in PATH; is this a Slurm machine?")
        self.calls[command[0]] = self.calls.get(command[0], 0) + 1
        # A file instead of a pipe: with long job lists, a pipe wakes both sides every few
        # kilobytes.
        with os.fdopen(os.memfd_create("wattloop-slurm"), "rb") as printed:
            try:
                done = subprocess.run(
                    [program, *command[1:]],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C must not interrupt a change halfway
                    timeout=self.timeout_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise SlurmAway(
                    f"Slurm: no answer to {command[0]} within {self.timeout_s:g} s"
                ) from None
            printed.seek(0)
            output = printed.read()
        message = done.stderr.decode("utf-8", "replace").strip()
        if done.returncode:
            kind = SlurmAway if any(word in message for word in AWAY) else SlurmError
            short = " ".join(message.split())[:LONGEST] or f"exit code {done.returncode}"
            if "configuration source" in message:
                short += (
                    "; run this on a machine of the cluster, or name its slurm.conf in SLURM_CONF"
                )
            raise kind(f"Slurm: {command[0]}: {short}")
        return output


def update_command(key: str, fields: Mapping[str, str]) -> tuple[str, ...]:
    return ("scontrol", "update", f"JobId={key}", *_words(fields))


def reservations_from(text: str) -> list[SlurmReservation]:
    """Parse the output of `scontrol show reservation`."""
    found = []
    for line in text.splitlines():
        fields = dict(FIELD.findall(line))
        if "ReservationName" in fields:
            end = fields.get("EndTime", "")
            found.append(
                SlurmReservation(
                    fields["ReservationName"],
                    fields.get("Nodes", ""),
                    float(end) if end.isdigit() else 0.0,
                    tuple(name for name in fields.get("Users", "").split(",") if name),
                    fields.get("State") == "ACTIVE",
                )
            )
    return found


def _words(fields: Mapping[str, str]) -> list[str]:
    """Format fields as `Name=value`. Without a shell, a value cannot start another field."""
    for name, value in fields.items():
        if "\n" in value or "\0" in value:
            raise SlurmError(f"Slurm: {name} would have a line break in it")
    return [f"{name}={value}" for name, value in fields.items()]


# Fields of Slurm's JSON; a field of the wrong type becomes the default. Slurm 22.05 writes one
# word where later versions write a list.

LONGEST_FIELD = 10_000
"""Longest text that is read from a field."""


def _text_of(data: Mapping[str, Any], name: str) -> str:
    """Return a text field; empty when it is missing or not a text."""
    value = data.get(name)
    if isinstance(value, list) and value and isinstance(value[0], str):
        value = value[0]
    return value[:LONGEST_FIELD] if isinstance(value, str) else ""


def _list_of(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a field that is a list of words or a single word."""
    value = data.get(name)
    if isinstance(value, str):
        return (value,)
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()


NODE_AWAY = (
    "DOWN", "DRAIN", "DRAINED", "FAIL", "FAILING", "MAINTENANCE", "MAINT", "NOT_RESPONDING",
    "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "REBOOT", "REBOOT_ISSUED", "UNKNOWN", "FUTURE",
)  # fmt: skip


def nodes_from(data: Any) -> list[SchedulerNode]:
    """Parse the nodes in the output of `sinfo --json`."""
    listed = data.get("nodes") if isinstance(data, Mapping) else None
    if not isinstance(listed, list):
        raise SlurmError("Slurm: 'sinfo --json' gave no list of nodes")
    return [_node(each) for each in listed if isinstance(each, Mapping) and _text_of(each, "name")]


def _node(data: Mapping[str, Any]) -> SchedulerNode:
    gpus = parse_gpus(_text_of(data, "gres"))
    states = {word.upper() for word in (*_list_of(data, "state"), *_list_of(data, "state_flags"))}
    return SchedulerNode(
        _text_of(data, "name"),
        gpus.type_name,
        gpus.number,
        _list_of(data, "partitions"),
        not states & set(NODE_AWAY),
    )
