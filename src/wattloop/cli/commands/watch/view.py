"""How `wattloop watch` draws a snapshot."""

import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wattloop.cli.output import table_text, terminal_room
from wattloop.core.units import format_duration, format_energy, format_power
from wattloop.measure.live import Snapshot

if TYPE_CHECKING:
    from rich.console import Group


BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """The last values as bars from their lowest to their highest; a dot where none was read."""
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


def plain_line(snapshot: Snapshot) -> str:
    """`03:15:00 total 123 W | cpu:0/package 80.0 W gpu:0 43.0 W | 1.2 kJ in 10 s`."""
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


def plain_report(title: str, snapshot: Snapshot) -> str:
    """One look as plain text."""
    headers = ("domain", "power now", "energy so far", "how", "source")
    lines = [f"{title}, {format_duration(snapshot.result.duration_s)}\n"]
    rows = _rows(snapshot)
    nothing = "nothing can be read; see 'wattloop devices'\n"
    lines.append(table_text(headers, rows, terminal_room(sys.stdout)) if rows else nothing)
    lines += [f"{text}\n" for text in _remarks(snapshot)]
    return "".join(lines)


def live_table(title: str, snapshot: Snapshot) -> "Group":
    """One look for a terminal, with a minute of history per domain."""
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


def as_dict(title: str, snapshot: Snapshot) -> dict[str, Any]:
    """What `--json` writes: the last look."""
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


def _rows(snapshot: Snapshot) -> list[tuple[str, ...]]:
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


def _remarks(snapshot: Snapshot) -> list[str]:
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
