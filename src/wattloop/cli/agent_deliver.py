"""`wattloop agent deliver`: what waits on a node goes to the fleet's server."""

import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattloop.cli.options import JsonFile
from wattloop.cli.output import check_target, say, write_json
from wattloop.core.errors import ConfigError

if TYPE_CHECKING:
    from wattloop.fleet.delivery import DeliveryOptions, Progress

__all__ = ["deliver_command"]

LOOK_S = 0.1


def deliver_command(
    *,
    node: Annotated[str, typer.Option(metavar="NAME", help="This node, as Slurm calls it.")],
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="agent.yaml of the cluster.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when all is in the store, or fail when it cannot.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", help="With --once: fail after so long without progress."
        ),
    ] = 30.0,
    json: JsonFile = None,
) -> None:
    """Send journals of a node: those of an agent that is gone, or whose server was away."""
    from wattloop.fleet.agent.config import load_agent_config
    from wattloop.fleet.delivery import DeliveryOptions, deliver, status_from_file

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
    watch = _Watch()
    if once:
        total = _deliver_once(options, watch, stop, timeout)
    else:
        total = deliver(
            options,
            lambda: status_from_file(told.place / "status.json"),
            stop=stop,
            report=watch.report,
        )
    if json is not None:
        write_json(total._asdict(), json)


class _Watch:
    """What has become of a delivery so far, and when it last came further."""

    def __init__(self) -> None:
        self.further_s = time.monotonic()
        self.left: int | None = None
        """Journals that wait, by the last answer of the server; None before the first."""
        self._stored = 0

    def report(self, done: "Progress | str") -> None:
        """Told of each round, and of each fault in words."""
        if isinstance(done, str):
            say(f"wattloop: {done}")
            return
        self.left = done.left
        if done.sent_b or done.stored or done.refused:
            self.further_s = time.monotonic()
        if done.stored or done.refused:
            self._stored += done.stored
            say(f"wattloop: {self._stored} runs in the store, {done.left} journals left")


def _deliver_once(
    options: "DeliveryOptions", watch: _Watch, stop: threading.Event, timeout_s: float
) -> "Progress":
    """Deliver in a thread: names that do not resolve and servers that do not answer cannot be
    interrupted, but this command ends.

    Raises:
        ServerAway: nothing has come further for `timeout_s`.
    """
    from wattloop.fleet.delivery import Progress, deliver
    from wattloop.fleet.delivery.link import ServerAway

    waiting = len(list(options.folder.glob("*.journal")))
    say(f"wattloop: {waiting} journal(s) in {options.folder} for {options.url}")
    found: list[Progress | BaseException] = []

    def work() -> None:
        try:
            found.append(deliver(options, once=True, stop=stop, report=watch.report))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            found.append(error)

    thread = threading.Thread(target=work, name="wattloop-delivery", daemon=True)
    thread.start()
    while thread.is_alive() and not stop.is_set():
        thread.join(LOOK_S)
        if thread.is_alive() and time.monotonic() - watch.further_s > timeout_s:
            stop.set()
            raise ServerAway(_stalled(options, watch.left, timeout_s))
    thread.join(timeout_s)
    outcome = found[0] if found else Progress()
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _stalled(options: "DeliveryOptions", left: int | None, timeout_s: float) -> str:
    if left is None:
        return (
            f"{options.url}: no answer for {timeout_s:g} s; the journals wait in "
            f"{options.folder}; check that 'wattloop serve' runs there, or give it longer with "
            "--timeout"
        )
    return (
        f"{options.url}: {left} journal(s) did not come into the store for {timeout_s:g} s: its "
        "store is away, or they have no end yet and an agent may go on with them "
        f"({options.final_after_s:g} s after their last reading they are closed); they wait in "
        f"{options.folder}"
    )
