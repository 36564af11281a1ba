"""A real Slurm on this machine: a controller and several nodes with fake GPUs, for tests.

with SlurmLab(nodes=4, gpus=4) as lab:
    number = lab.submit("sleep 1", "--gres=gpu:1")
    lab.run("scontrol", "show", "job", str(number))
"""

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from wattloop.core.errors import ConfigError

from .slurm_commands import SlurmCommands
from .slurm_conf import NodeLine
from .slurm_files import PATH, LabFiles, daemon_command

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo", "munged")


def why_no_slurm() -> str:
    """Return the reason why no lab can be started here; empty when one can."""
    missing = [program for program in PROGRAMS if _find(program) is None]
    if missing:
        return f"Slurm is not installed ({', '.join(missing)} not found)"
    if os.geteuid() != 0:
        return "a Slurm of one's own needs root (fake GPUs are device files)"
    return ""


class SlurmLab(SlurmCommands):
    """A Slurm of its own: own folder, own ports, own munged.

    Args:
        folder: its logs and configuration are copied here as `slurm` at the end.
        nodes: how many nodes, called n1, n2, ...
        gpus: GPUs of each node.
        cpus: cores of each node, whatever the machine has.
        gpu_type: of all nodes, or one for each.
        weights: of each node; Slurm takes those of low weight first.
        prolog: a program that every node runs before a job, with the node's environment.
        epilog: the same after a job.
        lua: text of a `job_submit.lua`.
        extra: further lines of `slurm.conf`; they replace default ones of the same name.
        environment: further variables of daemons, hooks and jobs; `{node}` is the node's name
            and `{folder}` the lab's folder.

    Raises:
        ConfigError: Slurm cannot run here (see `why_no_slurm`), or does not start.
    """

    title: ClassVar[str] = "Slurm lab"

    def __init__(
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
        super().__init__(None if folder is None else folder / "slurm")
        self._hooks = {"Prolog": prolog, "Epilog": epilog}
        self._lua, self._extra, self._given = lua, extra, dict(environment or {})
        types = [gpu_type] * nodes if isinstance(gpu_type, str) else list(gpu_type)
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

    def close(self) -> None:
        """End all its processes, jobs included; keep logs and configuration if a folder was
        given.
        """
        if self._kept is not None and (self.folder / "slurm.conf").exists():
            self._kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.folder / "slurm.conf", self._kept)
        super().close()

    def _marks(self) -> tuple[str, ...]:
        return (f"SLURM_CLUSTER_NAME=lab{self.port}",)  # jobs that were given no environment

    def _begin(self) -> None:
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
            self.spawn(node)
        self.wait_until_idle()

    @property
    def node_names(self) -> tuple[str, ...]:
        """Return n1, n2, ..."""
        return tuple(node.name for node in self.nodes)

    @property
    def environment(self) -> dict[str, str]:
        """Return the whole environment in which Slurm's commands reach this lab.

        Processes started with it end with the lab.
        """
        path = os.environ.get("PATH", "")
        ours = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": f"{path}:{PATH}"}
        return {**os.environ, **ours, **self._keeper.environment}

    def environment_of(self, node: str) -> dict[str, str]:
        """Return the whole environment of a node's slurmd, hooks and agent."""
        return {**self.environment, **self._variables_of(node)}

    def start(self, name: str) -> None:
        """Start `slurmctld`, `munged` or a node, and wait until it answers."""
        self.spawn(name)
        if name == "munged":
            self.wait((self.folder / "munge.socket").exists, "munged does not start")
        elif name == "slurmctld":
            self.wait(
                lambda: "UP" in self.run("scontrol", "ping", check=False),
                "slurmctld does not answer",
            )
        else:
            self.wait_until_idle(name)

    def spawn(self, name: str) -> None:
        """Start it as `start` does, without waiting."""
        is_node = name in self.node_names
        program, *options = daemon_command(self.folder, name, is_node=is_node)
        self._started(
            name,
            [_find(program) or program, *options],
            self.environment_of(name) if is_node else self.environment,
        )

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End `slurmctld` or a node's slurmd at once; running jobs continue.

        A killed slurmctld loses its last seconds, as it writes its state every few seconds; SIGTERM
        lets it write.
        """
        process = self._processes.pop(name)
        process.send_signal(number)
        process.wait()

    def restart(self, name: str) -> None:
        """Stop it in good order and start it again."""
        self.kill(name, signal.SIGTERM)
        self.start(name)

    def _variables_of(self, node: str) -> dict[str, str]:
        line = next(line for line in self.nodes if line.name == node)
        ours = {
            "WATTLOOP_NODE": node,
            "WATTLOOP_VIRTUAL_STATE": "{folder}/virtual/{node}.state",
            "WATTLOOP_VIRTUAL_MODEL": line.gpu_type,
        }
        given = {**ours, **self._given}
        return {k: v.format(node=node, folder=self.folder) for k, v in given.items()}


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{PATH}")
