"""Doing what `wattloop sweep` was asked to do: anew, or going on with what is stored."""

from pathlib import Path
from typing import TYPE_CHECKING

from wattloop.cli.experiment_list import say_which
from wattloop.cli.output import say, write_json
from wattloop.cli.sweep_request import SweepRequest, plan_here, spec_of
from wattloop.core.clock import RealClock
from wattloop.core.errors import ConfigError, ExperimentNotFound

if TYPE_CHECKING:
    from wattloop.store.database import Store
    from wattloop.store.experiments import Experiment
    from wattloop.sweep.plan import SweepPlan

__all__ = ["execute", "execute_stored"]


def execute(request: SweepRequest) -> None:
    """Plan, and run or list."""
    from wattloop.store.database import open_store
    from wattloop.sweep.runner import open_experiment

    spec, source = spec_of(request)
    plan = plan_here(spec, source, request.settings)
    if request.dry_run:
        from wattloop.cli.sweep_dry import print_plan

        print_plan(plan, request.json_file)
        return
    _check_drawable(request)
    with open_store(request.settings.store_location) as store:
        experiment, resumed = open_experiment(store, plan, RealClock(), resume=not request.new)
        if request.resume_only and not resumed:
            raise ExperimentNotFound(
                "no unfinished sweep of this specification and command; see 'wattloop sweep list'"
            )
        _run(plan, experiment, store, request, resumed=resumed)


def execute_stored(reference: str | None, request: SweepRequest) -> None:
    """Go on with a stored sweep; unless one is named, with the last that is unfinished."""
    from wattloop.store.database import open_store
    from wattloop.store.experiments import find_experiment
    from wattloop.sweep.plan import fingerprint
    from wattloop.sweep.spec import spec_from

    _check_drawable(request)
    with open_store(request.settings.store_location) as store:
        if reference is None:
            experiment = _last_unfinished(store, retry_failed=request.retry_failed)
        else:
            experiment = find_experiment(store, reference, "sweep")
            say_which(store, reference, "sweep")
        plan = plan_here(spec_from(experiment.spec), None, request.settings)
        if fingerprint(plan) != experiment.fingerprint:
            raise ConfigError(
                f"{experiment.experiment_id}: this machine does not offer the same points as when "
                "it was begun (other GPUs, limits or defaults); run it anew with its file"
            )
        _run(plan, experiment, store, request, resumed=True)


def _last_unfinished(store: "Store", *, retry_failed: bool) -> "Experiment":
    from wattloop.store.experiments import find_experiment, list_experiments

    last = find_experiment(store, "last", "sweep")
    for experiment in list_experiments(store, "sweep"):
        if experiment.status != "finished" or retry_failed:
            return experiment
    raise ExperimentNotFound(
        f"every sweep is finished; 'wattloop sweep show {last.experiment_id}' shows the last one"
    )


def _run(
    plan: "SweepPlan",
    experiment: "Experiment",
    store: "Store",
    request: SweepRequest,
    *,
    resumed: bool,
) -> None:
    from wattloop.cli import sweep_view
    from wattloop.cli.sweep_progress import progress
    from wattloop.sweep.runner import Sweep
    from wattloop.trials.lock import refuse_locked

    identity = experiment.experiment_id
    refuse_locked(store, identity)
    with progress(plan, identity, resumed=resumed) as listener:
        sweep = Sweep(
            plan,
            experiment,
            store,
            request.settings,
            listener=listener,
            outputs=None if request.show_output else _outputs(store, identity),
        )
        try:
            result = sweep.run(retry_failed=request.retry_failed)
        except (KeyboardInterrupt, SystemExit):
            say(
                f"wattloop: interrupted; what ended is kept, levers are as they were. Go on with: "
                f"wattloop sweep resume {identity}"
            )
            raise
    if request.json_file is not None:
        write_json(sweep_view.as_dict(result), request.json_file)
    if request.json_file != "-":
        sweep_view.print_results([result], ("points", "best"))
    if request.figures is not None:
        from wattloop.cli.sweep_figures import draw

        draw([result], store, request.figures)


def _check_drawable(request: SweepRequest) -> None:
    """A library that is missing, or a folder that cannot be, is said before hours are spent."""
    if request.figures is not None:
        from wattloop.core.user_code import user_path
        from wattloop.report.figures.render import needs_libraries, writable_folder

        needs_libraries()
        writable_folder(user_path(request.figures))


def _outputs(store: "Store", identity: str) -> Path:
    journals = store.journals
    return journals.with_name(journals.name.replace("journals", "trials")) / identity
