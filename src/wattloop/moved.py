"""Import paths that earlier releases documented, and where their names are now.

A program that imports a documented name from its earlier module gets the same object and a
`DeprecationWarning`. `tests/test_moved.py` holds the list.
"""

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED: Mapping[str, Mapping[str, str]] = {
    "wattloop.accounting.metrics": {
        "Point": "wattloop.accounting.energy_delay.Point",
        "gain_minus_loss_pct": "wattloop.accounting.energy_delay.gain_minus_loss_pct",
        "objective": "wattloop.accounting.energy_delay.objective",
    },
    "wattloop.analyze.metrics": {
        "Point": "wattloop.accounting.energy_delay.Point",
        "gain_minus_loss_pct": "wattloop.accounting.energy_delay.gain_minus_loss_pct",
        "objective": "wattloop.accounting.energy_delay.objective",
    },
    "wattloop.analyze.reading": {
        "read_csv": "wattloop.analyze.table_reader.read_csv",
        "table_of": "wattloop.analyze.table_reader.table_of",
    },
    "wattloop.characterize.cap_callback": {
        "CapTuner": "wattloop.cap.callback.CapTuner",
    },
    "wattloop.characterize.gains": {
        "EDP": "wattloop.sweep.result.EDP",
    },
    "wattloop.characterize.sweep_result": {
        "result_of": "wattloop.sweep.result.result_of",
    },
    "wattloop.control.hold": {
        "applied": "wattloop.control.session.applied",
        "hold": "wattloop.control.session.lever_session",
    },
    "wattloop.measure.meter": {
        "Context": "wattloop.meters.base.Context",
        "Meter": "wattloop.meters.base.Meter",
        "Reading": "wattloop.meters.base.Reading",
    },
    "wattloop.predict.calibrate.at_rest": {
        "check_at_rest": "wattloop.predict.calibrate.machine.check_at_rest",
    },
    "wattloop.predict.calibrate.sample_file": {
        "SampleFile": "wattloop.predict.calibrate.collection.SampleFile",
    },
    "wattloop.predict.calibrate.session": {
        "collect": "wattloop.predict.calibrate.collection.collect",
    },
    "wattloop.predict.node_parts": {
        "typical_node": "wattloop.predict.node.typical_node",
    },
    "wattloop.report.figures.power": {
        "components_figure": "wattloop.report.figures.run.components_figure",
    },
    "wattloop.schedule.campaigns.cell": {
        "PolicyChoice": "wattloop.schedule.campaigns.campaign.PolicyChoice",
    },
    "wattloop.schedule.campaigns.running": {
        "run_campaign": "wattloop.schedule.campaigns.runner.run_campaign",
    },
    "wattloop.schedule.described": {
        "Describer": "wattloop.schedule.estimates.job_estimator.JobEstimator",
        "FleetOracle": "wattloop.schedule.estimates.fleet_file.FleetOracle",
        "SubmittedJob": "wattloop.schedule.estimates.job_rules.SubmittedJob",
    },
    "wattloop.schedule.estimates.fleet_oracle": {
        "FleetOracle": "wattloop.schedule.estimates.fleet_file.FleetOracle",
    },
    "wattloop.schedule.estimates.job_estimate": {
        "SubmittedJob": "wattloop.schedule.estimates.job_rules.SubmittedJob",
    },
    "wattloop.schedule.jobs.traces": {
        "read_trace": "wattloop.schedule.traces.reader.read_trace",
    },
    "wattloop.schedule.oracle.analytic": {
        "AnalyticOracle": "wattloop.schedule.estimates.analytic.AnalyticOracle",
    },
    "wattloop.schedule.policies.policy": {
        "Policy": "wattloop.schedule.policies.base.Policy",
    },
    "wattloop.store.trial_records": {
        "read_trials": "wattloop.store.experiments.read_trials",
    },
    "wattloop.testing.synthetic_bench": {
        "SyntheticBench": "wattloop.testing.synthetic_trainings.SyntheticExecutor",
        "synthetic_problem": "wattloop.testing.synthetic_trainings.synthetic_problem",
    },
    "wattloop.tune.early_stopping": {
        "EarlyStopping": "wattloop.tune.search_problem.EarlyStopping",
    },
    "wattloop.tune.engines.optuna_measured": {
        "EnergyCallback": "wattloop.tune.callbacks.optuna.EnergyCallback",
        "measured": "wattloop.tune.callbacks.optuna.measured",
    },
    "wattloop.tune.engines.optuna_pruner": {
        "EnergyBudgetPruner": "wattloop.tune.callbacks.optuna.EnergyBudgetPruner",
    },
    "wattloop.tune.engines.ray_bench": {
        "RayBench": "wattloop.tune.executors.ray.RayExecutor",
    },
    "wattloop.tune.parameters": {
        "Choice": "wattloop.tune.space.Choice",
        "Real": "wattloop.tune.space.Real",
    },
    "wattloop.tune.problem": {
        "EarlyStopping": "wattloop.tune.search_problem.EarlyStopping",
        "Limits": "wattloop.tune.search_problem.Limits",
        "Problem": "wattloop.tune.search_problem.Problem",
        "Quality": "wattloop.tune.search_problem.Quality",
    },
    "wattloop.tune.torch.bench": {
        "TorchBench": "wattloop.tune.executors.torch.executor.TorchExecutor",
    },
    "wattloop.tune.torch.flexible_batches": {
        "FlexibleBatches": "wattloop.tune.executors.torch.batches.FlexibleBatches",
    },
    "wattloop.tune.torch.training": {
        "Training": "wattloop.tune.executors.torch.training.Training",
    },
    "wattloop.virtual.nodes": {
        "node_named": "wattloop.virtual.node.node_named",
    },
}
"""Earlier module -> earlier name -> new path."""


class _MovedLoader:
    """Makes an empty module whose names are looked up in their new modules."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "Moved; see wattloop.moved."
        module.__path__ = []
        old = module.__name__

        def lookup(name: str) -> object:
            target = self._names.get(name)
            if target is None:
                raise AttributeError(f"module {old!r} has no attribute {name!r}")
            new_module, _, new_name = target.rpartition(".")
            warnings.warn(
                f"{old}.{name} is now {target}; the earlier path will be removed",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(importlib.import_module(new_module), new_name)

        module.__dict__["__getattr__"] = lookup


class _MovedFinder:
    """Asked last, so that it costs nothing while all modules are found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in MOVED:
            loader = _MovedLoader(MOVED[fullname])
            return ModuleSpec(fullname, loader, is_package=True)  # type: ignore[arg-type]  # see install()
        if any(name.startswith(f"{fullname}.") for name in MOVED):
            return ModuleSpec(fullname, _MovedLoader({}), is_package=True)  # type: ignore[arg-type]  # see install()
        return None


def install() -> None:
    """Let the earlier paths be imported."""
    if not any(isinstance(finder, _MovedFinder) for finder in sys.meta_path):
        # A plain class keeps importlib.abc out of every program that imports Wattloop.
        sys.meta_path.append(_MovedFinder())
