"""Stores with many trials, as after searches, for benchmarks and tests of size.

A formula answers the strategy's requests, and one transaction writes them; every row equals that of
`SearchRecord`.
"""

import math
from dataclasses import asdict
from typing import Any

import numpy as np
from sqlalchemy import insert

from wattloop.core.text import json_text
from wattloop.store.database import Store
from wattloop.store.experiments import TrialRecord, set_experiment_status
from wattloop.store.schema import trials as trials_table
from wattloop.tune.search_setup import fingerprint
from wattloop.tune.search_store import open_search
from wattloop.tune.segment import EpochPoint, Progress, Segment, Status
from wattloop.tune.spec import SearchSpec, spec_from
from wattloop.tune.strategies import strategy_for

__all__ = ["SPEC", "fill", "many_trials_spec"]

SPEC: dict[str, Any] = {
    "name": "ten thousand",
    "command": ["python", "train.py", "${args}"],
    "metric": {"name": "accuracy", "goal": "maximize", "target": 0.8},
    "parameters": {
        "learning_rate": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-1},
        "batch_size": {"values": [16, 32, 64, 128, 256]},
        "optimizer": {"values": ["sgd", "adam", "rmsprop"]},
        "width": {"distribution": "int_uniform", "min": 16, "max": 512},
        "dropout": {"min": 0.0, "max": 0.6},
        "precision": {"values": ["fp32", "bf16"]},
    },
    "default": {
        "learning_rate": 1e-3,
        "batch_size": 64,
        "optimizer": "adam",
        "width": 128,
        "dropout": 0.1,
        "precision": "fp32",
    },
    "limits": {"epochs": 5, "trials": 20_000},
    "seed": 1,
}


def many_trials_spec(strategy: str = "random", **limits: float) -> SearchSpec:
    """Return the search whose trials are made; none of them runs."""
    return spec_from(
        {**SPEC, "strategy": {"name": strategy}, "limits": {**SPEC["limits"], **limits}}
    )


def fill(store: Store, spec: SearchSpec, count: int, seed: int = 0) -> str:
    """Insert a search that was interrupted after `count` trials; return its identifier."""
    problem = spec.problem()
    facts = {
        "quality": asdict(problem.quality),
        "default": dict(problem.default),
        "objective": problem.objective.to_dict(),
        "scope": "gpu",
    }
    experiment, _ = open_search(
        store, spec.to_dict(), fingerprint(spec), name=spec.name, facts=facts
    )
    strategy = strategy_for(spec, problem)
    rng = np.random.default_rng(seed)
    rows = []
    pasts: dict[str, Progress] = {}
    for number in range(count):
        segment = strategy.ask()
        assert isinstance(segment, Segment), f"the search is over after {number} trials"
        progress = _answer(segment, pasts.get(segment.candidate), rng)
        strategy.tell(segment, progress)
        pasts[segment.candidate] = progress
        rows.append(_row(experiment.experiment_id, segment, progress, number))
    with store.writing() as connection:
        connection.execute(insert(trials_table), rows)
    best = strategy.best()
    facts = {"best": None if best is None else asdict(best), "elapsed_s": 100.0 * count}
    set_experiment_status(store, experiment.experiment_id, "interrupted", facts)
    return experiment.experiment_id


def _answer(segment: Segment, past: Progress | None, rng: np.random.Generator) -> Progress:
    """Return quality that grows with epochs, and time and energy that grow with a fictitious
    model.
    """
    wanted = segment.parameters
    power_w = 120 + 0.3 * float(wanted["width"] or 0)
    epoch_s = 20 + 0.1 * float(wanted["width"] or 0) / math.sqrt(float(wanted["batch_size"] or 1))
    off = abs(math.log10(float(wanted["learning_rate"] or 1)) + 2.5) / 2.5
    begun = 0.0 if past is None else past.epochs
    ceiling = 0.95 - 0.3 * off - 0.1 * float(wanted["dropout"] or 0) + rng.normal(0, 0.01)
    most = segment.until.epochs or 5.0
    if segment.until.energy_j is not None:
        most = min(most, begun + max(1.0, segment.until.energy_j // (power_w * epoch_s)))
    curve = []
    for epoch in range(int(begun) + 1, int(most) + 1):
        curve.append(
            EpochPoint(
                epoch=float(epoch),
                quality=ceiling * (1 - math.exp(-0.7 * epoch)),
                time_s=epoch * epoch_s,
                energy_j=epoch * epoch_s * power_w,
            )
        )
    trained = len(curve)
    quality = curve[-1].quality if curve else None
    if rng.random() < 0.03:
        return Progress(status=Status.DIVERGED, time_s=epoch_s, energy_j=epoch_s * power_w)
    return Progress(
        status=Status.PAUSED,
        time_s=trained * epoch_s,
        energy_j=trained * epoch_s * power_w,
        uncertainty_j=0.01 * trained * epoch_s * power_w,
        epochs=most,
        quality=quality,
        best=quality,
        curve=tuple(curve),
        metrics={"loss": float(1 - (quality or 0)), "lr": float(wanted["learning_rate"] or 0)},
        provenance="simulated",
    )


def _row(search_id: str, segment: Segment, progress: Progress, number: int) -> dict[str, Any]:
    asked, told = 2 * number, 2 * number + 1
    record = TrialRecord(
        key=segment.key,
        number=number,
        status=progress.status.value,
        settings={"segment": segment.to_dict(), "asked": asked},
        outcome={**progress.to_dict(), "told": told, "elapsed_s": 100.0 * number},
    )
    return {
        "experiment_id": search_id,
        "key": record.key,
        "number": number,
        "status": record.status,
        "run_id": None,
        "body": json_text(record.to_dict()),
    }
