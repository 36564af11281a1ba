"""`wattloop serve`: start the dashboard."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from wattloop.cli.app import Verb
from wattloop.cli.options import Config, JsonFile, StorePlace, option, settings_of
from wattloop.cli.output import say, write_json
from wattloop.core.errors import ConfigError
from wattloop.core.files import read_secret, user_path
from wattloop.core.settings import STORE
from wattloop.core.user_code import forbid_user_code
from wattloop.version import __version__

app = Verb()
REMEDY = "pip install 'wattloop[serve]'"


@app.command(example="wattloop serve\nwattloop serve --port 8080")
def serve(  # noqa: PLR0913 - one parameter per option
    *,
    host: str = option("--host", "Address to listen on.", "127.0.0.1"),
    port: int = option("--port", "Port; 0 takes any free one.", 8765, min=0, max=65535),
    token: str | None = option(
        "--token",
        "Secret for writing, and for readers on other machines. Visible in the list of "
        "processes: prefer --token-file or WATTLOOP_TOKEN.",
    ),
    token_file: str | None = option(
        "--token-file FILE",
        "The same secret in a file that only you can read; - is standard input.",
    ),
    cluster: str | None = option(
        "--cluster FILE", "Cluster whose machines /api/v1/predict uses by default."
    ),
    mapping: str | None = option("--mapping FILE", "Rules that map job names to models."),
    tokens: str | None = option(
        "--tokens FILE",
        "Further secrets by role and node; see 'wattloop fleet tokens'.",
        envvar="WATTLOOP_TOKENS",
    ),
    retain: str | None = option(
        "--retain AGES",
        "Delete older data hourly: samples=30d,levels=1y,runs=forever "
        "(WATTLOOP_RETAIN, or retain in wattloop.yaml).",
    ),
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Show runs, sweeps, searches, predictions and campaigns in a browser."""
    try:
        import uvicorn

        from wattloop.serve.app import create_app
        from wattloop.serve.connection_limits import server_config
    except ImportError as error:
        raise ConfigError(
            f"the dashboard needs {error.name}, which is not installed: {REMEDY}"
        ) from None
    from wattloop.serve.maintenance import warm_up
    from wattloop.serve.options import ServeOptions
    from wattloop.store.retention import retention_from

    chosen = settings_of(config, needs=(*STORE, "retain"), store=store, retain=retain)
    options = ServeOptions(
        store=chosen.store_location,
        host=host,
        port=port,
        token=_secret(token, token_file),
        cluster=cluster or "",
        mapping=mapping or "",
        tokens=None if tokens is None else user_path(tokens),
        retain=retention_from(chosen),
    )
    forbid_user_code("a server runs no code that a stored text names")
    dashboard = create_app(options)
    with listening(host, port) as (place, at):
        # the server listens: readers of this file may connect
        write_json(_whereabouts(dashboard.state.wattloop.store.where, host, at), json_file)
        warm_up(dashboard.state.wattloop)
        # the thread that packs runs hands over sooner: each answer waits for it several times
        sys.setswitchinterval(0.0005)
        server = uvicorn.Server(server_config(dashboard))
        startup = server.startup

        async def started(sockets: Any = None) -> None:
            await startup(sockets=sockets)
            # only now Ctrl-C ends it in good order: before, it would interrupt asyncio's own start
            say(f"wattloop: dashboard at http://{at}/ (Ctrl-C ends it)")

        server.startup = started  # type: ignore[method-assign] # uvicorn has no hook for it
        server.run(sockets=[place])


def _secret(token: str | None, token_file: str | None) -> str:
    """Return the server's own token; empty when it has none."""
    if token_file is not None:
        if token is not None:
            raise ConfigError("--token and --token-file: give one of them")
        return read_secret(token_file, "--token-file")
    if token is not None:
        say(
            "wattloop: warning: --token: anybody who lists the processes of this machine sees it; "
            "use --token-file FILE, --token-file - or WATTLOOP_TOKEN"
        )
        return token
    return os.environ.get("WATTLOOP_TOKEN", "")


def _whereabouts(store: str, host: str, at: str) -> dict[str, Any]:
    """Return address and process id for programs that start this server."""
    port = int(at.rpartition(":")[2])
    found = {"url": f"http://{at}/", "api": f"http://{at}/api/v1", "host": host, "port": port}
    return {**found, "pid": os.getpid(), "store": store, "version": __version__}


@contextmanager
def listening(host: str, port: int) -> Iterator[tuple[socket.socket, str]]:
    """Return a listening socket and its address; fail early when the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # named as TCP: asyncio sends at once only then, else a page waits 40 ms for the reader's ACK
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, port))
            found.listen()  # readers of the address printed below may connect at once
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--host {host} --port {port}: {error}; choose another, 0 takes any free port"
            ) from None
        name = f"[{host}]" if ":" in host else host
        yield found, f"{name}:{found.getsockname()[1]}"
