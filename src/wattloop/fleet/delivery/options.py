"""What a node's sender is told."""

import re
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from wattloop.core.errors import ConfigError

__all__ = ["NODE_NAME", "DeliveryOptions"]

NODE_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")
"""What a node may be called: as hosts are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOptions:
    """From which folder to which server.

    Attributes:
        url: of the server: `http://head:8765`, or `https://...` behind a proxy.
        node: name of this node; its token may write only this node's runs.
        folder: where this node's journals are, finished and growing.
        token, token_file: the secret, or the file that holds it (read again at each new
            connection, so that a new secret needs no restart).
        every_s: how often to send what is new.
        limit_b: how much may wait on disk; see `room` for what goes first.
        final_after_s: a journal without an end that nobody holds or writes for so long is closed
            for good; until then a restarted agent may go on with it.
        timeout_s: how long an answer may take.
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
        """The token as it is now.

        Raises:
            ConfigError: its file cannot be read, or by everybody, who could then write for us.
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
