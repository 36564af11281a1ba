"""Options of `wattloop serve`."""

from dataclasses import dataclass
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.store.retention import Retention

LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Address, store and access of the server.

    Attributes:
        store: path or URL of the store.
        host, port: where to listen.
        token: what a caller must know to write, and on any address but this machine's to read.
        cluster: file or name of the machines the oracle service answers for; empty for none.
        mapping: file of rules that say which jobs train what; empty for none.
        tokens: file of further tokens, by role and node; see `wattloop fleet tokens`.
        retain: what is dropped when it is old, on a timer; nothing by default.
    """

    store: str
    host: str = "127.0.0.1"
    port: int = 8765
    token: str = ""
    cluster: str = ""
    mapping: str = ""
    tokens: Path | None = None
    retain: Retention | None = None

    def __post_init__(self) -> None:
        if not self.is_local and not self.has_tokens:
            raise ConfigError(
                f"--host {self.host}: others could read everything; give a secret with "
                "--token-file or WATTLOOP_TOKEN, or a file of them with --tokens, or listen on "
                "127.0.0.1"
            )

    @property
    def has_tokens(self) -> bool:
        return bool(self.token) or self.tokens is not None

    @property
    def is_local(self) -> bool:
        """Return True when only programs of this machine can connect."""
        return self.host in LOCAL_HOSTS
