"""`wattloop watch`: live power and energy of this machine or of a measured run."""

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import cache
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
from wattloop.control.lock import process_command
from wattloop.core.errors import ConfigError
from wattloop.core.records import Scope
from wattloop.core.settings import SENSORS, STORE
from wattloop.core.units import format_bytes, format_duration, format_energy, format_power
from wattloop.measure.live import (
    DeviceView,
    FollowedJournals,
    JournalView,
    LiveSnapshot,
    SnapshotSource,
    find_live_journal,
)
from wattloop.store.journal import journal_directory, journal_is_live

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


@dataclass(frozen=True, slots=True)
class GpuView:
    """Present state of one GPU; None is what its meter does not tell.

    Attributes:
        energy_j: so far.
        limit_w: the power limit that holds now.
        memory_b: what it has, from the data sheet of its model.
        user: the run or process that uses it.
        step_j: mean energy of a training step on it.
    """

    name: str
    device: str
    provenance: str
    energy_j: float | None
    power_w: float | None
    limit_w: float | None
    utilisation: float | None
    memory_used_b: float | None
    memory_b: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_c: float | None
    user: str
    step_j: float | None
    history_w: Sequence[float]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "history_w": list(self.history_w)}


GpuUser = tuple[str, float | None]
"""Run or process, and the mean energy of its step on the GPU."""


class GpuUsers:
    """Runs and processes that use the GPUs: of a followed run, else of all live runs, and NVML."""

    def __init__(self, view: SnapshotSource, store_location: str, is_run: bool) -> None:
        self._view, self._is_run = view, is_run
        self._folder = journal_directory(store_location)
        self._journals = FollowedJournals()

    def look(self, snapshot: LiveSnapshot) -> dict[str, GpuUser]:
        """Return the user of each GPU by the name of its domain."""
        if self._is_run:
            return _users(self._view.title, snapshot)
        found: dict[str, GpuUser] = {}
        paths = [path for path in self._folder.glob("*.journal") if journal_is_live(path)]
        for live in self._journals.look(paths, wait_s=0.5).values() if paths else ():
            found |= _users(f"run {live.result.name}", live)
        if isinstance(self._view, DeviceView):
            for name, pid in self._view.gpu_processes().items():
                found.setdefault(name, (process_command(pid) or f"process {pid}", None))
        return found

    def close(self) -> None:
        self._journals.close()


def _users(name: str, snapshot: LiveSnapshot) -> dict[str, GpuUser]:
    steps_j, count = snapshot.step_domains_j, snapshot.steps
    gpus = [d.name for d in snapshot.result.domains if d.scope is Scope.GPU]
    return {gpu: (name, steps_j[gpu] / count if count and gpu in steps_j else None) for gpu in gpus}


def gpu_views(snapshot: LiveSnapshot, users: Mapping[str, GpuUser]) -> list[GpuView]:
    """Return the state of each GPU that the snapshot has."""
    views = []
    for domain in snapshot.result.domains:
        if domain.scope is not Scope.GPU:
            continue
        user, step_j = users.get(domain.name, ("", None))
        power_w = snapshot.power_w.get(domain.name)
        views.append(
            GpuView(
                domain.name,
                domain.device,
                domain.provenance.value,
                domain.energy_j,
                power_w,
                _signal_of(snapshot, domain.name, "power_limit") or domain.tdp_w or None,
                _signal_of(snapshot, domain.name, "utilisation"),
                _signal_of(snapshot, domain.name, "memory_used"),
                _memory_b(domain.device),
                _signal_of(snapshot, domain.name, "sm_clock"),
                _signal_of(snapshot, domain.name, "memory_clock"),
                _signal_of(snapshot, domain.name, "temperature"),
                user,
                step_j,
                snapshot.history_w.get(domain.name, ()),
            )
        )
    return views


def _signal_of(snapshot: LiveSnapshot, gpu: str, name: str) -> float | None:
    value, _ = snapshot.signals.get(f"{gpu}/{name}", (math.nan, ""))
    return value if math.isfinite(value) else None


@cache
def _memory_b(device: str) -> float | None:
    from wattloop.hardware.gpus import gpu_named

    try:
        return gpu_named(device.removeprefix("virtual ")).memory_bytes if device else None
    except ConfigError:
        return None


FULL, EMPTY = "█", "░"
HOT, WARM = 0.95, 0.7
"""Shares from which a bar is red, and yellow."""


def gpu_lines(gpu: GpuView, room: int) -> list[list[tuple[str, str]]]:
    """Return the lines of one GPU as (text, style) that fit into `room` columns, as nvtop does."""
    user = gpu.user + (f", {format_energy(gpu.step_j)} per step" if gpu.step_j is not None else "")
    energy = "" if gpu.energy_j is None else f", {format_energy(gpu.energy_j)} so far"
    head = f"{gpu.name} {gpu.device}{energy} ({gpu.provenance})"
    bar = 10 if room < 100 else 20
    fields = [
        _bar("power", gpu.power_w, gpu.limit_w, format_power, bar),
        _bar("GPU", gpu.utilisation, 1.0, lambda share: f"{share:.0%}", bar),
        _bar("memory", gpu.memory_used_b, gpu.memory_b, format_bytes, bar),
        _plain_field("SM", gpu.sm_clock_mhz, "MHz"),
        _plain_field("mem.", gpu.memory_clock_mhz, "MHz"),
        _plain_field("", gpu.temperature_c, "°C"),
    ]
    lines = [[(_cut(head, room), "bold")]]
    lines += [[(_cut(f"  {user}", room), "")]] if user else []
    used = room
    for field in filter(None, fields):
        size = sum(len(text) for text, _ in field) + 2
        if used + size > room:
            lines.append([])
            used = 0
        lines[-1] += [("  ", ""), *field]
        used += size
    curve = sparkline(gpu.history_w, room - 16)
    return [*lines, [("  last minute ", ""), (curve, "cyan")]] if curve else lines


def _bar(
    name: str, value: float | None, most: float | None, shown: Callable[[float], str], width: int
) -> list[tuple[str, str]]:
    if value is None:
        return []
    if most is None or most <= 0:
        return [(f"{name} {shown(value)}", "")]
    share = min(1.0, max(0.0, value / most))
    style = "red" if share >= HOT else "yellow" if share >= WARM else "green"
    full = round(share * width)
    of = "" if most == 1.0 else f" of {shown(most)}"
    bar = FULL * full + EMPTY * (width - full)
    return [(f"{name} ", ""), (bar, style), (f" {shown(value)}{of}", "")]


def _plain_field(name: str, value: float | None, unit: str) -> list[tuple[str, str]]:
    return [] if value is None else [(f"{name} {value:,.0f} {unit}".strip(), "")]


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def gpu_table(gpus: Sequence[GpuView], room: int | None) -> str:
    """Format one reading of all GPUs as columns."""
    headers = ("GPU", "power", "of", "busy", "memory", "SM clock", "temp.", "J/step", "used by")
    rows = [
        (
            gpu.name,
            _or_dash(gpu.power_w, format_power),
            _or_dash(gpu.limit_w, format_power),
            _or_dash(gpu.utilisation, lambda share: f"{share:.0%}"),
            _or_dash(gpu.memory_used_b, format_bytes),
            _or_dash(gpu.sm_clock_mhz, lambda mhz: f"{mhz:,.0f} MHz"),
            _or_dash(gpu.temperature_c, lambda degrees: f"{degrees:.0f} °C"),
            _or_dash(gpu.step_j, format_energy),
            gpu.user or "-",
        )
        for gpu in gpus
    ]
    return table_text(headers, rows, room)


def _or_dash(value: float | None, shown: Callable[[float], str]) -> str:
    return "-" if value is None else shown(value)


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


def plain_report(title: str, snapshot: LiveSnapshot, gpus: Sequence[GpuView] = ()) -> str:
    """Format one reading as plain text."""
    headers = ("domain", "power now", "energy so far", "how", "source")
    lines = [f"{title}, {format_duration(snapshot.result.duration_s)}\n"]
    rows = _rows(snapshot)
    nothing = "nothing can be read; see 'wattloop devices'\n"
    room = terminal_room(sys.stdout)
    lines.append(table_text(headers, rows, room) if rows else nothing)
    lines += [f"\n{gpu_table(gpus, room)}"] if gpus else []
    lines += [f"{text}\n" for text in _remarks(snapshot)]
    return "".join(lines)


def live_table(title: str, snapshot: LiveSnapshot, gpus: Sequence[GpuView] = ()) -> "Group":
    """Return a table of one reading, with a minute of history per domain, and the GPUs below."""
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
        if row[0] in {gpu.name for gpu in gpus}:
            continue
        history = sparkline(snapshot.history_w.get(row[0], ()), 40)
        table.add_row(*(Text(cell) for cell in (*row[:4], history)))
    room = shutil.get_terminal_size().columns
    drawn = [Text.assemble(*line) for gpu in gpus for line in gpu_lines(gpu, room)]
    return Group(table, *drawn, *(Text(text) for text in _remarks(snapshot)))


def as_dict(title: str, snapshot: LiveSnapshot, gpus: Sequence[GpuView] = ()) -> dict[str, Any]:
    return {
        "title": title,
        "gpus": [gpu.to_dict() for gpu in gpus],
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
        if math.isfinite(value) and not name.startswith("gpu:")
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
    once: bool = option("--once", "Read once and exit."),
    seconds: float | None = option("--seconds -s", "End after so many seconds.", min=0.1),
    refresh: float = option("--refresh", "Seconds between two looks.", 1.0, min=0.1, max=3600),
    json_file: JsonFile = None,
    interval: Interval = None,
    devices: Devices = None,
    meters: Meters = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Show live power and energy of this machine, or of a run that is being measured.

    On a terminal the view is updated until ctrl-C: each GPU with power against its limit,
    utilisation, memory, clocks, the run or process that uses it, and its energy per step.
    Elsewhere one line is printed per reading.
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
    users = GpuUsers(view, settings.store_location, bool(run))
    try:
        quiet = json_file == "-"
        last = _once(view, users, bool(run), quiet=quiet) if once else None
        if last is None:
            last = _repeatedly(view, users, seconds, refresh, quiet=quiet)
        if json_file is not None and last is not None:
            gpus = gpu_views(last, users.look(last))
            write_json(as_dict(view.title, last, gpus), json_file)
    finally:
        users.close()
        view.close()


def _once(view: SnapshotSource, users: GpuUsers, is_run: bool, *, quiet: bool) -> LiveSnapshot:
    if not is_run:
        time.sleep(SETTLE_S)
    snapshot = view.look()
    if not quiet:
        gpus = gpu_views(snapshot, users.look(snapshot))
        sys.stdout.write(plain_report(view.title, snapshot, gpus))
    return snapshot


def _repeatedly(
    view: SnapshotSource, users: GpuUsers, seconds: float | None, refresh: float, *, quiet: bool
) -> LiveSnapshot | None:
    """Yield readings until the time is over, the run has ended, or ctrl-C."""
    shown: AbstractContextManager[Callable[[LiveSnapshot], None]]
    if quiet:
        shown = nullcontext(lambda snapshot: None)
    elif is_redrawable(sys.stdout):
        shown = _screen(view, users)
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
def _screen(view: SnapshotSource, users: GpuUsers) -> Iterator[Callable[[LiveSnapshot], None]]:
    """Draw a table that is updated in place, and the GPUs below it."""
    from rich.live import Live

    def drawn(snapshot: LiveSnapshot) -> "Group":
        return live_table(view.title, snapshot, gpu_views(snapshot, users.look(snapshot)))

    with Live(auto_refresh=False, transient=False) as live:
        yield lambda snapshot: live.update(drawn(snapshot), refresh=True)
