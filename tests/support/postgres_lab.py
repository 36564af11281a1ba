"""A PostgreSQL server for tests that kill and restart it.

with PostgresLab() as postgres:
    store = open_store(postgres.url)
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import ClassVar

from wattloop.core.errors import ConfigError

from .lab import Lab

ACCOUNT = "postgres"
"""PostgreSQL refuses to run as root."""


def why_no_postgres() -> str:
    """Return the reason why no server can be started here; empty when one can."""
    if _program("initdb") is None:
        return "PostgreSQL is not installed (initdb not found): apt install postgresql"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam(ACCOUNT)
        except KeyError:
            return f"PostgreSQL does not run as root, and the account '{ACCOUNT}' does not exist"
    return ""


class PostgresLab(Lab):
    """A server with an empty database and a user `wattloop`, on 127.0.0.1.

    Committed data survives `kill`, as on a server that lost its power supply: it syncs.

    Args:
        settings: further lines of `postgresql.conf`, such as `max_connections = 20`.

    Raises:
        ConfigError: no server can run here (see `why_no_postgres`), or it does not start.
    """

    title: ClassVar[str] = "PostgreSQL lab"

    def __init__(self, settings: str = "") -> None:
        reason = why_no_postgres()
        if reason:
            raise ConfigError(f"PostgreSQL lab: {reason}")
        super().__init__()
        self._port = self._ports.take()
        self._settings = settings
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the address for `serve` and the store."""
        return f"postgresql://wattloop@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        self._server = self._spawn("server", "postgres", "-D", str(self.folder / "data"))
        self.wait(self._answers, "the server does not start")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the server and its connections at once."""
        if self._server is None:
            return
        os.killpg(self._server.pid, number)
        self._server.wait()
        self._server = None
        # Workers have sessions of their own and end when they notice that the server is gone; a
        # new server would refuse to start before that.
        self.wait(lambda: not self._has_workers(), "workers of a killed server do not end")

    def restart(self) -> None:
        """Kill the server and start it again."""
        self.kill()
        self.start()

    def _has_workers(self) -> bool:
        """Return True if processes of an ended server still have its shared memory."""
        try:
            # Its seventh line: key and id of the block.
            noted = (self.folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()
            blocks = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
        except (OSError, IndexError):
            return False
        columns = (line.split() for line in blocks)
        return any(row[1] == noted[1] and int(row[6]) > 0 for row in columns)

    def _begin(self) -> None:
        if os.geteuid() == 0:
            account = pwd.getpwnam(ACCOUNT)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        options = ("-A", "trust", "-U", "wattloop", "-E", "UTF8", "--locale=C", "--no-sync")
        data = self.folder / "data"
        if self._spawn("initdb", "initdb", "-D", str(data), *options).wait():
            raise self._fault("initdb fails")
        with (data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(f"port = {self._port}\nlisten_addresses = '127.0.0.1'\n")
            file.write(f"unix_socket_directories = '{self.folder}'\n{self._settings}\n")
        self.start()

    def _spawn(self, name: str, program: str, *words: str) -> subprocess.Popen[bytes]:
        account = ACCOUNT if os.geteuid() == 0 else None
        return self._started(name, [_found(program), *words], os.environ, account)

    def _answers(self) -> bool:
        if self._server is not None and self._server.poll() is not None:
            raise self._fault("the server ends at once")
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
