"""Errors of the utilisation estimate against RAPL, with CodeCarbon's and a constant 50% of TDP.

    python benchmarks/estimate_accuracy.py [--csv FILE] [--json FILE] [--docs FILE]

No constant of the estimate comes from the file, so every processor in it is held out.

The file has one row per load level: cpu_name, load_type (all_cores: every thread busy for a part
of the time; some_cores: some threads busy all the time), cores_used, cpu_load (%), cpu_freq (MHz,
mean over cores), rapl_power and estimated_power (W, CodeCarbon's).
"""

import argparse
import csv
import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import published_cpu_power as prior
from wattloop.hardware import cpus
from wattloop.hardware.cpus import Processor, guess_processor, processor_named

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = "reference/cpu_load_rapl.csv"


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
        """Return Wattloop's estimate, from the values that the meter would read."""
        threads = max(1, self.processor.threads)
        per_core = max(1, threads // max(1, self.processor.cores))
        cores = max(1, threads // per_core)
        if self.some_cores:
            # The scheduler fills whole cores before it uses second threads.
            busy = self.load * threads
            layers = [min(1.0, max(0.0, busy / cores - k)) for k in range(per_core)]
            first, second = layers[0], layers[1] if per_core > 1 else 0.0
            both = cpus.core_activity([[1.0] * per_core])
            alone = cpus.core_activity([[1.0] + [0.0] * (per_core - 1)])
            activity = first * alone + second * (both - alone)
        else:
            activity = cpus.core_activity([[self.load] * per_core])
        ratio = self.mhz / self.base_mhz if with_clock and self.mhz else None
        return cpus.package_power_w(self.processor, activity, ratio)


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
    sockets = max(1, round(threads / processor.threads))
    if sockets > 1:  # RAPL of all packages stands in one column
        processor = processor._replace(
            cores=sockets * processor.cores,
            threads=sockets * processor.threads,
            tdp_w=sockets * processor.tdp_w,
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
Groups = dict[str, list[Row]]

METHODS: dict[str, Estimator] = {
    "ours": lambda row: row.estimate_w(),
    "ours, clock unknown": lambda row: row.estimate_w(with_clock=False),
    "CodeCarbon": lambda row: row.codecarbon_w,
    "CodeCarbon's general law, TDP x load": lambda row: row.processor.tdp_w * row.load,
    "constant 50% of TDP": lambda row: row.processor.tdp_w / 2,
}


def _next_row(groups: Groups) -> Groups:
    """Return the rows with RAPL of the next row, without the last of each series."""
    return {name: list(_shifted(rows)) for name, rows in groups.items()}


def _shifted(rows: list[Row]) -> Iterable[Row]:
    for some_cores in (False, True):
        series = [r for r in rows if r.some_cores is some_cores]
        for row, after in itertools.pairwise(series):
            yield replace(row, rapl_w=after.rapl_w)


def _without_first(groups: Groups) -> Groups:
    """Return the rows without the first of each series, whose RAPL covers one second of thirty."""
    kept: Groups = {}
    for name, rows in groups.items():
        for some_cores in (False, True):
            series = [r for r in rows if r.some_cores is some_cores]
            kept.setdefault(name, []).extend(series[1:])
    return kept


READINGS: dict[str, Callable[[Groups], Groups]] = {
    "as it stands": lambda groups: groups,
    "first rows dropped": _without_first,
    "RAPL moved up a row": _next_row,
}


def _mae_of_tdp(rows: Iterable[Row], method: Estimator) -> float:
    """Return the mean absolute error as a share of TDP."""
    return _mean(abs(method(r) - r.rapl_w) / r.processor.tdp_w for r in rows)


def _mae_w(rows: Iterable[Row], method: Estimator) -> float:
    return _mean(abs(method(r) - r.rapl_w) for r in rows)


def _interval(rows: list[Row], *, with_clock: bool) -> tuple[float, float, float]:
    """Return coverage, mean half-width, and the smallest constant one that covers 90%, of TDP."""
    hits, widths, errors = 0, [], []
    for row in rows:
        estimate = row.estimate_w(with_clock=with_clock)
        tdp_w = row.processor.tdp_w
        relative, of_tdp = cpus.estimate_error(row.processor, clock_known=with_clock)
        half_w = relative * estimate + of_tdp * tdp_w
        error_w = abs(estimate - row.rapl_w)
        hits += error_w <= half_w
        widths.append(half_w / tdp_w)
        errors.append(error_w / tdp_w)
    needed = sorted(errors)[-(-len(errors) * 9 // 10) - 1]
    return hits / len(rows), _mean(widths), needed


def _bars(groups: Groups) -> list[dict[str, object]]:
    """Bars of error and interval for each reading of the file, then for the published
    processors.
    """
    bars: list[dict[str, object]] = []
    for reading, suffix in zip(READINGS, ("", "_first_dropped", "_moved_up"), strict=True):
        rows = _flat(READINGS[reading](groups))
        if not rows:
            continue
        errors = {name: 100 * _mae_of_tdp(rows, method) for name, method in METHODS.items()}
        coverage, width, needed = _interval(rows, with_clock=True)
        bars += [
            _bar(
                f"held_out_error{suffix}", errors["ours"], "% of TDP", errors["CodeCarbon"], errors
            ),
            _bar(f"coverage{suffix}", 100 * coverage, "%", 90.0, {}),
            _bar(
                f"half_width{suffix}",
                100 * width,
                "% of TDP",
                200 * needed,
                {"smallest constant width that covers 90%": 100 * needed},
            ),
        ]
    parts = prior.published()
    tried = prior.judged(prior.leave_family_out(parts))
    families = prior.by_family(tried)
    worst = max(families, key=lambda family: _ratio(families[family]))
    errors = {
        "ours": 100 * prior.mean_error(tried, lambda t: t.estimate),
        "CodeCarbon's general law, at least 10% of TDP": 100
        * prior.mean_error(tried, lambda t: t.codecarbon),
    }
    covered = statistics.mean(prior.unseen_coverage(parts, with_clock=True).values())
    return [
        *bars,
        _bar("families_error_over_codecarbon", _ratio(families[worst]), f"({worst})", 1.0, errors),
        _bar("families_coverage", 100 * covered, "%", 90.0, {}),
    ]


def _ratio(tried: list[prior.Tried]) -> float:
    """Return the estimate's error over CodeCarbon's on one family that was left out."""
    ours = prior.mean_error(tried, lambda t: t.estimate)
    return ours / prior.mean_error(tried, lambda t: t.codecarbon)


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


def _report(groups: Groups, file_name: str) -> str:
    lines = [
        "# How good is the utilisation estimate?",
        "",
        f"Made by `benchmarks/estimate_accuracy.py` from `{file_name}`: mean absolute error "
        "against RAPL, as a",
        "share of TDP.",
        "",
        *_HELD_OUT.splitlines(),
        "",
        "| processor | TDP | method | " + " | ".join(READINGS) + " | as it stands, W |",
        "|---|---|---|" + "---|" * (len(READINGS) + 1),
    ]
    readings = [read(groups) for read in READINGS.values()]
    for name, rows in groups.items():
        for label, method in METHODS.items():
            cells = " | ".join(_percent(reading[name], method) for reading in readings)
            tdp = f"{rows[0].processor.tdp_w:g} W"
            lines.append(f"| {name} | {tdp} | {label} | {cells} | {_mae_w(rows, method):.1f} |")
    for label, method in METHODS.items():
        cells = " | ".join(_percent(_flat(reading), method) for reading in readings)
        lines.append(f"| all | | {label} | {cells} | {_mae_w(_flat(groups), method):.1f} |")
    lines += [
        "",
        "The stated interval (half-width, mean over rows) and how often RAPL lies in it:",
        "",
        "| processor | clock | reading | covered | half-width | smallest constant for 90% |",
        "|---|---|---|---|---|---|",
    ]
    for name in groups:
        for with_clock in (True, False):
            for reading, moved in zip(READINGS, readings, strict=True):
                if moved[name]:
                    lines.append(_interval_line(name, reading, moved[name], with_clock=with_clock))
    lines += ["", *_published_section()]
    if file_name == Path(REFERENCE).name:
        alone = 100 * _lag_alone(groups)
        lines += ["", *_LAG.format(alone=alone).splitlines()]
    return "\n".join(lines)


_HELD_OUT = """\
**Both processors are held out**: curves and interval come from published measurements of others
(below), and none was chosen by how it does here. The form was written down by people who had seen
this file, which nothing undoes; this model was tried on these rows once, after it had been settled.

CodeCarbon has a curve of its own for Threadrippers, chosen by name; any other processor gets
TDP x load. So its column is not held out on the first processor here; its general law is."""


_LAG = """\
## The reference lags behind by a row

In each series the first RAPL value is about 1/31 of the second, as if one second of 31 had been
counted, and idle power appears next to 12% load: with one thread of the Xeon busy it reads what it
reads idle, and the first core's 15 W appear next to two. RAPL moved up by a row gives 15 W for the
first core, 6 to 8 W for each further one, and 1 to 2 W for each second thread, which is how such a
part behaves. This is a reading of the file, not something its makers say, so both are shown, and
the bar is the file as it stands.

It matters: an estimate without any error would score {alone:.1f}% of TDP on the file as it stands,
because power rises by about that much from row to row. A law that starts from zero and
lies too low, such as TDP x load, gains from the lag."""


def _lag_alone(groups: Groups) -> float:
    """Return the error of the lag alone: RAPL moved up a row, taken for the estimate."""
    pairs = [
        abs(after.rapl_w - row.rapl_w) / row.processor.tdp_w
        for rows in groups.values()
        for some_cores in (False, True)
        for row, after in itertools.pairwise([r for r in rows if r.some_cores is some_cores])
    ]
    return _mean(pairs)


def _published_section() -> list[str]:
    """Section on families of published processors, each estimated from the others."""
    parts = prior.published()
    machines = sum(part.servers for part in parts)
    tried = prior.judged(prior.leave_family_out(parts))
    blind = prior.by_family(prior.judged(prior.leave_family_out(parts, with_clock=False)))
    covered = prior.unseen_coverage(parts, with_clock=True)
    covered_blind = prior.unseen_coverage(parts, with_clock=False)
    lines = [
        f"## {len(parts)} published processors of {machines} machines, families left out",
        "",
        *_FAMILIES.splitlines(),
        "",
        "| family left out | processors | ours | ours, clock unknown | CodeCarbon | covered | "
        "covered, clock unknown |",
        "|---|---|---|---|---|---|---|",
    ]
    for family, own in prior.by_family(tried).items():
        names = {t.part.processor.name for t in own}
        ours, codecarbon = _errors(own)
        lines.append(
            f"| {family} | {len(names)} | {ours:.1f} | {_errors(blind[family])[0]:.1f} | "
            f"{codecarbon:.1f} | {covered[family]:.0%} | {covered_blind[family]:.0%} |"
        )
    ours, codecarbon = _errors(tried)
    unknown = _errors([t for own in blind.values() for t in own])[0]
    lines.append(
        f"| all | {len({t.part.processor.name for t in tried})} | {ours:.1f} | {unknown:.1f} | "
        f"{codecarbon:.1f} | {statistics.mean(covered.values()):.0%} | "
        f"{statistics.mean(covered_blind.values()):.0%} |"
    )
    lines += [
        "",
        "The processors whose packages were read by RAPL while whole curves were run, their "
        "families left out:",
        "",
        "| processor | measured at 0, 10, 50, 100%, % of TDP | estimated | ours | CodeCarbon |",
        "|---|---|---|---|---|",
    ]
    direct = [t for t in tried if not t.part.source.startswith(prior.SPEC)]
    for part in dict.fromkeys(t.part for t in direct):
        own = [t for t in direct if t.part is part]
        shown = [t for t in own if round(100 * t.level.utilisation) in (0, 10, 50, 100)]
        measured = ", ".join(f"{100 * t.level.share:.0f}" for t in shown)
        estimated = ", ".join(f"{100 * t.estimate:.0f}" for t in shown)
        ours, codecarbon = _errors(own)
        lines.append(
            f"| {part.processor.name} | {measured} | {estimated} | {ours:.1f} | {codecarbon:.1f} |"
        )
    return [*lines, "", *_other_walls()]


def _other_walls() -> list[str]:
    """Section on the losses between the wall of a server and its packages."""
    lines = [
        "The same with other assumptions between the wall and the package (supply 92%, fans 5%, "
        "regulators 10%, 10 W a server and 5 W a chip, 0.1 to 0.2 W per GB):",
        "",
        "| assumed instead | ours | CodeCarbon | worst family, ours over CodeCarbon | covered |",
        "|---|---|---|---|---|",
    ]
    for name, wall in prior.OTHER_WALLS.items():
        parts = prior.published(wall)
        tried = prior.judged(prior.leave_family_out(parts))
        ratios = {family: _ratio(own) for family, own in prior.by_family(tried).items()}
        worst = max(ratios, key=lambda family: ratios[family])
        ours, codecarbon = _errors(tried)
        covered = statistics.mean(prior.unseen_coverage(parts, with_clock=True).values())
        lines.append(
            f"| {name} | {ours:.1f} | {codecarbon:.1f} | {worst} {ratios[worst]:.2f} | "
            f"{covered:.0%} |"
        )
    return lines


def _errors(tried: list[prior.Tried]) -> tuple[float, float]:
    """Return the errors of the estimate and of CodeCarbon's general law, % of TDP."""
    return (
        100 * prior.mean_error(tried, lambda t: t.estimate),
        100 * prior.mean_error(tried, lambda t: t.codecarbon),
    )


_FAMILIES = """\
A family is a generation of one maker. Its load curve and its interval come from the other
families. Error: mean absolute, % of TDP, mean over processors; covered: share of load levels
within the stated interval. CodeCarbon: its general law, TDP x load and at least 10% of TDP.
Servers of SPECpower are measured at the wall; package power is worked out from that
([ADR 0022](../adr/0022-the-estimate-learns-from-published-processors.md)). Nothing here was read
from the processors of the first table."""


def _interval_line(name: str, reading: str, rows: list[Row], *, with_clock: bool) -> str:
    covered, width, needed = _interval(rows, with_clock=with_clock)
    known = "known" if with_clock else "unknown"
    return (
        f"| {name} | {known} | {reading} | {100 * covered:.0f}% | {100 * width:.1f} "
        f"| {100 * needed:.1f} |"
    )


def _percent(rows: list[Row], method: Estimator) -> str:
    return f"{100 * _mae_of_tdp(rows, method):.1f}" if rows else ""


def _flat(groups: Groups) -> list[Row]:
    return [row for rows in groups.values() for row in rows]


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


if __name__ == "__main__":
    sys.exit(main())
