"""Slurm commands for tests: submit, query and wait for jobs."""

import pwd
import subprocess
from abc import abstractmethod

from wattloop.core.errors import CommandError

from .lab import PATIENCE_S, Lab

UP = ("idle", "mix", "alloc", "comp")


class SlurmCommands(Lab):
    """A lab in which Slurm's commands reach a controller."""

    @property
    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Return the whole environment in which Slurm's commands reach this lab."""

    @property
    @abstractmethod
    def node_names(self) -> tuple[str, ...]:
        """Return n1, n2, ..."""

    def run(self, *command: str, timeout_s: float = 60.0, check: bool = True) -> str:
        """Run one of Slurm's commands and return its output.

        Raises:
            CommandError: it failed, and `check` was not False.
        """
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode:
            what = f"{' '.join(command)}: {done.stderr.strip()}"
            raise CommandError(what, done.returncode)
        return done.stdout

    def submit(self, command: str, *options: str, user: str | None = None) -> int:
        """Submit a batch job that runs a shell command; returns its number.

        Its output goes nowhere unless `options` say otherwise. `user` is any Unix account.
        """
        account = pwd.getpwnam(user) if user else None
        as_user = (
            (f"--uid={account.pw_uid}", f"--gid={account.pw_gid}", "--chdir=/") if account else ()
        )
        quiet = ("--output=/dev/null", "--error=/dev/null")
        wrapped = f"--wrap={command}"
        return int(self.run("sbatch", "--parsable", *quiet, *as_user, *options, wrapped))

    def wait_until_idle(self, *nodes: str) -> None:
        """Wait until these nodes (all unless given) are known to the controller and up."""
        names = ",".join(nodes or self.node_names)

        def all_up() -> bool:
            states = self.run("sinfo", "-h", "-N", "-n", names, "-o", "%t", check=False).split()
            return bool(states) and all(state in UP for state in states)

        self.wait(all_up, f"nodes {names} do not come up")

    def wait_for_jobs(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until no job is pending or running."""
        self.wait(
            lambda: not self.run("squeue", "-h", "-o", "%i").strip(), "jobs do not end", timeout_s
        )

    def job_state(self, number: int) -> str:
        """Return `PENDING`, `RUNNING`, ...; empty when Slurm has forgotten the job."""
        listed = self.run("squeue", "-h", "-t", "all", "-j", str(number), "-o", "%T", check=False)
        return listed.strip()

    def wait_for_state(self, number: int, *states: str) -> None:
        """Wait until a job is in one of these states."""
        self.wait(lambda: self.job_state(number) in states, f"job {number} is not {states}")
