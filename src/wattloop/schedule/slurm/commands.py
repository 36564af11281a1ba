"""Runner for Slurm's command-line programs, with a timeout and without a shell."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from wattloop.core.errors import ConfigError, SlurmAway, SlurmError

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


class SlurmCommands:
    """Runs squeue, sinfo and scontrol.

    Args:
        timeout_s: time without an answer after which Slurm counts as unreachable.
        environment: variables of the commands, such as SLURM_CONF; by default those of this
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

    def json(self, *command: str) -> Mapping[str, Any]:
        """Run a program and parse its JSON output.

        Raises:
            SlurmAway: no answer.
            SlurmError: the output is not JSON.
        """
        text = self.text(*command)
        try:
            data = json.loads(text)
        except ValueError:
            raise SlurmError(
                f"Slurm: '{' '.join(command)}' printed no JSON; 22.05 or newer is needed, with "
                "its serializer plugin (Debian: slurm-wlm-basic-plugins)"
            ) from None
        if not isinstance(data, Mapping):
            raise SlurmError(f"Slurm: '{' '.join(command)}' printed no object")
        return data

    def text(self, *command: str) -> str:
        """Run a program and return its output as text."""
        return self.output(*command).decode("utf-8", "replace")

    def output(self, *command: str) -> bytes:
        """Run a program and return its output.

        Raises:
            SlurmAway: slurmctld does not answer, or not in time.
            SlurmError: Slurm refuses the command.
            ConfigError: the program is not installed.
        """
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
        said = done.stderr.decode("utf-8", "replace").strip()
        if done.returncode:
            kind = SlurmAway if any(word in said for word in AWAY) else SlurmError
            short = " ".join(said.split())[:LONGEST] or f"exit code {done.returncode}"
            raise kind(f"Slurm: {command[0]}: {short}")
        return output
