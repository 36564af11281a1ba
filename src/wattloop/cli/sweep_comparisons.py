"""Tables that compare techniques, GPU counts and machines, of one sweep or of several."""

from collections.abc import Sequence

from wattloop.characterize import sweep_tables as tables
from wattloop.characterize.point_result import gpu_count
from wattloop.characterize.sweep_result import SweepResult
from wattloop.cli.output import print_table
from wattloop.cli.sweep_cells import kinds_of, setting_text, title_of, with_interval, with_sd

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
    print_table(
        headers,
        [
            (*key, *(cell for t in known for cell in cells.get(t, ("-", "-", "-"))))
            for key, cells in lines.items()
        ],
        title=f"Best EDP gain with its time ({kinds_of(results)}); time + is longer",
    )


def print_powers(results: Sequence[SweepResult]) -> None:
    """Power of main and second component."""
    rows = tables.power_rows(results)
    known = list(dict.fromkeys(t for row in rows for t in row if isinstance(row[t], dict)))
    main = next((row["main"] for row in rows), "gpu").upper()
    second = next((row["second"] for row in rows if row["second"]), None)
    parts = [("main", main), *([("second", second.upper())] if second else [])]
    print_table(
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
        f"({kinds_of(results)})",
    )


def print_scaling(results: Sequence[SweepResult]) -> None:
    """Time and speed-up by number of GPUs."""
    for result in results:
        print_table(
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
    print_table(
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
