"""The trainings of `tune_h200.py`: without a search, by sm2, by race; and ways to batches."""

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from scenarios import lstm_household, resnet18_images, transformer_text
from scenarios.scenario import Scenario
from wattloop.core.records import Scope
from wattloop.tune.problem import Quality
from wattloop.tune.progress import Progress, Status
from wattloop.tune.segment import Segment, Until
from wattloop.tune.strategies.sm2 import Sm2
from wattloop.tune.strategy import WAIT, Strategy
from wattloop.tune.torch.bench import TorchBench
from wattloop.tune.torch.energy import EnergySource, SessionEnergy
from wattloop.tune.torch.training import Training

__all__ = ["Clock", "loader_rows", "scenario_runs"]

MAKERS: Mapping[str, Callable[..., Scenario]] = {
    "resnet18": resnet18_images.scenario,
    "lstm": lstm_household.scenario,
    "transformer": transformer_text.scenario,
}


class Clock:
    """How long may be gone on."""

    def __init__(self, seconds: float | None) -> None:
        self._end_s = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """Whether no more is to be begun."""
        return time.monotonic() >= self._end_s


def scenario_runs(
    name: str, device: Any, chosen: argparse.Namespace, clock: Clock, found: Any
) -> None:
    """All trainings of one scenario that are not there yet."""
    scenario = MAKERS[name](quick=chosen.quick)
    place = found.data["scenarios"].setdefault(name, {"trainings": []})
    place["facts"] = _facts(scenario)
    made = replace(scenario.training(device), stopping=scenario.stopping)
    energy = SessionEnergy(Scope.GPU if device.type == "cuda" else None, name=f"tune_h200 {name}")
    try:
        _warm_up(made, scenario, energy)
        for kind, seed in _planned(chosen):
            done = any(t["kind"] == kind and t["seed"] == seed for t in place["trainings"])
            if done or clock.over:
                continue
            target = _target(scenario, place["trainings"])
            course = _course(kind, scenario, made, energy, seed, target, clock, chosen)
            place["trainings"].append(course.to_dict())
            place["target"] = target
            found.write()
            print(f"{name}: {course.said}", file=sys.stderr, flush=True)
    finally:
        energy.close()


def _planned(chosen: argparse.Namespace) -> list[tuple[str, int]]:
    kinds = [("vanilla", seed) for seed in range(chosen.seeds)]
    kinds += [("sm2-0.75", 0), ("race", 0), ("sm2-1", 0)]
    return [pair for pair in kinds if not chosen.only or pair[0] in chosen.only]


def _target(scenario: Scenario, trainings: list[dict[str, Any]]) -> float | None:
    """What trainings without a search reach, each of them, but for a difference of no account."""
    bests = [t["best"] for t in trainings if t["kind"] == "vanilla" and t["finished"]]
    if not bests:
        return None
    if scenario.maximize:
        return float(min(bests) - scenario.tolerance / 2)
    return float(max(bests) + scenario.tolerance / 2)


@dataclass
class Course:
    """One training or search from beginning to end.

    Attributes:
        kind, seed: which.
        energy_j, uncertainty_j, time_s: of all of it, searching included.
        best, quality: of the configuration that was chosen, and at its end.
        finished: whether it came to its end by the rule.
        segments: what was asked for and what it took.
        points: (energy_j so far, candidate, epoch, quality) at the end of every kept epoch.
    """

    kind: str
    seed: int
    energy_j: float | None = None
    uncertainty_j: float = 0.0
    time_s: float = 0.0
    provenance: str = ""
    best: float | None = None
    quality: float | None = None
    epochs: float = 0.0
    finished: bool = False
    candidate: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    learning_rate: float | None = None
    reached_j: float | None = None
    eval_energy_j: float = 0.0
    message: str = ""
    segments: list[dict[str, Any]] = field(default_factory=list)
    points: list[tuple[float | None, str, float, float | None]] = field(default_factory=list)
    moments: list[dict[str, Any]] = field(default_factory=list)
    sweeps: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        return asdict(self)

    @property
    def said(self) -> str:
        """One line for whoever waits."""
        spent = "?" if self.energy_j is None else f"{self.energy_j / 3600:.2f} Wh"
        best = "none" if self.best is None else f"{self.best:.4f}"
        rate = "" if self.learning_rate is None else f" at {self.learning_rate:.3g}"
        return (
            f"{self.kind} seed {self.seed}: {spent}, {self.time_s:.0f} s, best {best} after "
            f"{self.epochs:g} epochs of {self.parameters.get('batch_size')}{rate}"
            f"{'' if self.finished else ' (UNFINISHED)'} {self.message}"
        )


def _course(
    kind: str,
    scenario: Scenario,
    made: Training,
    energy: EnergySource,
    seed: int,
    target: float | None,
    clock: Clock,
    chosen: argparse.Namespace,
) -> Course:
    course = Course(kind, seed)
    goal = Quality(metric=scenario.metric, maximize=scenario.maximize, target=target)
    # Only race ends at a target; what the others took to it is read off their curves.
    aim = goal if kind == "race" else replace(goal, target=None)
    bench = TorchBench(made, aim, energy=energy, error=math.inf if chosen.quick else 0.02)
    runner = _Runner(bench, energy, course, goal, clock)
    begin_s = energy.now_s()
    try:
        if kind == "vanilla":
            _vanilla(runner, scenario, seed)
        elif kind == "race":
            _race(runner, scenario, seed, target)
        else:
            _sm2(runner, scenario, seed, float(kind.partition("-")[2]), quick=chosen.quick)
    except Exception as error:  # noqa: BLE001 - the other trainings are still worth running
        course.message = f"{type(error).__name__}: {error}"
    end_s = energy.now_s()
    energy.settle(end_s)
    used = energy.between(begin_s, end_s)
    course.energy_j, course.uncertainty_j = used.energy_j, used.uncertainty_j
    course.provenance, course.time_s = used.provenance, end_s - begin_s
    for candidate in list(runner.seen):
        bench.let_go(candidate)
    return course


class _Runner:
    """Runs segments and notes what they took."""

    def __init__(
        self, bench: TorchBench, energy: EnergySource, course: Course, goal: Quality, clock: Clock
    ) -> None:
        self.bench, self.course, self.clock = bench, course, clock
        self.seen: dict[str, float] = {}
        self.last: dict[str, Progress] = {}
        self._energy, self._goal = energy, goal
        self._begin_s = energy.now_s()

    def run(self, segment: Segment) -> Progress:
        begin_s = self._energy.now_s()
        progress = self.bench.run(segment)
        before_j = self._energy.between(self._begin_s, begin_s).energy_j
        own_j = self.seen.get(segment.candidate, 0.0)
        for point in progress.curve:
            known = before_j is not None and point.energy_j is not None
            so_far_j = (before_j or 0.0) + (point.energy_j or 0.0) - own_j if known else None
            if segment.keep:
                self.course.points.append((so_far_j, segment.candidate, point.epoch, point.quality))
                if self.course.reached_j is None and self._goal.reached(point.quality):
                    self.course.reached_j = so_far_j
        self.seen[segment.candidate] = own_j + (progress.energy_j or 0.0)
        if segment.keep and segment.rates is None:
            self.last[segment.candidate] = progress
        self.course.eval_energy_j += progress.metrics.get("eval_energy_j", 0.0)
        self.course.segments.append(
            {
                "key": segment.key,
                "candidate": segment.candidate,
                "batch_size": segment.parameters.get("batch_size"),
                "rate": segment.learning_rate,
                "keep": segment.keep,
                "sweep": segment.rates is not None,
                "status": progress.status.value,
                "time_s": progress.time_s,
                "energy_j": progress.energy_j,
                "uncertainty_j": progress.uncertainty_j,
                "epochs": progress.epochs,
                "quality": progress.quality,
                "epoch_energy_j": progress.metrics.get("epoch_energy_j"),
                "epoch_uncertainty_j": progress.metrics.get("epoch_uncertainty_j"),
                "message": progress.message,
            }
        )
        return progress

    def search(self, strategy: Strategy) -> bool:
        """Run it to its end; whether it came there in time."""
        while (segment := strategy.ask()) is not None:
            if segment is WAIT:
                raise RuntimeError("the strategy waits for nothing")
            if self.clock.over:
                return False
            strategy.tell(segment, self.run(segment))
            alive = strategy.alive()
            for candidate in list(self.seen):
                if alive is not None and candidate not in alive:
                    self.bench.let_go(candidate)
        return True

    def chosen(self, candidate: str, parameters: Mapping[str, Any], rate: float | None) -> None:
        course, last = self.course, self.last.get(candidate)
        course.candidate, course.parameters, course.learning_rate = (
            candidate,
            dict(parameters),
            rate,
        )
        if last is not None:
            course.best, course.quality, course.epochs = last.best, last.quality, last.epochs


def _vanilla(runner: _Runner, scenario: Scenario, seed: int) -> None:
    parameters = {"batch_size": scenario.batch_size, "learning_rate": scenario.rate}
    status = Status.PAUSED
    epochs = 0
    while status.alive and not runner.clock.over:
        epochs += 5
        segment = Segment(
            key=f"vanilla/{epochs}",
            candidate="vanilla",
            parameters=parameters,
            until=Until(epochs=epochs, at_target=False),
            seed=seed,
        )
        status = runner.run(segment).status
    runner.course.finished = status is Status.ENDED
    runner.chosen("vanilla", parameters, scenario.rate)


def _sm2(runner: _Runner, scenario: Scenario, seed: int, alpha: float, *, quick: bool) -> None:
    problem = scenario.problem(seed, alpha=alpha)
    sizes: dict[str, Any] = {"rates": 6, "epochs": 1, "last_epochs": 1} if quick else {}
    stopping = scenario.stopping
    strategy = Sm2(
        problem,
        alpha=alpha,
        patience=stopping.patience,
        least_gain=stopping.least_gain,
        most_epochs=stopping.most_epochs,
        **sizes,
    )
    runner.course.finished = runner.search(strategy)
    best = strategy.best()
    if best is not None:
        runner.chosen(best.candidate, best.parameters, best.learning_rate)
    runner.course.moments = [
        asdict(moment) | {"label": str(strategy.courses[moment.candidate].parameters["batch_size"])}
        for moment in strategy.moments
    ]
    runner.course.sweeps = [
        {
            "label": str(course.parameters["batch_size"]),
            "rates": [asdict(point) for point in course.swept],
            "pick": None if course.pick is None else asdict(course.pick),
        }
        for course in strategy.courses.values()
        if course.swept
    ]


def _race(runner: _Runner, scenario: Scenario, seed: int, target: float | None) -> None:
    """Race to the target, then the winner goes on by the rule that all others end by."""
    try:
        from wattloop.tune.strategies.race import Race
    except ImportError as error:
        runner.course.message = f"race is not there: {error}"
        return
    if target is None:
        runner.course.message = "no target: no training without a search has ended"
        return
    strategy = Race(scenario.problem(seed, target))
    in_time = runner.search(strategy)
    best = strategy.best()
    if best is None:
        runner.course.message = "no configuration reached the target"
        return
    status = runner.last[best.candidate].status
    while in_time and status.alive and not runner.clock.over:
        epochs = math.floor(runner.last[best.candidate].epochs) + 5
        segment = Segment(
            key=f"{best.candidate}/on/{epochs}",
            candidate=best.candidate,
            parameters=best.parameters,
            until=Until(epochs=epochs, at_target=False),
            seed=seed,
        )
        status = runner.run(segment).status
    runner.course.finished = in_time and not status.alive
    runner.chosen(best.candidate, best.parameters, best.learning_rate)


def _warm_up(made: Training, scenario: Scenario, energy: EnergySource) -> None:
    """Libraries load and choose their kernels in the first steps: nobody is charged for that."""
    goal = Quality(metric=scenario.metric, maximize=scenario.maximize)
    bench = TorchBench(made, goal, energy=energy, error=math.inf)
    for size in scenario.batch_sizes:
        segment = Segment(
            key=f"warm/{size}",
            candidate=f"warm {size}",
            parameters={"batch_size": size, "learning_rate": 1e-6},
            until=Until(epochs=min(1.0, 12 * size / made.data.samples), anywhere=True),
        )
        bench.run(segment)
        bench.let_go(segment.candidate)


def _facts(scenario: Scenario) -> dict[str, Any]:
    return {
        "title": scenario.title,
        "metric": scenario.metric,
        "maximize": scenario.maximize,
        "batch_sizes": list(scenario.batch_sizes),
        "batch_size": scenario.batch_size,
        "rate": scenario.rate,
        "low": scenario.low,
        "high": scenario.high,
        "optimizer": scenario.optimizer,
        "tolerance": scenario.tolerance,
        "patience": scenario.stopping.patience,
        "least_gain": scenario.stopping.least_gain,
        "most_epochs": scenario.stopping.most_epochs,
        "data": scenario.facts,
    }


def loader_rows(device: Any, *, quick: bool = False) -> list[dict[str, Any]]:
    """Time and energy of an epoch of batches alone: a DataLoader and flexible batches."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from wattloop.tune.torch.flexible_batches import FlexibleBatches

    count = 1_000 if quick else 50_000
    cuda = device.type == "cuda"
    pictures = torch.randn(count, 3, 32, 32).to(torch.float16)
    labels = torch.randint(10, (count,))
    bytes_all = pictures.numel() * 2
    resident = FlexibleBatches((pictures, labels), unit=32, device=device)
    queued = FlexibleBatches(
        (pictures, labels), unit=32, device=device, budget_bytes=bytes_all // 4
    )

    def loaded(size: int, workers: int) -> Any:
        loader = DataLoader(
            TensorDataset(pictures, labels), size, shuffle=True, num_workers=workers,
            pin_memory=cuda, persistent_workers=False,
        )  # fmt: skip
        return ([part.to(device, non_blocking=True) for part in batch] for batch in loader)

    ways: list[tuple[str, Callable[[int], Any]]] = [
        ("DataLoader", lambda size: loaded(size, 0)),
        ("flexible batches", resident.epoch),
        ("flexible batches, queue of a quarter", queued.epoch),
    ]
    if not quick:
        ways.insert(1, ("DataLoader, 8 workers", lambda size: loaded(size, 8)))
    energy = SessionEnergy(Scope.GPU if cuda else None, name="tune_h200 loader")
    rows = []
    try:
        for size in (128, 1024):
            for name, batches in ways:
                rows.append(_timed(name, size, batches, energy, device, count, quick=quick))
    finally:
        energy.close()
    return rows


def _timed(
    name: str, size: int, batches: Any, energy: Any, device: Any, count: int, *, quick: bool
) -> dict[str, Any]:
    """Whole epochs for two seconds or more; each batch is used for one small operation."""
    import torch

    def epoch() -> Any:
        total = torch.zeros((), device=device)
        for pictures, _ in batches(size):
            total += pictures[:, :, 0, 0].float().sum()
        return total.item()

    if not quick:
        epoch()
    begin_s, epochs = energy.now_s(), 0
    while energy.now_s() - begin_s < (0.0 if quick else 2.0) or not epochs:
        epoch()
        epochs += 1
    end_s = energy.now_s()
    energy.settle(end_s)
    used_j = energy.between(begin_s, end_s).energy_j
    waits = None
    if device.type == "cuda" and "flexible" in name:
        waits = _waits(batches, size)
    return {
        "way": name,
        "batch_size": size,
        "epoch_s": (end_s - begin_s) / epochs,
        "epoch_j": None if used_j is None else used_j / epochs,
        "samples": count,
        "waits_for_device": waits,
    }


def _waits(batches: Any, size: int) -> bool:
    """Whether an epoch makes the host wait for the device."""
    import torch

    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in batches(size):
            pass
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False
