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
    """Entered, its servers run; left or killed, neither they nor their folder are there any more.

    Args:
        kept: where its logs are copied to when it ends, for a look afterwards.
    """

    title: ClassVar[str]
    """What messages call it; its first word, in small letters, is in the folder's name."""

    def __init__(self, kept: Path | None = None) -> None:
        self._kept = kept
        self._ports = PortBlock()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @abstractmethod
    def _begin(self) -> None:
        """Write files, start servers."""

    def _marks(self) -> tuple[str, ...]:
        """Further lines in the environment of processes that are the lab's."""
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
        """What its servers say, a file each."""
        return self.folder / "log"

    def wait(self, done: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until something is so.

        Raises:
            ConfigError: it never was; with what was waited for, and the last logs.
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
        """A process in a session of its own, that ends with the lab.

        Args:
            name: of its log.
            command: program and words.
            environment: all of it; what marks it as ours is added.
            account: the user that it runs as; ourselves by default.
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
