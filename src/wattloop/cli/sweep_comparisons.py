"""Tables that compare techniques, GPU counts and machines, of one sweep or of several."""

import sys
from collections.abc import Sequence
from typing import Any

from wattloop.cli.output import print_table
from wattloop.report.sweep_cells import kinds_of, setting_text, title_of, with_interval, with_sd
from wattloop.sweep import tables
from wattloop.sweep.result import SweepResult, gpu_count

__all__ = ["print_powers", "print_scaling", "print_synthesis", "print_techniques"]


def print_techniques(results: Sequence[SweepResult]) -> None:
    """Best EDP gain with its time, a row per workload and library."""
    rows = tables.technique_rows(results)
    known = list(dict.fromkeys(row["technique"] for row in rows))
    headers = ["workload", "library"]
    for technique in known:
        headers += [f"{technique}: EDP", "time", "setting"]
    lines: dict[tuple[str, str], dict[str, tuple[str, str, str]]] = {}
    for row in rows:
        name = ", ".join(filter(None, (row["workload"], gpu_count(row["gpus"]))))
        cells = (f"{row['edp_pct']:+.1f}%", f"{row['time_pct']:+.1f}%", row["setting"])
        key = (name, row["library"])
        lines.setdefault(key, {})[row["technique"]] = cells
    _print(
        headers,
        [
            (*key, *(cell for t in known for cell in cells.get(t, ("-", "-", "-"))))
            for key, cells in lines.items()
        ],
        title=f"Best EDP gain with its time ({kinds_of(results)}); time + is longer",
    )


def print_powers(results: Sequence[SweepResult]) -> None:
    """Power of main and second component; a table for each pair of them."""
    rows = tables.power_rows(results)
    pairs = dict.fromkeys((row["main"], row["second"]) for row in rows)
    for number, (main, second) in enumerate(pairs):
        if number:
            sys.stdout.write("\n")
        _print_powers([r for r in rows if (r["main"], r["second"]) == (main, second)], main, second)


def _print_powers(rows: Sequence[dict[str, Any]], main: str, second: str | None) -> None:
    fields = dict.fromkeys(t for row in rows for t in row if isinstance(row[t], dict))
    known = [t for t in fields if t != "kinds"]
    parts = [("main", main.upper()), *([("second", second.upper())] if second else [])]
    kinds = dict.fromkeys(f"{s.upper()} {kind}" for r in rows for s, kind in r["kinds"].items())
    _print(
        ["workload", "library", *(f"{t} {label} (W)" for t in known for _, label in parts)],
        [
            (
                ", ".join(filter(None, (row["workload"], gpu_count(row["gpus"])))),
                row["library"],
                *(with_sd(row.get(t, {}).get(part)) for t in known for part, _ in parts),
            )
            for row in rows
        ],
        title=f"Average power at the default and at the lowest EDP, ± standard deviation "
        f"({', '.join(kinds)})",
    )


def print_scaling(results: Sequence[SweepResult]) -> None:
    """Time and speed-up by number of GPUs."""
    for result in results:
        _print(
            ("workload", "setting", "GPUs", "time (s)", "energy (J)", "speed-up"),
            [
                (
                    " ".join(filter(None, (row["workload"], row["library"]))),
                    setting_text(row),
                    str(row["gpus"]),
                    with_interval(row["time_s"]),
                    with_interval(row["energy_j"]),
                    f"{row['speed_up']:.2f}",
                )
                for row in tables.scaling_rows(result)
            ],
            title=f"{title_of(result)}: time against the number of GPUs",
        )


def print_synthesis(results: Sequence[SweepResult]) -> None:
    """Mean best EDP gain by machine, library and technique."""
    _print(
        ("platform", "library", "technique", "mean best EDP gain", "workloads"),
        [
            (
                row["platform"],
                row["library"],
                row["technique"],
                f"{row['edp_pct']:+.1f}%",
                str(row["workloads"]),
            )
            for row in tables.synthesis_rows(results)
        ],
        title=f"Best EDP gain per technique, mean over workloads ({kinds_of(results)})",
    )


def _print(headers: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    """As `print_table`, without columns that say nothing, such as the library of one command."""
    kept = [i for i in range(len(headers)) if not rows or any(row[i] for row in rows)]
    print_table([headers[i] for i in kept], [[row[i] for i in kept] for row in rows], title)
