"""Promises of the pruner and callback for users of Optuna, on real studies."""

import importlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.database import Store
from wattloop.store.journal_import import import_orphaned
from wattloop.store.runs import RunFilter, list_runs
from wattloop.tune.callbacks.optuna import EnergyCallback, measured

optuna = pytest.importorskip("optuna", reason="pruners are Optuna's: pip install wattloop[tune]")
EnergyBudgetPruner = importlib.import_module("wattloop.tune.callbacks.optuna").EnergyBudgetPruner


def study_of(**options: Any) -> Any:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.RandomSampler(seed=1)
    return optuna.create_study(direction="maximize", sampler=sampler, **options)


def learning(steps: int, pause_s: float = 0.01) -> Callable[[Any], float]:
    """A training that gets as good as its parameter, step by step."""

    def objective(trial: Any) -> float:
        x = trial.suggest_float("x", 0, 1)
        value = 0.0
        for step in range(steps):
            time.sleep(pause_s)
            value = x * (step + 1) / steps
            trial.report(value, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    return objective


def with_options(settings: Settings) -> dict[str, Any]:
    return {"store": settings.store, "meters": settings.meters, "interval_s": settings.interval_s}


def test_every_trial_is_measured(settings: Settings, store: Store) -> None:
    """Joules, seconds, watts and provenance are with the trial, and the run is in the store."""
    study = study_of(pruner=optuna.pruners.NopPruner())
    study.optimize(measured(learning(5, 0.04), **with_options(settings)), n_trials=2)
    for trial in study.trials:
        attrs = trial.user_attrs
        assert attrs["provenance"] == "measured" and attrs["time_s"] >= 0.2
        off_j = abs(attrs["energy_j"] - 50 * attrs["time_s"])
        assert off_j <= attrs["uncertainty_j"] + 0.5 * 50 * attrs["time_s"]
        by_step = list(attrs["energy_j_by_step"].values())
        assert by_step == sorted(by_step) and len(by_step) == 5
    import_orphaned(store, finalize_orphaned_run)
    runs = {run.run_id: run for run in list_runs(store, RunFilter())}
    assert {t.user_attrs["run_id"] for t in study.trials} == set(runs)


def test_a_failing_trial_is_measured_too(settings: Settings) -> None:
    """The energy that it used counts."""

    def fails(trial: Any) -> float:
        time.sleep(0.1)
        raise ValueError("no luck")

    study = study_of()
    study.optimize(measured(fails, **with_options(settings)), n_trials=1, catch=(ValueError,))
    assert study.trials[0].state.name == "FAIL"
    assert study.trials[0].user_attrs["energy_j"] > 0


def test_a_trial_is_pruned_at_its_budget(settings: Settings) -> None:
    """50 W for 0.1 s are 5 J; the training would continue for 40 steps of 20 ms."""
    study = study_of(pruner=EnergyBudgetPruner(5.0, percentile=None))
    study.optimize(measured(learning(40, 0.02), **with_options(settings)), n_trials=1)
    trial = study.trials[0]
    assert trial.state.name == "PRUNED"
    # by the readings of its steps: the whole window may say less where the driver was late
    assert max(trial.user_attrs["energy_j_by_step"].values()) >= 5.0
    assert len(trial.intermediate_values) < 40


def told(study: Any, energies: list[float], values: list[float]) -> Any:
    """A trial with given joules and values, as `measured` would have written them."""
    trial = study.ask()
    trial.set_user_attr("energy_j_by_step", {str(s): e for s, e in enumerate(energies)})
    for step, value in enumerate(values):
        trial.report(value, step)
    return trial


def test_joules_are_compared_not_steps() -> None:
    """Behind at the same step but ahead at the same energy, it continues, and the reverse."""
    study = study_of(pruner=EnergyBudgetPruner(percentile=50, startup=3))
    for _ in range(3):
        dear = told(study, [100.0, 200.0, 300.0], [0.5, 0.6, 0.7])
        study.tell(dear, 0.7)
    cheap = told(study, [10.0, 20.0], [0.2, 0.3])
    assert not cheap.should_prune()  # no trial has reached 20 J and a value yet
    ahead = told(study, [10.0, 110.0], [0.3, 0.55])
    assert not ahead.should_prune()
    behind = told(study, [100.0, 200.0], [0.55, 0.58])
    assert behind.should_prune()


def test_it_waits_for_others_and_for_its_grace() -> None:
    """With fewer than `startup` trials to compare, or less energy than `grace`, no trial is
    pruned.
    """
    for pruner, pruned in (
        (EnergyBudgetPruner(startup=3), False),
        (EnergyBudgetPruner(startup=2), True),
        (EnergyBudgetPruner(startup=2, grace="1 kJ"), False),
    ):
        study = study_of(pruner=pruner)
        for _ in range(2):
            study.tell(told(study, [100.0], [0.9]), 0.9)
        assert told(study, [100.0], [0.1]).should_prune() is pruned


def test_without_energy_it_says_so_once() -> None:
    """An objective that is not measured is never pruned, and the user learns why."""
    study = study_of(pruner=EnergyBudgetPruner("1 J"))
    trial = study.ask()
    trial.report(0.5, 0)
    with pytest.warns(UserWarning, match=r"use measured\(objective\)"):
        assert not trial.should_prune()
    assert not trial.should_prune()


def test_a_study_stops_at_its_budget() -> None:
    """The callback adds up what its trials have used."""
    study = study_of()

    def objective(trial: Any) -> float:
        trial.set_user_attr("energy_j", 400.0)
        return float(trial.suggest_float("x", 0, 1))

    callback = EnergyCallback("1 kJ")
    study.optimize(objective, n_trials=50, callbacks=[callback])
    assert len(study.trials) == 3 and callback.used_j(study) == 1_200.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: EnergyBudgetPruner(percentile=None), "give a budget, a percentile, or both"),
        (lambda: EnergyBudgetPruner("lots"), "'lots' is not an energy"),
        (lambda: EnergyBudgetPruner(0), "budget is 0; give an energy above 0"),
        (lambda: EnergyBudgetPruner(percentile=100), "percentile is 100"),
        (lambda: EnergyCallback(-5), "budget is -5"),
    ],
)
def test_wrong_numbers_are_refused(make: Callable[[], Any], said: str) -> None:
    """With what would be right."""
    with pytest.raises(ConfigError, match=said):
        make()
