"""A real Slurm on this machine: a controller and several nodes with fake GPUs, for tests.

with SlurmLab(nodes=4, gpus=4) as lab:
    number = lab.submit("sleep 1", "--gres=gpu:1")
    lab.run("scontrol", "show", "job", str(number))
"""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from wattloop.core.errors import CommandError, ConfigError
from wattloop.testing.free_ports import PortBlock
from wattloop.testing.process_keeper import ProcessKeeper
from wattloop.testing.slurm_conf import NodeLine
from wattloop.testing.slurm_files import PATH, LabFiles, daemon_command

__all__ = ["SlurmLab", "why_no_slurm"]

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo", "munged")
PATIENCE_S = 60.0


def why_no_slurm() -> str:
    """Why no lab can be started here; empty when one can."""
    missing = [program for program in PROGRAMS if _find(program) is None]
    if missing:
        return f"Slurm is not installed ({', '.join(missing)} not found)"
    if os.geteuid() != 0:
        return "a Slurm of one's own needs root (fake GPUs are device files)"
    return ""


class SlurmLab:
    """A Slurm of its own: own folder, own ports, own munged.

    Args:
        folder: its logs and configuration are linked here as `slurm`, for a look afterwards.
        nodes: how many nodes, called n1, n2, ...
        gpus: GPUs of each node.
        cpus: cores of each node, whatever the machine has.
        gpu_type: of all nodes, or one for each.
        weights: of each node; Slurm takes those of low weight first.
        prolog: a program that every node runs before a job, with the node's environment.
        epilog: the same after a job.
        lua: text of a `job_submit.lua`.
        extra: further lines of `slurm.conf`; one of a name that we set replaces ours.
        environment: further variables of daemons, hooks and jobs; `{node}` is the node's name
            and `{folder}` the lab's folder.

    Raises:
        ConfigError: Slurm cannot run here (see `why_no_slurm`), or does not start.
    """

    def __init__(  # noqa: PLR0913 - each is one part of a cluster, and most tests name one or two
        self,
        folder: Path | None = None,
        *,
        nodes: int = 4,
        gpus: int = 4,
        cpus: int = 8,
        gpu_type: str | Sequence[str] = "a100",
        weights: Sequence[int] | None = None,
        prolog: Path | None = None,
        epilog: Path | None = None,
        lua: str | None = None,
        extra: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        reason = why_no_slurm()
        if reason:
            raise ConfigError(f"Slurm lab: {reason}")
        self._links = folder
        self._hooks = {"Prolog": prolog, "Epilog": epilog}
        self._lua, self._extra, self._given = lua, extra, dict(environment or {})
        types = [gpu_type] * nodes if isinstance(gpu_type, str) else list(gpu_type)
        self._ports = PortBlock()
        self.port = self._ports.take()
        self.nodes = tuple(
            NodeLine(
                f"n{number + 1}",
                self._ports.take(),
                cpus,
                types[number],
                gpus,
                weights[number] if weights else 1,
            )
            for number in range(nodes)
        )
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._keeper = ProcessKeeper("slurm", (f"SLURM_CLUSTER_NAME=lab{self.port}",))
        self.folder = self._keeper.folder
        try:
            LabFiles(
                folder=self.folder,
                port=self.port,
                nodes=self.nodes,
                hooks=self._hooks,
                lua=self._lua,
                extra=self._extra,
                variables={
                    node: {**self._keeper.environment, **self._variables_of(node)}
                    for node in self.node_names
                },
            ).write()
            self.start("munged")
            self.start("slurmctld")
            for node in self.node_names:
                self._spawn(node)
            self.wait_until_idle()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all its processes, jobs included; keep the logs if a folder was given."""
        if self._links is not None:
            kept = self._links / "slurm"
            shutil.copytree(self.folder / "log", kept, dirs_exist_ok=True)
            shutil.copy(self.folder / "slurm.conf", kept)
        self._keeper.close()
        for process in self._processes.values():
            process.wait()
        self._ports.close()

    @property
    def node_names(self) -> tuple[str, ...]:
        """n1, n2, ..."""
        return tuple(node.name for node in self.nodes)

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment in which Slurm's commands reach this lab.

        Processes started with it end with the lab.
        """
        path = os.environ.get("PATH", "")
        ours = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": f"{path}:{PATH}"}
        return {**os.environ, **ours, **self._keeper.environment}

    def environment_of(self, node: str) -> dict[str, str]:
        """The whole environment of a node's slurmd, hooks and agent."""
        return {**self.environment, **self._variables_of(node)}

    def run(self, *command: str, timeout_s: float = 60.0, check: bool = True) -> str:
        """What one of Slurm's commands prints.

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

    def start(self, name: str) -> None:
        """Start `slurmctld`, `munged` or a node, and wait until it answers."""
        self._spawn(name)
        if name == "munged":
            self.wait((self.folder / "munge.socket").exists, "munged does not start")
        elif name == "slurmctld":
            self.wait(
                lambda: "UP" in self.run("scontrol", "ping", check=False),
                "slurmctld does not answer",
            )
        else:
            self.wait_until_idle(name)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End `slurmctld` or a node's slurmd at once; running jobs go on.

        A slurmctld that is killed forgets what it was told in its last seconds, as it saves its
        state every few; SIGTERM lets it save.
        """
        process = self._processes.pop(name)
        process.send_signal(number)
        process.wait()

    def restart(self, name: str) -> None:
        """End it in good order and start it again."""
        self.kill(name, signal.SIGTERM)
        self.start(name)

    def wait_until_idle(self, *nodes: str) -> None:
        """Wait until these nodes (all unless given) are known to the controller and up."""
        names = ",".join(nodes or self.node_names)
        up = ("idle", "mix", "alloc", "comp")

        def all_up() -> bool:
            states = self.run("sinfo", "-h", "-N", "-n", names, "-o", "%t", check=False).split()
            return bool(states) and all(state in up for state in states)

        self.wait(all_up, f"nodes {names} do not come up")

    def wait_for_jobs(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until no job is pending or running."""
        self.wait(
            lambda: not self.run("squeue", "-h", "-o", "%i").strip(), "jobs do not end", timeout_s
        )

    def job_state(self, number: int) -> str:
        """`PENDING`, `RUNNING`, ...; empty when Slurm has forgotten the job."""
        listed = self.run("squeue", "-h", "-t", "all", "-j", str(number), "-o", "%T", check=False)
        return listed.strip()

    def wait_for_state(self, number: int, *states: str) -> None:
        """Wait until a job is in one of these states."""
        self.wait(lambda: self.job_state(number) in states, f"job {number} is not {states}")

    def wait(self, done: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until something is so; the error says what was waited for, with the last logs."""
        give_up_s = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > give_up_s:
                logs = "\n".join(
                    f"{path.name}: {line}"
                    for path in sorted((self.folder / "log").iterdir())
                    for line in path.read_text("utf-8", "replace").splitlines()[-5:]
                )
                raise ConfigError(f"Slurm lab: {what} within {timeout_s:g} s\n{logs}")
            time.sleep(0.05)

    def _variables_of(self, node: str) -> dict[str, str]:
        line = next(line for line in self.nodes if line.name == node)
        ours = {
            "WATTLOOP_NODE": node,
            "WATTLOOP_VIRTUAL_STATE": "{folder}/virtual/{node}.state",
            "WATTLOOP_VIRTUAL_MODEL": line.gpu_type,
        }
        given = {**ours, **self._given}
        return {k: v.format(node=node, folder=self.folder) for k, v in given.items()}

    def _spawn(self, name: str) -> None:
        folder, is_node = self.folder, name in self.node_names
        program, *options = daemon_command(folder, name, is_node=is_node)
        with (folder / "log" / f"{name}.out").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                [_find(program) or program, *options],
                env=self.environment_of(name) if is_node else self.environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{PATH}")
