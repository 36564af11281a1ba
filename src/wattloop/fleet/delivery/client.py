"""HTTP client of the fleet server, and its options."""

import http.client
import json
import re
import ssl
import stat
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wattloop.core.errors import ConfigError, WattloopError

NODE_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")
"""Name of a node: the characters of a host name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOptions:
    """Folder, server and limits of a delivery.

    Attributes:
        node: name of this node; its token may write only this node's runs.
        token, token_file: the secret, or the file that holds it (read again at each new
            connection, so that a new secret needs no restart).
        limit_b: most bytes that wait on disk; see `make_room` for what is dropped first.
        final_after_s: time after which an unfinished journal that is unlocked and not written to
            is closed; until then a restarted agent may continue it.
        ca_file: certificates that an https server is checked against; the system's by default.
    """

    url: str
    node: str
    folder: Path
    token: str = ""
    token_file: Path | None = None
    every_s: float = 1.0
    limit_b: int = 2 * 1024**3
    final_after_s: float = 600.0
    timeout_s: float = 30.0
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"deliver.url {self.url!r}: write it as http://head:8765")
        if not NODE_NAME.fullmatch(self.node):
            raise ConfigError(f"node {self.node!r}: letters, digits, '.', '_' and '-' only")
        if not self.every_s > 0:
            raise ConfigError(f"deliver.every_s {self.every_s}: must be above 0")
        if self.limit_b < 0:
            raise ConfigError(f"deliver.limit_b {self.limit_b}: must not be negative")

    def secret(self) -> str:
        """Return the present token.

        Raises:
            ConfigError: its file cannot be read, or other users can read it.
        """
        if self.token_file is None:
            return self.token
        try:
            mode, text = self.token_file.stat().st_mode, self.token_file.read_text("utf-8")
            if mode & (stat.S_IWGRP | stat.S_IRWXO):
                raise ConfigError(
                    f"{self.token_file}: others may read or write the token; run "
                    f"'chmod 600 {self.token_file}'"
                )
            return text.strip()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.token_file}: the token cannot be read ({error}); make one on the server "
                f"with: wattloop fleet tokens add --role node --node {self.node}"
            ) from None


AWAY = frozenset((408, 425, 429, 500, 502, 503, 504, 507))
LONGEST_RETRY_S = 600.0
LARGEST_ANSWER_B = 4 * 1024 * 1024
LARGEST_DOCUMENT_B = 20_000_000


class ServerUnavailable(WattloopError):
    """The server does not answer, or is busy; `retry_s` is the delay that it asks for."""

    def __init__(self, message: str, retry_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class ServerRefuses(WattloopError):
    """The server refuses the request: wrong token, another node, or too old."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class DeliveryClient:
    """Client of one server over one connection; not thread-safe."""

    def __init__(self, options: DeliveryOptions) -> None:
        self._options = options
        parts = urlsplit(options.url)
        self._scheme = parts.scheme
        self._host, self._port = parts.hostname or "", parts.port
        self._prefix = parts.path.rstrip("/")
        self._connection: http.client.HTTPConnection | None = None
        self._secret = ""

    def post(self, path: str, body: bytes) -> Any:
        """Post a body and return the JSON answer.

        Raises:
            ServerUnavailable: try again later.
            ServerRefuses: trying again changes nothing by itself.
        """
        try:
            status, headers, data = self._exchange(path, body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            reason = str(error) or type(error).__name__
            raise ServerUnavailable(f"{self._options.url}: {reason}") from None
        if status in AWAY:
            retry_s = _seconds(headers.get("Retry-After"))
            raise ServerUnavailable(f"{self._options.url}: {status} {_detail(data)}", retry_s)
        if status != 200:
            self.close()  # a token that was changed is read again
            raise ServerRefuses(f"{self._options.url}: {status} {_detail(data)}", status)
        try:
            return json.loads(data)
        except ValueError:
            self.close()
            raise ServerUnavailable(
                f"{self._options.url}: does not answer as Wattloop does"
            ) from None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, path: str, body: bytes) -> tuple[int, http.client.HTTPMessage, bytes]:
        fresh = self._connection is None
        try:
            return self._ask(path, body)
        except (http.client.RemoteDisconnected, ConnectionError):
            if fresh:
                raise
        # an idle connection that the server closed meanwhile: once more on a new one
        self.close()
        return self._ask(path, body)

    def _ask(self, path: str, body: bytes) -> tuple[int, http.client.HTTPMessage, bytes]:
        if self._connection is None:
            self._secret = self._options.secret()
            self._connection = self._connected()
        headers = {
            "Authorization": f"Bearer {self._secret}",
            "Content-Type": "application/octet-stream",
        }
        self._connection.request("POST", self._prefix + path, body, headers)
        answer = self._connection.getresponse()
        return answer.status, answer.headers, answer.read(LARGEST_ANSWER_B)

    def _connected(self) -> http.client.HTTPConnection:
        timeout_s = self._options.timeout_s
        if self._scheme == "http":
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            trusted = ssl.create_default_context(
                cafile=None if self._options.ca_file is None else str(self._options.ca_file)
            )
        except OSError as error:
            raise ConfigError(f"deliver.ca_file {self._options.ca_file}: {error}") from None
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout_s, context=trusted
        )


def fetch_json(url: str, token: str, timeout_s: float) -> Any:
    """Return the JSON document at a URL of the server.

    Raises:
        OSError, ValueError: no answer, or one that is not JSON.
    """
    request = urllib.request.Request(url)
    if token:  # not sent to where the server redirects
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return json.loads(answer.read(LARGEST_DOCUMENT_B))


def _seconds(text: str | None) -> float:
    try:
        return min(max(0.0, float(text or 0.0)), LONGEST_RETRY_S)
    except ValueError:  # a date: our own back-off is good enough
        return 0.0


def _detail(data: bytes) -> str:
    """Return the server's message in one short line."""
    text = data[:2_000].decode("utf-8", "replace")
    with suppress(ValueError, LookupError, TypeError):
        text = str(json.loads(text)["detail"])
    return " ".join(text.split())[:300]
