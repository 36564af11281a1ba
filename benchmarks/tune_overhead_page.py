"""The page of tune_overhead.py: an explanation of its figures, and its tables."""

import argparse
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from bars import Bar, Page, Table

EPOCHS = 20
TRIAL_S = 60.0
READ_BAR_S = 2.0
REPEATS = 5

TEXT = """
**Around a trial.** A training of fixed work ({epochs} epochs, about {seconds:.0f} s in all; half of
it hashing outside the interpreter lock, half plain Python) is run {pairs} times as it is, {pairs}
times by `wattloop.tune.search` (grid, one configuration, SQLite store, a powercap counter read at
10 Hz) and {pairs} times by Optuna (RDB storage in SQLite, a report and `should_prune` per epoch,
no energy), in turns, each in a new process. Imports are not counted, opening and making the store
is.

- `trial_cpu`: processor time of the whole process less that of the training's own thread, and of
  processes around it: strategy, search, store, meters. In per cent of a trial of {trial:g} s; it is
  read from the kernel's clocks, so load on the machine hardly blurs it.
- `trial_wall`: time from the call of `search` to its return, less the time inside epochs: what a
  person waits longer. It contains waiting for the disk and for other programs of the machine.
- `epoch_cpu`: processor time of an epoch inside the search against outside of it, for the part
  that only shows as slower training. Runs without a tuner differ by {spread:.1f}% among each other.

**Ten thousand trials.** A random search over six parameters with five epochs each, written as a
search writes it ({size:.0f} MB in SQLite), interrupted. Each row is a whole process, from its start
with all imports to its exit; the shortest of {repeats}. The bar is one of waiting; `_cpu` is the
processor time of the same process, which other programs of the machine hardly change and which the
same bar is held against. Nothing is kept between processes but the store and Python's own
bytecode. `resume` ends where the next training would
begin: the strategy has been told of every trial. (`show` and `best` do the same for a search that
was killed, and then take as long as that.) Optuna's rows are the same trials in its
RDB storage, with `study.get_trials()`, `study.best_trial` and `study.ask()` of a new process.
"""


class Cost(NamedTuple):
    """Seconds per trial."""

    around_wall_s: float
    around_cpu_s: float
    beside_cpu_s: float
    inside_s: float
    epoch_cpu_s: float


class Read(NamedTuple):
    """One process: elapsed and processor time."""

    wall_s: float
    cpu_s: float
    error: str = ""


def page_of(
    costs: dict[str, list[Cost]],
    reads: dict[str, dict[str, Read]],
    args: argparse.Namespace,
    size_mb: float,
) -> Page:
    plain = [cost.epoch_cpu_s for cost in costs["nothing"]]
    spread = 100 * (max(plain) - min(plain)) / median(plain)
    text = TEXT.format(
        epochs=EPOCHS,
        seconds=args.seconds,
        pairs=args.pairs,
        trial=TRIAL_S,
        spread=spread,
        size=size_mb,
        repeats=REPEATS,
    )
    return Page(
        name="tune_overhead",
        title="What the tuner itself costs",
        bars=[*_cost_bars(costs), *_read_bars(reads, args.trials)],
        tables=[_cost_table(costs), _read_table(reads)],
        text=text,
        packages=("wattloop", "optuna", "SQLAlchemy"),
    )


def _cost_bars(costs: dict[str, list[Cost]]) -> list[Bar]:
    def share(way: str, seconds: str) -> float | None:
        if way not in costs:
            return None
        if seconds == "cpu":
            spent = [cost.around_cpu_s + cost.beside_cpu_s for cost in costs[way]]
        else:
            spent = [cost.around_wall_s for cost in costs[way]]
        return 100 * median(spent) / TRIAL_S

    def slower(way: str) -> float | None:
        if way not in costs:
            return None
        plain = median(cost.epoch_cpu_s for cost in costs["nothing"])
        return 100 * (median(cost.epoch_cpu_s for cost in costs[way]) / plain - 1)

    others = [way for way in costs if way not in ("nothing", "wattloop")]
    return [
        Bar("trial_cpu", share("wattloop", "cpu"), "%", 1.0, {w: share(w, "cpu") for w in others}),
        Bar(
            "trial_wall", share("wattloop", "wall"), "%", 1.0, {w: share(w, "wall") for w in others}
        ),
        Bar("epoch_cpu", slower("wattloop"), "%", None, {w: slower(w) for w in others}),
    ]


def _read_bars(reads: dict[str, dict[str, Read]], trials: int) -> list[Bar]:
    bars = []
    for name, read in reads["wattloop"].items():
        rival = reads.get("optuna", {}).get(name)
        for ending, of in (("", attrgetter("wall_s")), ("_cpu", attrgetter("cpu_s"))):
            bars.append(
                Bar(
                    f"{name}_{trials}{ending}",
                    None if read.error else of(read),
                    "s",
                    READ_BAR_S,
                    {} if rival is None else {"optuna": rival.error or of(rival)},
                    note=read.error,
                )
            )
    return bars


def _cost_table(costs: dict[str, list[Cost]]) -> Table:
    rows = [
        [
            way,
            1e3 * median(c.around_wall_s for c in found),
            1e3 * median(c.around_cpu_s for c in found),
            1e3 * median(c.beside_cpu_s for c in found),
            median(c.inside_s for c in found),
            1e3 * median(c.epoch_cpu_s for c in found),
        ]
        for way, found in costs.items()
    ]
    return Table(
        "Around a trial",
        ["", "waiting, ms", "CPU in the process, ms", "CPU around, ms", "training, s", "epoch, ms"],
        rows,
    )


def _read_table(reads: dict[str, dict[str, Read]]) -> Table:
    rows = [
        [who, name, read.wall_s, read.cpu_s, read.error]
        for who, found in reads.items()
        for name, read in found.items()
    ]
    return Table("Reading the store", ["", "what", "wall, s", "CPU, s", "fault"], rows)
