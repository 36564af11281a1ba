"""What `wattloop serve` is told."""

from dataclasses import dataclass

from wattloop.core.errors import ConfigError

__all__ = ["LOCAL_HOSTS", "ServeOptions"]

LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Where to listen and what to show.

    Attributes:
        store: path or URL of the store.
        host, port: where to listen.
        token: what a caller must know to write, and on any address but this machine's to read.
        fleet: file of the fleet whose machines the oracle service answers for; empty for none.
    """

    store: str
    host: str = "127.0.0.1"
    port: int = 8765
    token: str = ""
    fleet: str = ""

    def __post_init__(self) -> None:
        if not self.is_local and not self.token:
            raise ConfigError(
                f"--host {self.host}: others could read everything; give a secret with --token or "
                "WATTLOOP_TOKEN, or listen on 127.0.0.1"
            )

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine can connect."""
        return self.host in LOCAL_HOSTS
