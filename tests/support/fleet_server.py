"""A `wattloop serve` process for tests that kill and restart it.

with FleetServer(folder, store=url) as server:
    token = server.node_token("n1")
    ...
    server.kill()
    server.start()
"""

import http.client
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from wattloop.core.errors import ConfigError
from wattloop.fleet.tokens import Role, add_token

from .free_ports import PortBlock

PATIENCE_S = 300.0


class FleetServer:
    """The server with its tokens, journals and log below one folder.

    Args:
        folder: of all its files.
        store: path or URL; a SQLite file in the folder by default.
        options: further options of `wattloop serve`.
    """

    def __init__(self, folder: Path, store: str = "", options: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.store = store or str(folder / "runs.db")
        self.tokens = folder / "tokens.json"
        self.log = folder / "serve.log"
        self._options = options
        self._ports = PortBlock()
        self.port = self._ports.take()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Return the id of the process that runs now."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self.reader = add_token(self.tokens, "reader", Role.READER)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._ports.close()

    def node_token(self, node: str) -> str:
        """Create a node's token and return its secret."""
        return add_token(self.tokens, node, Role.NODE, node)

    def start(self) -> None:
        """Start the server, and wait until it answers.

        Raises:
            ConfigError: it does not.
        """
        command = [sys.executable, "-m", "wattloop", "serve", "--port", str(self.port)]
        command += ["--store", self.store, "--tokens", str(self.tokens), *self._options]
        # journals of a server's runs go there, not to this user's own folder
        environment = {**os.environ, "XDG_DATA_HOME": str(self.folder)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        give_up_s = time.monotonic() + PATIENCE_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_s:
                said = self.log.read_text("utf-8", "replace")[-2_000:]
                raise ConfigError(f"wattloop serve does not start: {said}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the process at once, as when a machine loses its power."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop it as an operator does."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/api/v1/nodes")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()
