"""How far the utilisation estimate is from RAPL, beside CodeCarbon's and a constant 50% of TDP.

    python benchmarks/estimate_accuracy.py [--csv FILE] [--json FILE] [--docs FILE]

The file has one row per load level: cpu_name, load_type (all_cores: every thread busy for a part
of the time; some_cores: some threads busy all the time), cores_used, cpu_load (%), cpu_freq (MHz,
mean over cores), rapl_power and estimated_power (W, CodeCarbon's).
"""

import argparse
import csv
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wattloop.hardware import cpu_power
from wattloop.hardware.cpus import Processor, guess_processor, processor_named

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = "reference/cpu_load_rapl.csv"
TARGET_COVERAGE = 0.9


@dataclass(frozen=True)
class Row:
    """One load level of one processor."""

    processor: Processor
    base_mhz: float
    some_cores: bool
    load: float
    mhz: float | None
    rapl_w: float
    codecarbon_w: float

    def estimate_w(self, *, with_clock: bool = True) -> float:
        """Ours, from what the meter would have seen."""
        threads = max(1, self.processor.threads)
        per_core = max(1, threads // max(1, self.processor.cores))
        cores = max(1, threads // per_core)
        if self.some_cores:
            # The scheduler fills whole cores before it doubles up on any.
            busy = self.load * threads
            layers = [min(1.0, max(0.0, busy / cores - k)) for k in range(per_core)]
            first, second = layers[0], layers[1] if per_core > 1 else 0.0
            both = cpu_power.core_activity([[1.0] * per_core])
            alone = cpu_power.core_activity([[1.0] + [0.0] * (per_core - 1)])
            activity = first * alone + second * (both - alone)
        else:
            activity = cpu_power.core_activity([[self.load] * per_core])
        ratio = self.mhz / self.base_mhz if with_clock and self.mhz else None
        return cpu_power.package_power_w(self.processor, activity, ratio)


def main() -> int:
    arguments = _arguments()
    path = arguments.csv or _reference_file()
    if not path.is_file():
        print(
            f"{path} is not there; name the folder that holds {REFERENCE} with "
            "WATTLOOP_SHARED_DATA, or a file of the same shape with --csv",
            file=sys.stderr,
        )
        return 2
    try:
        groups = _load(path)
    except (KeyError, ValueError) as error:
        print(f"{path} is not of the expected shape: {error!r}", file=sys.stderr)
        return 2
    report = _report(groups, path.name)
    print(report)
    if arguments.docs:
        arguments.docs.parent.mkdir(parents=True, exist_ok=True)
        arguments.docs.write_text(report + "\n")
    if arguments.json:
        text = json.dumps({"bars": _bars(groups)}, indent=2) + "\n"
        if str(arguments.json) == "-":
            print(text, end="")
        else:
            arguments.json.write_text(text)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--csv", type=Path, help="another file of the same shape")
    parser.add_argument("--json", type=Path, help="write the bars to FILE ('-': standard output)")
    parser.add_argument("--docs", type=Path, help="write the tables as Markdown to FILE")
    arguments = parser.parse_args()
    if arguments.docs is None and arguments.csv is None:
        arguments.docs = ROOT / "docs" / "benchmarks" / "estimate_accuracy.md"
    return arguments


def _reference_file() -> Path:
    shared = os.environ.get("WATTLOOP_SHARED_DATA") or ROOT.parent / "shared" / "data"
    return Path(shared) / REFERENCE


def _load(path: Path) -> dict[str, list[Row]]:
    by_name: dict[str, list[dict[str, str]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for record in csv.DictReader(file):
            by_name.setdefault(record["cpu_name"], []).append(record)
    if not by_name:
        raise ValueError("no rows")
    return {name: _rows(name, records) for name, records in by_name.items()}


def _rows(name: str, records: list[dict[str, str]]) -> list[Row]:
    threads = max(1, *(int(float(r["cores_used"] or 0)) for r in records))
    processor = processor_named(name) or guess_processor(
        name, cores=max(1, threads // 2), threads=threads, virtual=False
    )
    clocks = [float(r["cpu_freq"]) for r in records if r.get("cpu_freq")]
    # Without a name that tells the base clock, the meter would ask cpufreq for the highest.
    base_mhz = processor.base_mhz or (max(clocks) / 1.2 if clocks else 1.0)
    return [
        Row(
            processor=processor,
            base_mhz=base_mhz,
            some_cores=r["load_type"] == "some_cores",
            load=float(r["cpu_load"]) / 100,
            mhz=float(r["cpu_freq"]) if r.get("cpu_freq") else None,
            rapl_w=float(r["rapl_power"]),
            codecarbon_w=float(r["estimated_power"]),
        )
        for r in records
    ]


Estimator = Callable[[Row], float]

METHODS: dict[str, Estimator] = {
    "ours, shipped": lambda row: row.estimate_w(),
    "ours, clock unknown": lambda row: row.estimate_w(with_clock=False),
    "CodeCarbon": lambda row: row.codecarbon_w,
    "constant 50% of TDP": lambda row: row.processor.tdp_w / 2,
}


HELD_OUT = {"held out, all chosen": True, "held out, idle as shipped": False}


def _mae_of_tdp(rows: Iterable[Row], method: Estimator) -> float:
    """Mean absolute error as a share of TDP."""
    return _mean(abs(method(r) - r.rapl_w) / r.processor.tdp_w for r in rows)


def _mae_w(rows: Iterable[Row], method: Estimator) -> float:
    return _mean(abs(method(r) - r.rapl_w) for r in rows)


def _median_ape(rows: Iterable[Row], method: Estimator) -> float:
    errors = sorted(abs(method(r) - r.rapl_w) / r.rapl_w for r in rows)
    return errors[len(errors) // 2]


GRID: dict[str, tuple[float, ...]] = {
    "CORE_W": (7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0),
    "SMT_GAIN": (0.15, 0.3, 0.5),
    "CLOCK_EXPONENT": (1.5, 2.0, 2.5, 3.0),
    "SHARPNESS": (3.0, 6.0, 20.0),
}
IDLE_GRID = (0.04, 0.08, 0.12, 0.16, 0.20, 0.24, 0.28)
WIDTH_GRID = tuple(
    itertools.product((0.0, 0.05, 0.1, 0.15, 0.2, 0.25), (k / 50 for k in range(20)))
)


@contextmanager
def _constants(values: dict[str, float], idle: float | None) -> Iterator[None]:
    """The model with other constants; `idle` is one share for every kind of processor."""
    before = {name: getattr(cpu_power, name) for name in values}
    idle_before = dict(cpu_power.IDLE_SHARE)
    for name, value in values.items():
        setattr(cpu_power, name, value)
    if idle is not None:
        cpu_power.IDLE_SHARE.update(dict.fromkeys(idle_before, idle))
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(cpu_power, name, value)
        cpu_power.IDLE_SHARE.update(idle_before)


@dataclass(frozen=True)
class HeldOut:
    """What constants chosen on the other processors give on one they have not seen."""

    errors: list[float]
    covered: list[bool]
    widths: list[float]


def _held_out(groups: dict[str, list[Row]], name: str, *, choose_idle: bool) -> HeldOut | None:
    """Constants and interval chosen on the others alone, tried on `name`; errors as TDP shares.

    Without `choose_idle` the idle share of each kind stays as shipped, as prior knowledge: one
    kind cannot teach the other's.
    """
    others = [row for other, rows in groups.items() if other != name for row in rows]
    if not others:
        return None
    settings = [
        (dict(zip(GRID, values, strict=True)), idle)
        for values in itertools.product(*GRID.values())
        for idle in (IDLE_GRID if choose_idle else (None,))
    ]

    def error_on_others(setting: tuple[dict[str, float], float | None]) -> float:
        with _constants(*setting):
            return _mae_of_tdp(others, METHODS["ours, shipped"])

    with _constants(*min(settings, key=error_on_others)):
        relative, of_tdp = _smallest_interval(_shares(others))
        tried = _shares(groups[name])
    errors = [abs(estimate - rapl) for estimate, rapl in tried]
    widths = [relative * estimate + of_tdp for estimate, _ in tried]
    return HeldOut(errors, [e <= w for e, w in zip(errors, widths, strict=True)], widths)


def _shares(rows: list[Row]) -> list[tuple[float, float]]:
    """Estimate and RAPL as shares of TDP."""
    return [(r.estimate_w() / r.processor.tdp_w, r.rapl_w / r.processor.tdp_w) for r in rows]


def _smallest_interval(shares: list[tuple[float, float]]) -> tuple[float, float]:
    """The narrowest pair of relative and constant half-width that covers 90% of `shares`."""

    def width(pair: tuple[float, float]) -> float:
        halves = [pair[0] * estimate + pair[1] for estimate, _ in shares]
        hits = sum(abs(e - r) <= h for (e, r), h in zip(shares, halves, strict=True))
        return _mean(halves) if hits >= TARGET_COVERAGE * len(shares) else float("inf")

    return min(WIDTH_GRID, key=width)


def _interval(rows: list[Row], *, with_clock: bool) -> tuple[float, float, float]:
    """Coverage, mean half-width, and the smallest constant one that covers 90%, of TDP."""
    hits, widths, errors = 0, [], []
    for row in rows:
        estimate = row.estimate_w(with_clock=with_clock)
        tdp_w = row.processor.tdp_w
        relative, of_tdp = cpu_power.estimate_error(row.processor, clock_known=with_clock)
        half_w = relative * estimate + of_tdp * tdp_w
        error_w = abs(estimate - row.rapl_w)
        hits += error_w <= half_w
        widths.append(half_w / tdp_w)
        errors.append(error_w / tdp_w)
    needed = sorted(errors)[-(-len(errors) * 9 // 10) - 1]
    return hits / len(rows), _mean(widths), needed


def _bars(groups: dict[str, list[Row]]) -> list[dict[str, object]]:
    """The held-out figures are the ones to judge; the shipped constants' stand beside them."""
    rows = [row for group in groups.values() for row in group]
    baselines = {name: round(100 * _mae_of_tdp(rows, m), 2) for name, m in METHODS.items()}
    coverage, width, needed = _interval(rows, with_clock=True)
    bars: list[dict[str, object]] = []
    for choose_idle in HELD_OUT.values():
        held = [_held_out(groups, name, choose_idle=choose_idle) for name in groups]
        parts = [part for part in held if part is not None]
        if parts:
            suffix = "all_chosen" if choose_idle else "idle_as_shipped"
            error = 100 * _mean(e for part in parts for e in part.errors)
            covered = 100 * _mean(c for part in parts for c in part.covered)
            half = 100 * _mean(w for part in parts for w in part.widths)
            bars += [
                _bar(
                    f"held_out_error_{suffix}",
                    error,
                    "% of TDP",
                    baselines["CodeCarbon"],
                    baselines,
                ),
                _bar(f"held_out_coverage_{suffix}", covered, "%", 90.0, {"half-width": half}),
            ]
    return [
        *bars,
        _bar(
            "shipped_error",
            100 * _mae_of_tdp(rows, METHODS["ours, shipped"]),
            "% of TDP",
            baselines["CodeCarbon"],
            baselines,
        ),
        _bar(
            "shipped_error_w",
            _mae_w(rows, METHODS["ours, shipped"]),
            "W",
            _mae_w(rows, METHODS["CodeCarbon"]),
            {name: _mae_w(rows, m) for name, m in METHODS.items()},
        ),
        _bar("shipped_coverage", 100 * coverage, "%", 90.0, {}),
        _bar(
            "shipped_half_width",
            100 * width,
            "% of TDP",
            200 * needed,
            {"smallest constant width that covers 90%": 100 * needed},
        ),
    ]


def _bar(
    name: str, value: float, unit: str, bar: float, baselines: dict[str, float]
) -> dict[str, object]:
    return {
        "name": f"estimate_{name}",
        "value": round(value, 2),
        "unit": unit,
        "bar": round(bar, 2),
        "baselines": {label: round(number, 2) for label, number in baselines.items()},
    }


def _report(groups: dict[str, list[Row]], file_name: str) -> str:
    lines = [
        "# How good is the utilisation estimate?",
        "",
        f"Made by `benchmarks/estimate_accuracy.py` from `{file_name}`: mean absolute error "
        "against RAPL.",
        "",
        "`shipped` is the model as released. Its constants were chosen by comparing some 35 "
        "settings on the",
        "two processors of the reference file, and the interval by comparing ten widths, so on "
        "that file its",
        "figures are in-sample and flatter it. `held out` chooses constants on the other "
        "processors only:",
        "`all chosen` with one idle share for every kind, `idle as shipped` with the idle share "
        "per kind of",
        "processor taken as known. The form of the model was settled with both in view, "
        "which neither undoes.",
        "",
        "| processor | TDP | method | error, % of TDP | error, W | median error, % of reading |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in groups.items():
        for label, method in METHODS.items():
            lines.append(_line(name, f"{rows[0].processor.tdp_w:g} W", label, rows, method))
        for label, choose_idle in HELD_OUT.items():
            held = _held_out(groups, name, choose_idle=choose_idle)
            if held is not None:
                lines.append(f"| {name} | | ours, {label} | {100 * _mean(held.errors):.1f} | | |")
    everything = [row for rows in groups.values() for row in rows]
    for label, method in METHODS.items():
        lines.append(_line("all", "", label, everything, method))
    lines += [
        "",
        "The stated interval (half-width, mean over rows) and how often RAPL lies in it:",
        "",
        "| processor | clock | covered | half-width, % of TDP | smallest constant for 90% |",
        "|---|---|---|---|---|",
    ]
    for name, rows in groups.items():
        for with_clock in (True, False):
            covered, width, needed = _interval(rows, with_clock=with_clock)
            lines.append(
                f"| {name} | {'known' if with_clock else 'unknown'} | {100 * covered:.0f}% "
                f"| {100 * width:.1f} | {100 * needed:.1f} |"
            )
    for name in groups:
        for label, choose_idle in HELD_OUT.items():
            held = _held_out(groups, name, choose_idle=choose_idle)
            if held is not None:
                lines.append(
                    f"| {name} | known, {label} | {100 * _mean(held.covered):.0f}% "
                    f"| {100 * _mean(held.widths):.1f} | |"
                )
    if file_name == Path(REFERENCE).name:
        lines += ["", *_LAG.splitlines(), "", *_lag_table(groups)]
    return "\n".join(lines)


_LAG = """\
## The reference may lag behind by a row

In each series of the reference file the first RAPL value is about 1/31 of the second, as if one
sample of 31 had been counted, and idle power stands beside 12% load, as if each value belonged to
the row above. This is a reading of the file, not something its makers say. The tables above take
the file as it is. Against RAPL moved up by a row, which spares every method the first values:
"""


def _lag_table(groups: dict[str, list[Row]]) -> list[str]:
    lines = ["| method | error, % of TDP |", "|---|---|"]
    for label, method in METHODS.items():
        errors = []
        for rows in groups.values():
            for some_cores in (False, True):
                series = [r for r in rows if r.some_cores is some_cores]
                for row, after in itertools.pairwise(series):
                    errors.append(abs(method(row) - after.rapl_w) / row.processor.tdp_w)
        if errors:
            lines.append(f"| {label} | {100 * _mean(errors):.1f} |")
    return lines


def _line(name: str, tdp: str, label: str, rows: list[Row], method: Estimator) -> str:
    return (
        f"| {name} | {tdp} | {label} | {100 * _mae_of_tdp(rows, method):.1f} "
        f"| {_mae_w(rows, method):.1f} | {100 * _median_ape(rows, method):.0f} |"
    )


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


if __name__ == "__main__":
    sys.exit(main())
