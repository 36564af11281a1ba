"""Rates at which advice names the fault of a run, and at which it is wrong itself.

python benchmarks/advise.py [--quick] [--json FILE]
"""

import json
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from advise_faults import FAULTS
from advise_healthy import HEALTHY
from advise_pieces import FINE, TOO_HIGH
from advise_runs import Case, cases
from bars import Bar, Page, Table, arguments, publish
from support.virtual_runs import write_run
from wattloop.advise.advisor import advice_on
from wattloop.advise.rules.fp32 import FILLED
from wattloop.store.database import open_store

JUDGED = 101
"""Seed of the 80 runs that are judged."""
STEPS = Path(__file__).resolve().parent / "data" / "h200" / "train_steps.jsonl"
IDLE_W, LIMIT_W = 80.0, 700.0
"""Of the H200 of those steps."""
MORE = (102, 103)
"""Two more sets, to see how much of the figures is luck."""

TEXT = """
Each set has 40 runs with one known fault each and 40 healthy ones, chosen to look suspicious. They
are scripts of what virtual cards do ({models}), played on a virtual clock through the real meters,
journal, accounting and store, and then read back by `wattloop advise`; utilisations are means of a
second, as NVML's, in half of them and momentary in the other half. Loads wander, programs take
time to start and to end.

A fault is *named* when the rule of that name is among the advice. Advice is *false* when it is
given on a healthy run; advice on a faulty run that names anything but its fault is counted next to
it. Whether a power limit is too high is decided by the physical model of the card: a cap that saves
more than {high:.0%} of its energy for at most 5% more time. Limits are fine where no cap saves
more than {fine:.0%}; runs in between are not made.

The same runs with nothing but power readable (*power only*) show what the signals are worth: caps
cannot be told from power and are not guessed; small kernels draw so little that they look like
rest.

Rules and their thresholds were set on seeds 1 to 4 of the same generator (320 runs). Seed {judged}
is judged here, seeds {more} in addition; no threshold was changed once they had been run. So other
draws are judged, but not other kinds: what the generator does not make is not judged, and virtual
cards are simpler than real ones.
"""


class Verdict(NamedTuple):
    """A case, the rules that gave advice, and the time they took."""

    case: Case
    rules: tuple[str, ...]
    seconds: float

    @property
    def named(self) -> bool:
        return self.case.fault in self.rules

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(rule for rule in self.rules if rule != self.case.fault)


def main() -> int:
    args = arguments("how often advice is right").parse_args()
    seeds = (JUDGED,) if args.quick else (JUDGED, *MORE)
    count = 6 if args.quick else 40
    sets = {seed: judged(cases(seed, count, count)) for seed in seeds}
    blind = [
        replace(case, script=replace(case.script, signals=False))
        for case in cases(JUDGED, count, count)
    ]
    publish(_page(sets, judged(blind)), args)
    return 0


def judged(wanted: Iterable[Case]) -> list[Verdict]:
    """Write, read back and advise on every case."""
    found = []
    with tempfile.TemporaryDirectory() as folder, open_store(str(Path(folder) / "r.db")) as store:
        for number, case in enumerate(wanted):
            record = write_run(store, replace(case.script, run_id=f"run-{number}"))
            begin_s = time.perf_counter()
            advice = advice_on(store, record)
            taken_s = time.perf_counter() - begin_s
            found.append(Verdict(case, tuple(one.rule for one in advice), taken_s))
    return found


def _page(sets: dict[int, list[Verdict]], blind: list[Verdict]) -> Page:
    first = next(iter(sets.values()))
    every = [verdict for verdicts in sets.values() for verdict in verdicts]
    taken = sorted(v.seconds for v in every)
    bars = [
        Bar("faults_named", _named(first), "%", 90, at_least=True),
        Bar("false_advice", _false(first), "%", 5, note="healthy runs with any advice"),
        Bar("other_advice_on_faulty", _other(first), "%"),
        Bar("faults_named_all_sets", _named(every), "%"),
        Bar("false_advice_all_sets", _false(every), "%"),
        Bar("faults_named_by_power_only", _named(blind), "%"),
        Bar("false_advice_by_power_only", _false(blind), "%"),
        Bar("advising_median", 1e3 * taken[len(taken) // 2], "ms"),
    ]
    text = TEXT.format(
        models="H200, A100, V100, A40, RTX 6000",
        high=TOO_HIGH,
        fine=FINE,
        judged=JUDGED,
        more=" and ".join(map(str, MORE)),
    )
    tables = [
        Table("Faults, all sets", ("fault", "runs", "named", "also advised"), _faults(every)),
        Table("Healthy runs, all sets", ("kind", "runs", "with advice", "which"), _kinds(every)),
        Table("Faults, power only", ("fault", "runs", "named", "also advised"), _faults(blind)),
        _half_table(),
    ]
    return Page("advise", "Advice on runs with known faults", bars, tables, text)


def _named(verdicts: list[Verdict]) -> float:
    faulty = [v for v in verdicts if v.case.fault]
    return 100 * sum(v.named for v in faulty) / len(faulty)


def _false(verdicts: list[Verdict]) -> float:
    healthy = [v for v in verdicts if not v.case.fault]
    return 100 * sum(bool(v.rules) for v in healthy) / len(healthy)


def _other(verdicts: list[Verdict]) -> float:
    faulty = [v for v in verdicts if v.case.fault]
    return 100 * sum(bool(v.others) for v in faulty) / len(faulty)


def _faults(verdicts: list[Verdict]) -> list[list[object]]:
    rows: list[list[object]] = []
    for kind in FAULTS:
        of = [v for v in verdicts if v.case.fault == kind]
        others = sorted(rule for v in of for rule in v.others)
        rows.append([kind, str(len(of)), str(sum(v.named for v in of)), ", ".join(others)])
    return rows


def _kinds(verdicts: list[Verdict]) -> list[list[object]]:
    rows: list[list[object]] = []
    for kind in HEALTHY:
        of = [v for v in verdicts if not v.case.fault and v.case.kind == kind]
        which = sorted(rule for v in of for rule in v.rules)
        rows.append([kind, str(len(of)), str(sum(bool(v.rules) for v in of)), ", ".join(which)])
    return rows


def _half_table() -> Table:
    """Table of bf16's saving on a real GPU, where fp32 filled it as the rule requires, and where
    not.
    """
    steps: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    for line in STEPS.read_text().splitlines():
        row = json.loads(line)
        steps.setdefault((row["model"], row["batch"]), {})[row["precision"]] = row
    room_w = LIMIT_W - IDLE_W
    rows: list[list[object]] = []
    for what, filled in (("at least", True), ("less than", False)):
        pairs = [
            (of["fp32"], of["bf16"])
            for of in steps.values()
            if {"fp32", "bf16"} <= of.keys()
            and ((of["fp32"]["avg_power_w"] - IDLE_W) / room_w >= FILLED) is filled
        ]
        faster = sorted(a["step_s"] / b["step_s"] for a, b in pairs)
        saved = sorted(1 - b["energy_j_per_step"] / a["energy_j_per_step"] for a, b in pairs)
        tenth, middle = len(pairs) // 10, len(pairs) // 2
        rows.append(
            [
                f"{what} {FILLED:g} of the room",
                str(len(pairs)),
                f"{faster[middle]:.1f} times",
                f"{saved[tenth]:.0%}",
                f"{saved[middle]:.0%}",
            ]
        )
    return Table(
        "bf16 instead of fp32, measured on an H200",
        ("fp32 drew", "models and batches", "faster, median", "saved, lowest tenth", "median"),
        rows,
        "Energy of the GPU per training step (benchmarks/data/h200/train_steps.jsonl). The rule "
        "`fp32` speaks in the first row only, and says 50 to 67%.",
    )


if __name__ == "__main__":
    raise SystemExit(main())
