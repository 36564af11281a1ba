"""A PostgreSQL server of its own, which a test may kill and start again.

with PostgresLab() as postgres:
    store = open_store(postgres.url)
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from wattloop.core.errors import ConfigError
from wattloop.testing.free_ports import PortBlock
from wattloop.testing.process_keeper import ProcessKeeper

__all__ = ["PostgresLab", "why_no_postgres"]

PATIENCE_S = 60.0
ACCOUNT = "postgres"
"""PostgreSQL refuses to run as root."""


def why_no_postgres() -> str:
    """Why no server can be started here; empty when one can."""
    if _program("initdb") is None:
        return "PostgreSQL is not installed (initdb not found)"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam(ACCOUNT)
        except KeyError:
            return f"PostgreSQL does not run as root, and there is no account '{ACCOUNT}'"
    return ""


class PostgresLab:
    """A server with an empty database and a user `wattloop`, on 127.0.0.1.

    What was committed survives `kill`, as on a server that lost its power supply: it syncs.

    Args:
        settings: further lines of `postgresql.conf`, such as `max_connections = 20`.

    Raises:
        ConfigError: no server can run here (see `why_no_postgres`), or it does not start.
    """

    def __init__(self, settings: str = "") -> None:
        reason = why_no_postgres()
        if reason:
            raise ConfigError(f"PostgreSQL lab: {reason}")
        self._settings = settings
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._ports = PortBlock()
        self._port = self._ports.take()
        self._keeper = ProcessKeeper("postgres")
        self.folder = self._keeper.folder
        try:
            self._create()
            self.start()
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
        """End the server and remove its data."""
        self._keeper.close()
        if self._server is not None:
            self._server.wait()
        self._ports.close()

    @property
    def url(self) -> str:
        """Where `serve` and the store find it."""
        return f"postgresql://wattloop@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        data = self.folder / "data"
        self._server = self._spawn(_found("postgres"), "-D", str(data))
        give_up_s = time.monotonic() + PATIENCE_S
        while not self._answers():
            if self._server.poll() is not None or time.monotonic() > give_up_s:
                log = (self.folder / "log").read_text("utf-8", "replace")[-2_000:]
                raise ConfigError(f"PostgreSQL lab: the server does not start\n{log}")
            time.sleep(0.05)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it at once, its connections included."""
        if self._server is None:
            return
        os.killpg(self._server.pid, number)
        self._server.wait()
        self._server = None
        # Workers have sessions of their own and end when they notice that the server is gone; a
        # new server would refuse to start beside them.
        give_up_s = time.monotonic() + PATIENCE_S
        while self._has_workers() and time.monotonic() < give_up_s:
            time.sleep(0.01)

    def restart(self) -> None:
        """Kill and start."""
        self.kill()
        self.start()

    def _has_workers(self) -> bool:
        """Whether processes of a server that is gone still have its shared memory."""
        try:
            # Its seventh line: key and id of the block.
            noted = (self.folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()
            blocks = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
        except (OSError, IndexError):
            return False
        columns = (line.split() for line in blocks)
        return any(row[1] == noted[1] and int(row[6]) > 0 for row in columns)

    def _create(self) -> None:
        if os.geteuid() == 0:
            account = pwd.getpwnam(ACCOUNT)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        options = ("-A", "trust", "-U", "wattloop", "-E", "UTF8", "--locale=C", "--no-sync")
        data = self.folder / "data"
        if self._spawn(_found("initdb"), "-D", str(data), *options).wait():
            log = (self.folder / "log").read_text("utf-8", "replace")[-2_000:]
            raise ConfigError(f"PostgreSQL lab: initdb fails\n{log}")
        with (data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(f"port = {self._port}\nlisten_addresses = '127.0.0.1'\n")
            file.write(f"unix_socket_directories = '{self.folder}'\n{self._settings}\n")

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        as_root = os.geteuid() == 0
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                env={**os.environ, **self._keeper.environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=ACCOUNT if as_root else None,
                group=ACCOUNT if as_root else None,
                extra_groups=() if as_root else None,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        ready = (_found("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port))
        try:
            socket.create_connection(("127.0.0.1", self._port), 1.0).close()
        except OSError:
            return False
        return subprocess.run(ready, check=False).returncode == 0


def _program(name: str) -> str | None:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return shutil.which(name, path=os.pathsep.join(map(str, reversed(folders)))) or shutil.which(
        name
    )


def _found(name: str) -> str:
    program = _program(name)
    if program is None:
        raise ConfigError(f"PostgreSQL lab: {name} not found; install postgresql")
    return program
