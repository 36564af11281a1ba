"""Pauses and evaluations that are found from GPU signals alone, against the marks of trainings.

    python benchmarks/signal_phases.py FILE...          # print
    python benchmarks/signal_phases.py FILE... --page   # and write docs/benchmarks/signal_phases.md

A FILE has one JSON object per line (compressed where its name ends in `.gz`): `model`, `shape`,
`samples` with the columns named in `columns` (`t_s`, `energy_j`, `util_gpu`, `util_mem` are used)
and `marks` with the moments of steps, evaluations and pauses on the same clock.
"""

import argparse
import gzip
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from wattloop.integrations import signal_phases
from wattloop.integrations.run_phases import Span, merge
from wattloop.integrations.signal_phases import SignalReading, split_by_signals

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks" / "signal_phases.md"
LONG_S = 0.5
"""Pauses and evaluations of this length must be found."""
SLACK_S = 0.3
"""Kernels run after the host's mark: those in the queue, and the period of the sensor."""
EVERY = 4
"""Of the file's 20 samples a second, `wattloop run` takes every fourth."""
DROP = 0.8
"""The baseline reports power below this part of the median of the training."""
DEVIATIONS = (2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0)

Finder = Callable[[Sequence[SignalReading]], list[Span]]


class Training(NamedTuple):
    name: str
    shape: str
    begin_s: float
    end_s: float
    marked: list[Span]
    """Evaluations and pauses; one directly after the other is a single event."""
    samples: list[list[float]]


class Score(NamedTuple):
    """Events of `LONG_S` and longer, those found, reports, false reports, errors of edges."""

    events: int = 0
    found: int = 0
    reports: int = 0
    false: int = 0
    edges_s: tuple[float, ...] = ()

    def __add__(self, other: Any) -> "Score":
        return Score(*(a + b for a, b in zip(self, other, strict=True)))

    def text(self) -> str:
        return f"{self.found} of {self.events} | {self.false} of {self.reports}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="trainings with signals and marks")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    trainings = [training for file in options.files for training in read_trainings(file)]
    text = page(trainings)
    print(text)
    if options.page:
        PAGE.write_text(text + "\n", encoding="utf-8")


def read_trainings(file: Path) -> Iterator[Training]:
    data = file.read_bytes()
    text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode()
    for line in filter(str.strip, text.splitlines()):
        row = json.loads(line)
        columns = [row["columns"].index(n) for n in ("t_s", "energy_j", "util_gpu", "util_mem")]
        marks = row["marks"]
        spans = [
            (begin_s, next(b for b, end in marks if b >= begin_s and end == name[:-5] + "end"))
            for begin_s, name in marks
            if name.endswith("-begin")
        ]
        yield Training(
            f"{row['model']} x {row['batch']}, {row['precision']}",
            row["shape"],
            min(time_s for time_s, name in marks if name == "step"),
            marks[-1][0],
            spans,
            [[sample[i] for i in columns] for sample in row["samples"]],
        )


def readings(training: Training, every: int, first: int = 0) -> list[SignalReading]:
    """Return what a sampler would have read; power is that of the energy counter."""
    counter = [(s[0], s[1]) for s in training.samples if s[1] is not None]
    times_s = [time_s for time_s, _ in counter]

    def energy_j(time_s: float) -> float:
        i = min(max(bisect_left(times_s, time_s), 1), len(counter) - 1)
        (a_s, a_j), (b_s, b_j) = counter[i - 1], counter[i]
        return a_j + (b_j - a_j) * (time_s - a_s) / (b_s - a_s)

    return [
        SignalReading(
            b[0], (energy_j(b[0]) - energy_j(a[0])) / (b[0] - a[0]), b[2] / 100, b[3] / 100
        )
        for a, b in pairwise(training.samples[first::every])
    ]


def by_signals(read: Sequence[SignalReading]) -> list[Span]:
    found = split_by_signals(read)
    return sorted([*found.get("pause", ()), *found.get("other work", ())])


def by_power_alone(read: Sequence[SignalReading]) -> list[Span]:
    """Find power below a part of its median while the GPU works: the baseline."""
    works = [r for r in read if r.busy > signal_phases.IDLE_BUSY]
    limit_w = DROP * median(r.power_w for r in works)
    spans = [(a.time_s, b.time_s) for a, b in pairwise(read) if b.power_w < limit_w]
    inside = [(a, b) for a, b in merge(spans) if works[0].time_s < a and b < works[-1].time_s]
    return [(a, b) for a, b in inside if b - a >= signal_phases.SHORTEST_S]


def score(training: Training, found: Sequence[Span]) -> Score:
    """Compare with the marks. Reports outside of the marked training are not judged."""
    found = [s for s in found if s[1] > training.begin_s and s[0] < training.end_s]
    events = [(a, b) for a, b in training.marked if b - a >= LONG_S]
    wide = merge((a - SLACK_S, b + SLACK_S) for a, b in training.marked)
    hits = [(a, b) for a, b in events if _common_s((a, b), found) >= (b - a) / 2]
    false = [(a, b) for a, b in found if _common_s((a, b), wide) < (b - a) / 2]
    edges_s = [
        min(abs(edge_s - f[i]) for f in found) for hit in hits for i, edge_s in enumerate(hit)
    ]
    return Score(len(events), len(hits), len(found), len(false), tuple(edges_s))


def _common_s(span: Span, others: Sequence[Span]) -> float:
    return sum(max(0.0, min(span[1], b) - max(span[0], a)) for a, b in others)


def scores(training: Training, finder: Finder, every: int) -> Score:
    """Return the sum over all moments at which a sampler of that rate could have begun."""
    each = [score(training, finder(readings(training, every, i))) for i in range(every)]
    return sum(each, Score())


@contextmanager
def deviation(value: float) -> Iterator[None]:
    usual = signal_phases.DEVIATION
    signal_phases.DEVIATION = value
    try:
        yield
    finally:
        signal_phases.DEVIATION = usual


def page(trainings: Sequence[Training]) -> str:
    fast = [scores(t, by_signals, 1) for t in trainings]
    slow = [scores(t, by_signals, EVERY) for t in trainings]
    power = [scores(t, by_power_alone, 1) for t in trainings]
    rows = [
        f"| {t.name} | {t.shape} | {a.text()} | {b.text()} | {c.text()} |"
        for t, a, b, c in zip(trainings, fast, slow, power, strict=True)
    ]
    totals = [sum(each, Score()) for each in (fast, slow, power)]
    rows.append("| **all** | | " + " | ".join(total.text() for total in totals) + " |")
    error_s = mean(totals[0].edges_s) if totals[0].edges_s else 0.0
    return "\n".join(
        [
            "# Phases from GPU signals alone",
            "",
            "Real trainings on an NVIDIA H200 with the true moments of evaluations and pauses. "
            "The method (`wattloop.integrations.signal_phases`) sees power, utilisation and memory "
            f"utilisation, no marks. An event of {LONG_S} s or longer counts as found if half of "
            "its time is reported. A report is false if less than half of its time lies within "
            f"{SLACK_S} s of any marked evaluation or pause, short ones included. Each cell has "
            '"found of events | false of reports". Asked: found >= 90%, false <= 5%.',
            "",
            "| training | loop | 20 Hz: found | false | 5 Hz, as `wattloop run`: found | false | "
            "power threshold: found | false |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            f"{totals[0].events} events are few: a single miss would be "
            f"{1 / max(1, totals[0].events):.0%}. `benchmarks/signal_recordings.py` records more.",
            "",
            f"At 5 Hz the {EVERY} possible beginnings of the sampler are counted. Edges of found "
            f"events are {error_s * 1e3:.0f} ms from the marks on average. The baseline in the "
            f"last columns reports power below {DROP:.0%} of the median of the training.",
            "",
            *_sensitivity(trainings),
        ]
    )


def _sensitivity(trainings: Sequence[Training]) -> list[str]:
    """Return how the result depends on the one constant that decides about other work."""
    table: dict[float, list[Score]] = {}
    for value in DEVIATIONS:
        with deviation(value):
            table[value] = [
                scores(t, by_signals, 1) + scores(t, by_signals, EVERY) for t in trainings
            ]
    rows = [
        f"| {value} | {sum(each, Score()).text()} |"
        + (" used |" if value == signal_phases.DEVIATION else " |")
        for value, each in table.items()
    ]
    left_out = Score()
    chosen = []
    for i in range(len(trainings)):
        others = {v: sum((s for j, s in enumerate(e) if j != i), Score()) for v, e in table.items()}
        best = min(s.events - s.found + s.false for s in others.values())
        good = [v for v, s in others.items() if s.events - s.found + s.false == best]
        chosen.append(good[len(good) // 2])
        left_out += table[chosen[-1]][i]
    return [
        "## The threshold",
        "",
        "`DEVIATION` is the distance of other work from main work in standard deviations. It is "
        "set by what noise does (4 standard deviations once in 16,000 readings), not by these "
        "trainings. The same sums for other values, both rates together:",
        "",
        "| deviations | found | false | |",
        "|---|---|---|---|",
        *rows,
        "",
        "With the value chosen on all trainings but one (the middle of the best ones: "
        f"{', '.join(map(str, chosen))}) and judged on the one left out: {left_out.text()}.",
        "",
        "Written by `python benchmarks/signal_phases.py FILE --page`.",
    ]


if __name__ == "__main__":
    main()
