"""Test servers in a temporary folder and on free ports, ended with the test."""

import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from wattloop.core.errors import ConfigError

from .free_ports import PortBlock
from .process_keeper import ProcessKeeper

PATIENCE_S = 300.0


class Lab(ABC):
    """Servers that run inside the block; after its end or a kill, they and their folder are
    removed.

    Args:
        kept: folder to which its logs are copied when it ends.
    """

    title: ClassVar[str]
    """What messages call it; its first word, in small letters, is in the folder's name."""

    def __init__(self, kept: Path | None = None) -> None:
        self._kept = kept
        self._ports = PortBlock()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @abstractmethod
    def _begin(self) -> None:
        """Write files and start servers."""

    def _marks(self) -> tuple[str, ...]:
        """Return further lines in the environment of the lab's processes."""
        return ()

    def __enter__(self) -> Self:
        self._keeper = ProcessKeeper(self.title.split()[0].lower(), self._marks())
        self.folder = self._keeper.folder
        self.logs.mkdir()
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all its processes; keep the logs if a folder was given for them."""
        if self._kept is not None:
            shutil.copytree(self.logs, self._kept, dirs_exist_ok=True)
        self._keeper.close()
        for process in self._processes.values():
            process.wait()
        self._ports.close()

    @property
    def logs(self) -> Path:
        """Return the output of its servers, a file each."""
        return self.folder / "log"

    def wait(self, done: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a condition holds.

        Raises:
            ConfigError: it never did; with its description and the last logs.
        """
        give_up_s = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > give_up_s:
                raise self._fault(f"{what} within {timeout_s:g} s")
            time.sleep(0.05)

    def _fault(self, what: str) -> ConfigError:
        lines = "\n".join(
            f"{path.name}: {line}"
            for path in sorted(self.logs.iterdir())
            for line in path.read_text("utf-8", "replace").splitlines()[-5:]
        )
        return ConfigError(f"{self.title}: {what}\n{lines}")

    def _started(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        account: str | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own that ends with the lab.

        Args:
            name: of its log.
            command: program and arguments.
            environment: the whole environment; the lab's mark is added.
            account: the user that it runs as; this user by default.
        """
        with (self.logs / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                command,
                env={**environment, **self._keeper.environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                user=account,
                group=account,
                extra_groups=None if account is None else (),
                start_new_session=True,
            )
        self._processes[name] = process
        return process
