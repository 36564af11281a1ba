"""The trainings of `tune_h200.py`: without a search, by sm2, by race."""

import argparse
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from scenarios import lstm_household, resnet18_images, transformer_text
from scenarios.scenario import Scenario
from tune_h200_course import Clock, Course, Runner
from wattloop.tune.executors.torch.epochs import EnergySource, SessionEnergy
from wattloop.tune.executors.torch.executor import TorchExecutor
from wattloop.tune.executors.torch.training import Training
from wattloop.tune.search_problem import Quality
from wattloop.tune.segment import Segment, Status, Until
from wattloop.tune.strategies.sm2.sm2 import Sm2

__all__ = ["Clock", "scenario_runs"]

MAKERS: Mapping[str, Callable[..., Scenario]] = {
    "resnet18": resnet18_images.scenario,
    "lstm": lstm_household.scenario,
    "transformer": transformer_text.scenario,
    "transformer-adamw": transformer_text.scenario_adamw,
}


def scenario_runs(
    name: str, device: Any, chosen: argparse.Namespace, clock: Clock, found: Any
) -> None:
    """Run all trainings of one scenario that are not stored yet."""
    scenario = MAKERS[name](quick=chosen.quick)
    place = found.data["scenarios"].setdefault(name, {"trainings": []})
    place["facts"] = _facts(scenario)
    made = replace(scenario.training(device), stopping=scenario.stopping)
    energy = SessionEnergy("gpu" if device.type == "cuda" else None, name=f"tune_h200 {name}")
    try:
        if not chosen.quick:
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
    """Return the quality that all trainings without a search reach, up to a negligible
    difference.
    """
    bests = [t["best"] for t in trainings if t["kind"] == "vanilla" and t["finished"]]
    if not bests:
        return None
    if scenario.maximize:
        return float(min(bests) - scenario.tolerance / 2)
    return float(max(bests) + scenario.tolerance / 2)


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
    # Only race ends at a target; the others' cost up to it is read off their curves.
    aim = goal if kind == "race" else replace(goal, target=None)
    bench = TorchExecutor(made, aim, energy=energy, error=math.inf if chosen.quick else 0.02)
    runner = Runner(bench, energy, course, goal, clock)
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
        bench.release(candidate)
    return course


def _vanilla(runner: Runner, scenario: Scenario, seed: int) -> None:
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


def _sm2(runner: Runner, scenario: Scenario, seed: int, alpha: float, *, quick: bool) -> None:
    problem = scenario.problem(seed, alpha=alpha)
    sizes: dict[str, Any] = {"rates": 4, "epochs": 1, "last_epochs": 1} if quick else {}
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
        asdict(moment)
        | {"label": str(strategy.histories[moment.candidate].parameters["batch_size"])}
        for moment in strategy.epoch_records
    ]
    runner.course.sweeps = [
        {
            "label": str(course.parameters["batch_size"]),
            "rates": [asdict(point) for point in course.swept],
            "pick": None if course.pick is None else asdict(course.pick),
        }
        for course in strategy.histories.values()
        if course.swept
    ]


def _race(runner: Runner, scenario: Scenario, seed: int, target: float | None) -> None:
    """Race to the target, then continue with the winner by the rule that ends all others."""
    try:
        from wattloop.tune.strategies.race.race import Race
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
    """Run the first steps, in which libraries load and choose kernels; no trial pays for them."""
    goal = Quality(metric=scenario.metric, maximize=scenario.maximize)
    bench = TorchExecutor(made, goal, energy=energy, error=math.inf)
    for size in scenario.batch_sizes:
        segment = Segment(
            key=f"warm/{size}",
            candidate=f"warm {size}",
            parameters={"batch_size": size, "learning_rate": 1e-6},
            until=Until(epochs=min(1.0, 12 * size / made.data.samples), anywhere=True),
        )
        bench.run(segment)
        bench.release(segment.candidate)


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
