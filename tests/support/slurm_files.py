"""The files of a lab's Slurm: configuration, device files, hooks with the environment of a node."""

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .slurm_conf import (
    NodeLine,
    gres_conf,
    shell_exports,
    slurm_conf,
    write_script,
)

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
FOLDERS = ("state", "spool", "dev", "munge", "virtual", "hooks", "environment")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabFiles:
    """Everything that a lab's daemons find in its folder.

    Attributes:
        folder: of the lab.
        port: of slurmctld.
        nodes: as `slurm.conf` has them.
        hooks: `Prolog` and `Epilog` -> a program of the test, or None.
        lua: text of a `job_submit.lua`.
        extra: further lines of `slurm.conf`.
        variables: node -> environment of its hooks and jobs.
    """

    folder: Path
    port: int
    nodes: Sequence[NodeLine]
    hooks: Mapping[str, Path | None]
    lua: str | None
    extra: str
    variables: Mapping[str, Mapping[str, str]]

    def write(self) -> None:
        """Make the folder ready for a first start."""
        folder = self.folder
        for name in FOLDERS:
            (folder / name).mkdir()
        (folder / "munge").chmod(0o700)
        (folder / "munge" / "key").write_bytes(os.urandom(128))
        (folder / "munge" / "key").chmod(0o600)
        for number in range(max(node.gpus for node in self.nodes)):
            path = folder / "dev" / f"nvidia{number}"
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        for node, variables in self.variables.items():
            state = folder / "virtual" / f"{node}.state"
            state.touch()
            state.chmod(0o666)  # jobs of every user load the node's virtual cards
            (folder / "environment" / node).write_text(shell_exports(variables), "utf-8")
        if self.lua is not None:
            (folder / "job_submit.lua").write_text(self.lua, "utf-8")
        (folder / "gres.conf").write_text(gres_conf(folder, self.nodes), "utf-8")
        text = slurm_conf(folder, self.port, self.nodes, self._hook_lines(), self.extra)
        (folder / "slurm.conf").write_text(text, "utf-8")

    def _hook_lines(self) -> dict[str, str]:
        """Slurm starts hooks and jobs with hardly any environment; these lines set the node's."""
        of_node = f"{self.folder}/environment/$SLURMD_NODENAME"
        hooks = self.folder / "hooks"
        task = write_script(hooks / "task", f'#!/bin/sh\nexec cat "{of_node}"\n')
        lines = {"TaskProlog": str(task)}
        for name, program in self.hooks.items():
            if program is not None:
                text = f'#!/bin/sh\n. "{of_node}"\nexport SLURM_CONF={self.folder}/slurm.conf\n'
                text += f'export PATH={PATH}\nexec "{program.absolute()}" "$@"\n'
                lines[name] = str(write_script(hooks / name.lower(), text))
        if self.hooks.get("Prolog") is not None:
            lines["PrologFlags"] = "Alloc"  # on every node of the job, before its first task
        if self.lua is not None:
            lines["JobSubmitPlugins"] = "lua"
        return lines


def daemon_command(folder: Path, name: str, *, is_node: bool) -> list[str]:
    """Return the command that starts `munged`, `slurmctld` or a node's slurmd in the foreground."""
    if name == "munged":
        return [
            name, "--foreground", "--force", f"--socket={folder}/munge.socket",
            f"--key-file={folder}/munge/key", f"--pid-file={folder}/munge/pid",
            f"--log-file={folder}/log/munged.log", f"--seed-file={folder}/munge/seed",
        ]  # fmt: skip
    which = ["-N", name] if is_node else []
    return ["slurmd" if is_node else name, "-D", "-f", str(folder / "slurm.conf"), *which]
