"""`wattloop agent deliver`: what waits on a node goes to the fleet's server."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from wattloop.cli.options import JsonFile
from wattloop.cli.output import check_target, say, write_json
from wattloop.core.errors import ConfigError

__all__ = ["deliver_command"]


def deliver_command(
    *,
    node: Annotated[str, typer.Option(metavar="NAME", help="This node, as Slurm calls it.")],
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="agent.yaml of the cluster.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when all is in the store, or fail when it cannot.")
    ] = False,
    json: JsonFile = None,
) -> None:
    """Send journals of a node: those of an agent that is gone, or whose server was away."""
    from wattloop.fleet.agent.config import load_agent_config
    from wattloop.fleet.delivery import DeliveryOptions, Progress, deliver, status_from_file

    check_target(json, "--json")
    told = load_agent_config(config, node)
    if told.deliver is None:
        raise ConfigError(f"{config or 'agent.yaml'}: deliver: url is needed to send anything")
    options = DeliveryOptions(
        url=told.deliver.url,
        node=node,
        folder=told.place / "journals",
        token_file=Path(told.deliver.token_file) if told.deliver.token_file else None,
        every_s=told.deliver.every_s,
        limit_b=told.deliver.limit_b,
        ca_file=Path(told.deliver.ca_file) if told.deliver.ca_file else None,
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    stored = 0

    def report(done: Progress | str) -> None:
        nonlocal stored
        if isinstance(done, str):
            say(f"wattloop: {done}")
        elif done.stored or done.refused:
            stored += done.stored
            say(f"wattloop: {stored} runs in the store, {done.left} journals left")

    total = deliver(
        options,
        None if once else lambda: status_from_file(told.place / "status.json"),
        once=once,
        stop=stop,
        report=report,
    )
    if json is not None:
        write_json(total._asdict(), json)
