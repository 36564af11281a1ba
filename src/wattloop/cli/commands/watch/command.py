"""`wattloop watch`: power and energy live, of this machine or of a run being measured."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Annotated

import typer

from wattloop.cli.commands.watch.view import as_dict, live_table, plain_line, plain_report
from wattloop.cli.options import Config, Devices, Interval, JsonFile, Meters, StorePlace
from wattloop.cli.output import check_target, write_json
from wattloop.cli.progress import is_redrawable
from wattloop.cli.settings import settings_of
from wattloop.core.errors import ConfigError
from wattloop.core.settings import SENSORS, STORE
from wattloop.measure.live import DeviceView, JournalView, LiveView, Snapshot, find_live_journal

SETTLE_S = 1.0


"""A counter needs two readings some time apart before it says anything about power."""


app = typer.Typer(add_completion=False)


@app.command("watch")
def watch(  # noqa: PLR0913 - one parameter per option
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run being measured now; else this machine.")
    ] = "",
    *,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", "-s", min=0.1, help="End after so many seconds.")
    ] = None,
    refresh: Annotated[
        float, typer.Option("--refresh", min=0.1, max=3600, help="Seconds between two looks.")
    ] = 1.0,
    json_file: JsonFile = None,
    interval: Interval = None,
    devices: Devices = None,
    meters: Meters = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Show power and energy live, of this machine or of a run that is being measured.

    On a terminal the view renews itself until ctrl-C; elsewhere one line is printed per look.
    """
    check_target(json_file, "--json")
    if seconds is not None and not seconds < float("inf"):
        raise ConfigError("--seconds must be a finite number; leave it out to watch until ctrl-C")
    settings = settings_of(
        config,
        needs=SENSORS | STORE,
        interval=interval,
        devices=devices,
        meters=meters,
        store=store,
    )
    view: LiveView
    if run:
        view = JournalView(find_live_journal(settings.store_location, run))
    else:
        view = DeviceView(settings)
    try:
        last = _once(view, bool(run), quiet=json_file == "-") if once else None
        if last is None:
            last = _repeatedly(view, seconds, refresh, quiet=json_file == "-")
        if json_file is not None and last is not None:
            write_json(as_dict(view.title, last), json_file)
    finally:
        view.close()


def _once(view: LiveView, is_run: bool, *, quiet: bool) -> Snapshot:
    if not is_run:
        time.sleep(SETTLE_S)
    snapshot = view.look()
    if not quiet:
        sys.stdout.write(plain_report(view.title, snapshot))
    return snapshot


def _repeatedly(
    view: LiveView, seconds: float | None, refresh: float, *, quiet: bool
) -> Snapshot | None:
    """Until the time is over, the run has ended, or ctrl-C."""
    shown: AbstractContextManager[Callable[[Snapshot], None]]
    if quiet:
        shown = nullcontext(lambda snapshot: None)
    elif is_redrawable(sys.stdout):
        shown = _screen(view)
    else:
        shown = nullcontext(_print_line)
    end_s = float("inf") if seconds is None else time.monotonic() + seconds
    last: Snapshot | None = None
    # ctrl-C is the usual way to end, and no error
    with suppress(KeyboardInterrupt), shown as show:
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(refresh, left_s))
            last = view.look()
            show(last)
            if last.ended:
                break
    return last


def _print_line(snapshot: Snapshot) -> None:
    sys.stdout.write(plain_line(snapshot) + "\n")
    sys.stdout.flush()


@contextmanager
def _screen(view: LiveView) -> Iterator[Callable[[Snapshot], None]]:
    """A table that renews itself in place."""
    from rich.live import Live

    with Live(auto_refresh=False, transient=False) as live:
        yield lambda snapshot: live.update(live_table(view.title, snapshot), refresh=True)
