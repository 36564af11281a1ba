"""Training of a fixed amount of work, inside a search or not, and the cost around it.

    python benchmarks/tune_cost.py wattloop|optuna|nothing FOLDER --units N --epochs N --trials N

Prints one line of JSON. Run by tune_overhead.py, in a process of its own each time.
"""

import argparse
import hashlib
import json
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = bytes(1 << 20)


@dataclass
class Work:
    """A training of fixed work, which notes the time it takes itself.

    Half of an epoch is hashing, which leaves the interpreter lock as torch does, half is plain
    Python, which does not.
    """

    units: int
    epochs: int
    inside_s: float = 0.0
    cpu_s: float = 0.0
    epoch_cpu_s: list[float] = field(default_factory=list)

    def __call__(self, trial: Any) -> None:
        for epoch in trial.epochs(self.epochs):
            begin_s, cpu_s = time.perf_counter(), time.thread_time()
            for _ in range(self.units):
                hashlib.sha256(BLOCK).digest()
                total = 0
                for number in range(20_000):
                    total += number
            spent_s = time.thread_time() - cpu_s
            self.inside_s += time.perf_counter() - begin_s
            self.cpu_s += spent_s
            self.epoch_cpu_s.append(spent_s)
            trial.report(accuracy=1 - 1 / (2 + epoch))


class NoTrial:
    """Stand-in for a trial in a training without a search."""

    def epochs(self, count: int) -> Iterator[int]:
        return iter(range(count))

    def report(self, **metrics: float) -> None:
        pass


def with_nothing(work: Work, folder: Path, trials: int) -> None:
    for _ in range(trials):
        work(NoTrial())


def with_wattloop(work: Work, folder: Path, trials: int) -> None:
    from wattloop.tune.api import search

    search(
        work,
        space={"width": {"values": list(range(trials + 1))}},
        metric="accuracy",
        goal="maximize",
        strategy="grid",
        epochs=work.epochs,
        trials=trials,
        store=str(folder / "runs.db"),
    )


def with_optuna(work: Work, folder: Path, trials: int) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    class OptunaTrial(NoTrial):
        def __init__(self, trial: Any) -> None:
            self.trial, self.step, self.last = trial, 0, 0.0

        def report(self, **metrics: float) -> None:
            self.last = metrics["accuracy"]
            self.trial.report(self.last, self.step)
            self.trial.should_prune()
            self.step += 1

    def objective(trial: Any) -> float:
        trial.suggest_int("width", 0, trials)
        own = OptunaTrial(trial)
        work(own)
        return own.last

    study = optuna.create_study(
        storage=f"sqlite:///{folder / 'optuna.db'}", direction="maximize", study_name="cost"
    )
    study.optimize(objective, n_trials=trials)


WAYS: dict[str, Callable[[Work, Path, int], None]] = {
    "wattloop": with_wattloop,
    "optuna": with_optuna,
    "nothing": with_nothing,
}


def cpu_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--units", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--trials", type=int, required=True)
    args = parser.parse_args()
    way = WAYS[args.way]
    if args.way == "wattloop":  # a program's one-time import is not a cost of a trial
        import wattloop.tune.api  # noqa: F401 - to have it loaded
    if args.way == "optuna":
        import optuna  # noqa: F401 - to have it loaded
    work = Work(args.units, args.epochs)
    begin_s, before_s = time.perf_counter(), cpu_s(resource.RUSAGE_SELF)
    way(work, args.folder, args.trials)
    wall_s = time.perf_counter() - begin_s
    own_s = cpu_s(resource.RUSAGE_SELF) - before_s - work.cpu_s
    print(
        json.dumps(
            {
                "around_wall_s": (wall_s - work.inside_s) / args.trials,
                "around_cpu_s": own_s / args.trials,
                "beside_cpu_s": cpu_s(resource.RUSAGE_CHILDREN) / args.trials,
                "inside_s": work.inside_s / args.trials,
                "epoch_cpu_s": sorted(work.epoch_cpu_s)[len(work.epoch_cpu_s) // 2],
            }
        )
    )


if __name__ == "__main__":
    main()
