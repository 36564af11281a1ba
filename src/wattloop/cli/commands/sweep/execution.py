"""Execution of sweeps from the command line, new or resumed."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattloop.cli.experiments import say_which
from wattloop.cli.output import say, write_json
from wattloop.cli.progress import counted_trials, is_redrawable
from wattloop.cli.result_view import short_energy
from wattloop.core.clock import RealClock
from wattloop.core.errors import ConfigError, ExperimentNotFound
from wattloop.core.settings import Settings
from wattloop.core.units import format_duration
from wattloop.sweep.plan import SweepPlan, SweepPoint
from wattloop.sweep.runner import SweepListener, SweepProgress
from wattloop.trials.trial import Trial, TrialOutcome

if TYPE_CHECKING:
    from wattloop.core.yaml_spec import YamlWithLines
    from wattloop.store.database import Store
    from wattloop.store.experiments import Experiment
    from wattloop.sweep.spec import SweepSpec


KERNEL_WINDOW = "kernel"


LEVER_OPTIONS = {"--cap": "gpu/power_limit", "--clock": "gpu/sm_clock"}


@dataclass(slots=True, kw_only=True)
class SweepRequest:
    """Options of `sweep`; None or empty means not given."""

    settings: Settings
    spec_file: str | None = None
    command: list[str] = field(default_factory=list)
    levers: Mapping[str, str | None] = field(default_factory=dict)
    named_levers: list[str] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    gpus: str | None = None
    repeats: str | None = None
    target: str | None = None
    cooldown_c: float | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    new: bool = False
    resume_only: bool = False
    retry_failed: bool = False
    show_output: bool = False
    figures: str | None = None
    json_file: str | None = None


def spec_of(request: SweepRequest) -> tuple["SweepSpec", "YamlWithLines | None"]:
    """Return the specification of a file with options applied, and the file for error lines."""
    from wattloop.core.yaml_spec import read_yaml
    from wattloop.sweep.spec import parse_sweep_spec

    source = None if request.spec_file is None else read_yaml(request.spec_file)
    data: dict[str, Any] = {} if source is None else dict(source.data)
    levers = _levers(request)
    if levers:
        own = data.get("levers")
        data["levers"] = {**(own if isinstance(own, Mapping) else {}), **levers}
    data |= {name: value for name, value in request.fields.items() if value is not None}
    if request.command:
        data["command"] = request.command
    if request.kernels:
        window = str(data.setdefault("window", KERNEL_WINDOW))
        data["workloads"] = {name: _kernel_command(name, window) for name in request.kernels}
    if request.gpus is not None:
        data["gpus"] = _counts(request.gpus)
    data |= _repeats(request, data)
    if request.cooldown_c is not None:
        data["cooldown"] = {"within": request.cooldown_c}
    return parse_sweep_spec(data, source), source


def _levers(request: SweepRequest) -> dict[str, str]:
    given = {LEVER_OPTIONS[o]: text for o, text in request.levers.items() if text is not None}
    for pair in request.named_levers:
        name, separator, values = pair.partition("=")
        if not separator or not values:
            raise ConfigError(f"--lever {pair}: write NAME=VALUES, such as cpu/governor=powersave")
        given[name.strip()] = values.strip()
    return given


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"--gpus {text}: write numbers with commas, such as 1,2,4,8") from None


def _repeats(request: SweepRequest, data: Mapping[str, Any]) -> dict[str, Any]:
    if request.repeats is None and request.target is None:
        return {}
    own = data.get("repeats")
    rule: dict[str, Any] = dict(own) if isinstance(own, Mapping) else {}
    if isinstance(own, int):
        rule = {"min": own, "max": own}
    if request.repeats is not None:
        low, _, high = request.repeats.partition(":")
        try:
            rule |= {"min": int(low), "max": int(high or low)}
        except ValueError:
            raise ConfigError(
                f"--repeats {request.repeats}: write a number, or MIN:MAX such as 3:10"
            ) from None
    if request.target is not None:
        rule["target"] = request.target
        rule.setdefault("max", 10)
    return {"repeats": rule}


def _kernel_command(name: str, window: str) -> list[str]:
    """Return a program that does a fixed amount of work of a `bench` kernel."""
    from wattloop.kernels.fixed_work import work_command

    kernel, _, backend = name.partition("/")
    return [*work_command(kernel, backend), "--window", window]


def plan_here(spec: "SweepSpec", source: "YamlWithLines | None", settings: Settings) -> "SweepPlan":
    """Plan the specification on this machine."""
    from wattloop.control.registry import find_levers
    from wattloop.hardware.host import Host
    from wattloop.meters.base import Context
    from wattloop.sweep.plan import make_axis, make_plan
    from wattloop.sweep.runner import Thermometer

    if not spec.levers and len(spec.gpus) < 2 and len(spec.workloads) < 2:
        raise ConfigError(
            "nothing to vary: name levers, such as --cap 50%:100%:10% or 'levers:' in the file, "
            "or several GPU counts; 'wattloop run' measures a command once"
        )
    context = Context(Host.from_environment(), settings)
    levers = find_levers(context, settings) if spec.levers else []
    axes = [
        make_axis(name, values, levers, "" if source is None else source.where(("levers", name)))
        for name, values in spec.levers.items()
    ]
    gpus_here = None
    if spec.gpus:
        with Thermometer(context) as thermometer:
            gpus_here = thermometer.gpus
        numbered = {n.partition("/")[0] for n in (lever.name for lever in levers)}
        gpus_here = max(gpus_here, sum(name.startswith("gpu:") for name in numbered))
    try:
        return make_plan(spec, axes, gpus_here)
    except ConfigError as error:
        where = "" if source is None or "gpus" not in str(error) else source.where(("gpus",)) + ": "
        raise ConfigError(f"{where}{error}") from None


def print_plan(plan: SweepPlan, json_file: str | None) -> None:
    """List the plan without setting or running anything."""
    if json_file is not None:
        write_json(_as_dict(plan), json_file)
    if json_file == "-":
        return
    import sys

    rule = plan.spec.repeats
    out = sys.stdout.write
    out(f"{len(plan.points)} points, {rule.least} to {rule.most} runs each")
    out(f", {plan.spec.warmup} warm-up run(s) per default setting")
    if plan.spec.timeout_s is not None:
        out(f", each ended after {format_duration(plan.spec.timeout_s)}")
    out("\n")
    for point in plan.block(0):
        trial = plan.trial(point, "0")
        out(f"\n{point.key}{' (default)' if point.is_default else ''}\n")
        for name, value in trial.environment.items():
            out(f"  {name}={value}\n")
        for text in _writes(plan, point):
            out(f"  {text}\n")
        out(f"  $ {shlex.join(trial.command)}\n")
    out("\nat the end every lever is put back to what it was before\n")


def _writes(plan: SweepPlan, point: SweepPoint) -> list[str]:
    levers = {lever.name: lever for axis in plan.axes for lever in axis.levers}
    texts = (levers[name].write_text(value) for name, value in point.settings.items())
    return [line for text in texts for line in text.splitlines()]


def _as_dict(plan: SweepPlan) -> dict[str, Any]:
    return {
        "points": [
            {
                **point.to_dict(),
                "key": point.key,
                "settings": dict(point.settings),
                "writes": _writes(plan, point),
                "command": list(plan.trial(point, "0").command),
                "environment": dict(plan.trial(point, "0").environment),
            }
            for point in plan.block(0)
        ],
        "spec": plan.spec.to_dict(),
    }


@contextmanager
def progress(plan: "SweepPlan", identity: str, *, resumed: bool) -> Iterator[SweepListener]:
    """Draw a bar on a terminal; elsewhere print a line at the beginning and one per failure."""
    rule = plan.spec.repeats
    times = str(rule.least) if rule.least == rule.most else f"{rule.least} to {rule.most}"
    verb = "going on with" if resumed else "beginning"
    count = len(plan.points)
    points = f"{count} point{'s' if count != 1 else ''}"
    say(f"wattloop: {verb} {identity}: {points}, {times} run{'s' if rule.most != 1 else ''} each")
    if not is_redrawable():
        yield _Lines()
        return
    with counted_trials() as bar:
        yield _OnTerminal(bar, bar.add_task("", total=None, left=""))


class _Lines:
    """Progress as lines: failures only."""

    def begins(self, trial: Trial, progress: SweepProgress) -> None:
        """Nothing to say."""

    def ended(self, trial: Trial, outcome: TrialOutcome) -> None:
        if not outcome.ok:
            say(f"wattloop: {trial.key}: {outcome.status.value}: {outcome.message}")

    def cooled(self, waited_s: float) -> None:
        """Nothing to say."""


class _OnTerminal(_Lines):
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task

    def begins(self, trial: Trial, progress: SweepProgress) -> None:
        """What runs now, and what is left."""
        self._bar.update(
            self._task,
            completed=progress.done,
            total=progress.done + progress.left,
            left=_left(progress),
            description=trial.key,
        )


def _left(progress: SweepProgress) -> str:
    parts = []
    if progress.time_left_s is not None:
        parts.append(format_duration(progress.time_left_s))
    if progress.energy_left_j is not None:
        parts.append(f"{short_energy(progress.energy_left_j)} {progress.scope}")
    return f"left: {', '.join(parts)}" if parts else ""


def execute(request: SweepRequest) -> None:
    """Plan the sweep, then run or list it."""
    from wattloop.store.database import open_store
    from wattloop.sweep.runner import open_sweep

    spec, source = spec_of(request)
    plan = plan_here(spec, source, request.settings)
    if request.dry_run:
        print_plan(plan, request.json_file)
        return
    _check_drawable(request)
    with open_store(request.settings.store_location) as store:
        experiment, resumed = open_sweep(store, plan, RealClock(), resume=not request.new)
        if request.resume_only and not resumed:
            raise ExperimentNotFound(
                "no unfinished sweep of this specification and command; see 'wattloop sweep list'"
            )
        _run(plan, experiment, store, request, resumed=resumed)


def execute_stored(reference: str | None, request: SweepRequest) -> None:
    """Resume a stored sweep; by default the last unfinished one."""
    from wattloop.store.database import open_store
    from wattloop.store.experiments import find_experiment
    from wattloop.sweep.plan import fingerprint
    from wattloop.sweep.spec import parse_sweep_spec

    _check_drawable(request)
    with open_store(request.settings.store_location) as store:
        if reference is None:
            experiment = _last_unfinished(store, retry_failed=request.retry_failed)
        else:
            experiment = find_experiment(store, reference, "sweep")
            say_which(store, reference, "sweep")
        plan = plan_here(parse_sweep_spec(experiment.spec), None, request.settings)
        if fingerprint(plan) != experiment.fingerprint:
            raise ConfigError(
                f"{experiment.experiment_id}: this machine does not offer the same points as when "
                "it was begun (other GPUs, limits or defaults); start a new sweep with its file"
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
    from wattloop.cli.commands.sweep import view
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
        write_json(view.as_dict(result), request.json_file)
    if request.json_file != "-":
        view.print_results([result], ("points", "best"))
    if request.figures is not None:
        from wattloop.cli.commands.sweep.view import draw

        draw([result], store, request.figures)


def _check_drawable(request: SweepRequest) -> None:
    """Report a missing library or unwritable folder before hours are spent."""
    if request.figures is not None:
        from wattloop.core.paths import user_path
        from wattloop.report.figures.render import needs_libraries, writable_folder

        needs_libraries()
        writable_folder(user_path(request.figures))


def _outputs(store: "Store", identity: str) -> Path:
    journals = store.journals
    return journals.with_name(journals.name.replace("journals", "trials")) / identity
