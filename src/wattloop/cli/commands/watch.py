"""`wattloop watch`: live power and energy of this machine or of a measured run."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from wattloop.cli.app import Verb
from wattloop.cli.options import (
    Config,
    Devices,
    Interval,
    JsonFile,
    Meters,
    StorePlace,
    argument,
    option,
    settings_of,
)
from wattloop.cli.output import table_text, terminal_room, write_json
from wattloop.cli.progress import is_redrawable
from wattloop.core.errors import ConfigError
from wattloop.core.settings import SENSORS, STORE
from wattloop.core.units import format_duration, format_energy, format_power
from wattloop.measure.live import (
    DeviceView,
    JournalView,
    LiveSnapshot,
    SnapshotSource,
    find_live_journal,
)

if TYPE_CHECKING:
    from rich.console import Group


BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Draw the last values as bars from lowest to highest; a dot where none was read."""
    recent = list(values)[-width:]
    known = [v for v in recent if math.isfinite(v)]
    if not known:
        return ""
    low, high = min(known), max(known)
    # A flat line must not be blown up to a mountain range: less than 2% of change stays flat.
    span = max(high - low, 0.02 * abs(high), 1e-9)
    return "".join(
        BARS[min(len(BARS) - 1, int((v - low) / span * len(BARS)))] if math.isfinite(v) else "·"
        for v in recent
    )


def plain_line(snapshot: LiveSnapshot) -> str:
    """Format `03:15:00 total 123 W | cpu:0/package 80.0 W gpu:0 43.0 W | 1.2 kJ in 10 s`."""
    parts = [f"{name} {format_power(power)}" for name, power in snapshot.power_w.items()]
    energy_j = snapshot.result.energy_j
    energy = "nothing read yet" if energy_j is None else format_energy(energy_j)
    total_w = snapshot.total_w
    total = "total unknown" if total_w is None else f"total {format_power(total_w)}"
    pieces = [f"{time.strftime('%H:%M:%S')} {total}", " ".join(parts)]
    pieces.append(f"{energy} in {format_duration(snapshot.result.duration_s)}")
    pieces += [f"gap {name}: {reason}" for name, reason in snapshot.gaps]
    pieces += [snapshot.ended] if snapshot.ended else []
    return " | ".join(piece for piece in pieces if piece)


def plain_report(title: str, snapshot: LiveSnapshot) -> str:
    """Format one reading as plain text."""
    headers = ("domain", "power now", "energy so far", "how", "source")
    lines = [f"{title}, {format_duration(snapshot.result.duration_s)}\n"]
    rows = _rows(snapshot)
    nothing = "nothing can be read; see 'wattloop devices'\n"
    lines.append(table_text(headers, rows, terminal_room(sys.stdout)) if rows else nothing)
    lines += [f"{text}\n" for text in _remarks(snapshot)]
    return "".join(lines)


def live_table(title: str, snapshot: LiveSnapshot) -> "Group":
    """Return a table of one reading, with a minute of history per domain."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    total_w = snapshot.total_w
    head = f"{title}, {format_duration(snapshot.result.duration_s)}"
    if total_w is not None:
        head += f", {format_power(total_w)} now"
    table = Table(title=Text(head), title_justify="left")
    rows = _rows(snapshot)
    # names and words stay whole; a narrow terminal has a shorter curve
    table.add_column("domain", min_width=max((len(row[0]) for row in rows), default=0))
    table.add_column("power now", justify="right")
    table.add_column("energy so far", justify="right")
    table.add_column("how", min_width=max((len(row[3]) for row in rows), default=0))
    table.add_column("last minute")
    for row in rows:
        history = sparkline(snapshot.history_w.get(row[0], ()), 40)
        table.add_row(*(Text(cell) for cell in (*row[:4], history)))
    return Group(table, *(Text(text) for text in _remarks(snapshot)))


def as_dict(title: str, snapshot: LiveSnapshot) -> dict[str, Any]:
    return {
        "title": title,
        "total_w": snapshot.total_w,
        "power_w": snapshot.power_w,
        "history_w": {name: list(values) for name, values in snapshot.history_w.items()},
        "signals": {
            name: {"value": value, "unit": unit} for name, (value, unit) in snapshot.signals.items()
        },
        "gaps": [{"name": name, "reason": reason} for name, reason in snapshot.gaps],
        "ended": snapshot.ended or None,
        **snapshot.result.to_dict(),
    }


def _rows(snapshot: LiveSnapshot) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for domain in snapshot.result.domains:
        power_w = snapshot.power_w.get(domain.name)
        rows.append(
            (
                domain.name,
                "-" if power_w is None else format_power(power_w),
                "-" if domain.energy_j is None else format_energy(domain.energy_j),
                domain.provenance.value + ("" if domain.in_total else ", in another"),
                domain.source,
            )
        )
    return rows


def _remarks(snapshot: LiveSnapshot) -> list[str]:
    lines = []
    shown = [
        f"{name} {_signal(value, unit)}"
        for name, (value, unit) in snapshot.signals.items()
        if math.isfinite(value)
    ]
    if shown:
        lines.append("signals: " + ", ".join(shown))
    lines += [f"gap: {name}: {reason}" for name, reason in snapshot.gaps]
    missing = {m.name: m for m in snapshot.result.missing}
    lines += [f"missing: {m.name}: {m.reason}" for m in missing.values()]
    if snapshot.ended:
        lines.append(f"the run has ended: {snapshot.ended}")
    return lines


def _signal(value: float, unit: str) -> str:
    if unit == "fraction":
        return f"{value:.0%}"
    if unit == "B":
        return f"{value / 2**30:.1f} GiB"
    return f"{value:.4g} {'°C' if unit == 'degC' else unit}"


SETTLE_S = 1.0
"""A counter needs two readings some time apart before it says anything about power."""
app = Verb()


@app.command("watch", example="wattloop watch\nwattloop watch --seconds 60 -j")
def watch(  # noqa: PLR0913 - one parameter per option
    run: str = argument("LIVE_RUN", "A run being measured now; else this machine.", ""),
    *,
    once: bool = option("--once", "Read once and exit.", False),
    seconds: float | None = option("--seconds -s", "End after so many seconds.", None, min=0.1),
    refresh: float = option("--refresh", "Seconds between two looks.", 1.0, min=0.1, max=3600),
    json_file: JsonFile = None,
    interval: Interval = None,
    devices: Devices = None,
    meters: Meters = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Show live power and energy of this machine, or of a run that is being measured.

    On a terminal the view is updated until ctrl-C; elsewhere one line is printed per reading.
    """
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
    view: SnapshotSource
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


def _once(view: SnapshotSource, is_run: bool, *, quiet: bool) -> LiveSnapshot:
    if not is_run:
        time.sleep(SETTLE_S)
    snapshot = view.look()
    if not quiet:
        sys.stdout.write(plain_report(view.title, snapshot))
    return snapshot


def _repeatedly(
    view: SnapshotSource, seconds: float | None, refresh: float, *, quiet: bool
) -> LiveSnapshot | None:
    """Yield readings until the time is over, the run has ended, or ctrl-C."""
    shown: AbstractContextManager[Callable[[LiveSnapshot], None]]
    if quiet:
        shown = nullcontext(lambda snapshot: None)
    elif is_redrawable(sys.stdout):
        shown = _screen(view)
    else:
        shown = nullcontext(_print_line)
    last: LiveSnapshot | None = None
    # ctrl-C is the usual way to end, and no error
    with suppress(KeyboardInterrupt), shown as show:
        # From here: preparing the screen may take longer than a short watch.
        end_s = float("inf") if seconds is None else time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(refresh, left_s))
            last = view.look()
            show(last)
            if last.ended:
                break
    return last


def _print_line(snapshot: LiveSnapshot) -> None:
    sys.stdout.write(plain_line(snapshot) + "\n")
    sys.stdout.flush()


@contextmanager
def _screen(view: SnapshotSource) -> Iterator[Callable[[LiveSnapshot], None]]:
    """Draw a table that is updated in place."""
    from rich.live import Live

    with Live(auto_refresh=False, transient=False) as live:
        yield lambda snapshot: live.update(live_table(view.title, snapshot), refresh=True)
