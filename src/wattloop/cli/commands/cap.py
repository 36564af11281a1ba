"""`wattloop cap`: find the best power cap of a command, and evaluate the finder."""

import math
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from wattloop.cli.options import Config, Devices, Interval, JsonFile, Meters, StorePlace
from wattloop.cli.output import check_target, is_terminal, print_table, say, write_json
from wattloop.cli.progress import counted
from wattloop.core.clock import RealClock
from wattloop.core.errors import ConfigError
from wattloop.core.process import find_program
from wattloop.core.settings import Settings
from wattloop.core.units import format_duration, format_energy, format_number, format_power

if TYPE_CHECKING:
    from wattloop.cap.finder import CapFinder
    from wattloop.cap.gpus import CapPlan
    from wattloop.cap.search import CapJob, CapResult
    from wattloop.store.database import Store
    from wattloop.trials.trial import TrialOutcome


def evaluate_table(
    table: str, metric: str, k: float, noise: float, seeds: int, json_file: str | None
) -> None:
    """Replay the finder on a table; print and write the result."""
    from wattloop.cap.evaluation import Evaluation, evaluate, read_curves
    from wattloop.cap.finder import CapFinder

    if not (math.isfinite(noise) and 0 <= noise <= 0.3):
        raise ConfigError(f"--noise {100 * noise:g}: give per cent between 0 and 30")
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: give at least 1")
    CapFinder([1.0, 2.0], metric, k)  # refuses a wrong metric or k before the table is read
    curves = read_curves(table)
    with counted("searching", len(curves) * (seeds if noise else 1)) as bar:
        found: Evaluation = evaluate(curves, metric, k, noise, seeds=seeds, advance=bar.advance)
    if json_file is not None:
        write_json({"table": table, **found.to_dict()}, json_file)
    if json_file != "-":
        print_table(("", ""), [(name, _shown(v)) for name, v in found.to_dict().items()])


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return format_number(value) if isinstance(value, float) else str(value)


MOST_NOISE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRequest:
    """Options of `cap find`."""

    command: list[str]
    metric: str
    k: float
    gpus: str | None
    caps: str | None
    most_probes: int | None
    noise: float
    progress: str | None
    precision: float
    most_s: float
    apply: bool
    timeout_s: float | None
    window: str
    dry_run: bool
    new: bool
    show_output: bool
    json_file: str | None
    settings: Settings


def find(request: FindRequest) -> None:
    """Check the options, search, and print the result."""
    from wattloop.cap.finder import CapFinder
    from wattloop.cap.gpus import cap_plan, check_metered, job_gpus
    from wattloop.cap.search import CapJob, open_search
    from wattloop.control.registry import find_levers
    from wattloop.store.database import open_store
    from wattloop.trials.lock import refuse_locked

    _check(request)
    levers = find_levers(settings=request.settings)
    gpus = job_gpus(levers) if request.gpus is None else request.gpus
    plan = cap_plan(levers, gpus, request.caps)
    finder = CapFinder(
        plan.caps_w,
        request.metric,
        request.k,
        noise=request.noise,
        devices=len(plan.levers),
        most_probes=request.most_probes,
    )
    if request.dry_run:
        _print_plan(plan, finder, request)
        return
    find_program(request.command[0])
    check_metered(request.settings, plan.devices)
    with open_store(request.settings.store_location) as store:
        experiment, resumed = open_search(
            store, plan, finder, request.command, RealClock(), mode=_mode(request), new=request.new
        )
        refuse_locked(store, experiment.experiment_id)
        if resumed:
            say(f"wattloop: going on with {experiment.experiment_id}")
        job = CapJob(
            plan=plan,
            finder=finder,
            command=request.command,
            experiment=experiment,
            store=store,
            settings=request.settings,
            timeout_s=request.timeout_s,
            window=request.window,
        )
        result = _searched(request, job)
    if request.json_file is not None:
        write_json(result.to_dict(), request.json_file)
    if request.json_file != "-":
        print_result(result)
    if result.failure:
        raise ConfigError(f"the cap was found, but then the command failed: {result.failure}")


def _check(request: FindRequest) -> None:
    if not request.command:
        raise ConfigError(
            "no command; write it after --, such as: wattloop cap find -- python x.py"
        )
    if request.timeout_s is not None and not request.timeout_s > 0:
        raise ConfigError(f"--timeout {request.timeout_s:g}: give seconds above 0")
    if request.apply and request.progress is None:
        raise ConfigError(
            "--apply keeps the cap for the rest of the one run that --progress makes; without it "
            "every probe is a run of its own. To run at the cap found, use 'wattloop set'"
        )
    if request.window and request.progress is not None:
        raise ConfigError(
            "--window is for a run per probe; with --progress its lines say what counts"
        )
    for name, value in (("--precision", request.precision), ("--probe-seconds", request.most_s)):
        if not value > 0:
            raise ConfigError(f"{name}: give a number above 0")
    if not 0 <= request.noise < MOST_NOISE:
        raise ConfigError(
            f"--noise {100 * request.noise:g}: give per cent, from 0 to below {100 * MOST_NOISE:g}"
        )
    if request.most_probes is not None and request.most_probes < 1:
        raise ConfigError(f"--probes {request.most_probes}: at least one is needed")


def _mode(request: FindRequest) -> str:
    """Return the mode of a search: probes of one mode cannot be used in another."""
    if request.progress is not None:
        return f"progress {request.progress}"
    return f"window {request.window}" if request.window else "runs"


def _searched(request: FindRequest, job: "CapJob") -> "CapResult":
    if request.progress is not None:
        from wattloop.cap.command import CapRun

        return CapRun(
            job,
            progress=request.progress,
            precision=request.precision,
            most_s=request.most_s,
            apply=request.apply,
            echo=request.json_file != "-",
            report=say,
        ).run()
    from wattloop.cap.search import CapSearch

    return CapSearch(
        job,
        began=lambda cap_w, number: _say_begin(cap_w, number, job.finder),
        ended=_say_end,
        outputs=None if request.show_output else _outputs(job.store, job.experiment.experiment_id),
    ).run()


def _say_begin(cap_w: float, number: int, finder: "CapFinder") -> None:
    if finder.why_on:
        say(f"wattloop: {finder.why_on}")
    what = "reference" if number == 0 else "probe"
    say(f"wattloop: {what} {number + 1} of at most {finder.limit}: {cap_w:g} W ...")


def _say_end(cap_w: float, outcome: "TrialOutcome") -> None:
    if outcome.ok and outcome.time_s is not None:
        energy = outcome.energy_j("gpu")
        text = "" if energy is None else f", GPUs {format_energy(energy)}"
        say(f"wattloop: {cap_w:g} W: {format_duration(outcome.time_s)}{text}")


def _outputs(store: "Store", identity: str) -> Path:
    journals = store.journals
    return journals.with_name(journals.name.replace("journals", "trials")) / identity


def _print_plan(plan: "CapPlan", finder: "CapFinder", request: FindRequest) -> None:
    data: dict[str, Any] = {
        **plan.to_dict(),
        "command": request.command,
        "writes": {f"{cap:g}": plan.writes(cap) for cap in plan.caps_w},
    }
    if request.json_file is not None:
        write_json(data, request.json_file)
    if request.json_file == "-":
        return
    out = sys.stdout.write
    out(f"at most {_counted(finder.limit)} of these caps, the reference first")
    if finder.most_probes is None and finder.limit < len(plan.caps_w):
        out(f" (up to {len(plan.caps_w)} where readings turn out more than 2% off)")
    out(":\n")
    for cap_w in reversed(plan.caps_w):
        out(f"\n{cap_w:g} W{' (reference)' if cap_w == plan.caps_w[-1] else ''}\n")
        for line in plan.writes(cap_w):
            out(f"  {line}\n")
    out(f"\n  $ {shlex.join(request.command)}\n")
    out("\nat the end every limit is put back to what it was before\n")


def _counted(probes: int) -> str:
    return f"{probes} probe{'s' * (probes != 1)}"


def print_result(result: "CapResult") -> None:
    """Print the probes, the choice with its gains, and how to apply it."""
    finder, choice = result.finder, result.choice
    rows = [
        (
            f"{probe.cap_w:g} W",
            format_duration(probe.time_s),
            format_energy(probe.energy_j),
            format_power(probe.energy_j / probe.time_s / finder.devices),
        )
        for probe in finder.probes
    ]
    simulated = f" ({result.provenance})" if result.provenance not in ("", "measured") else ""
    print_table(("cap", "time", f"GPU energy{simulated}", "per GPU"), rows)
    out = sys.stdout.write
    metric = f"EDS({finder.k:g})" if finder.metric == "eds" else finder.metric
    out(f"\nbest cap for {metric}: {choice.cap_w:g} W\n")
    if choice.cap_w == finder.reference_w:
        out("  that is the reference: no lower cap pays\n")
    else:
        out(f"  GPU energy saved: {choice.energy_gain_pct} % of that at {finder.reference_w:g} W\n")
        out(f"  time lost: {choice.time_loss_pct} %\n")
    out(
        f"  within 2% of the best cap with {100 * choice.certainty:.0f}% certainty, "
        f"{choice.expected_regret_pct:.1f}% from it on average\n"
    )
    if choice.flat:
        out("  no cap changes this work; the lowest is as good as any\n")
    if choice.why:
        out(f"  {_counted(len(finder.probes))}; {choice.why}\n")
    setting = f"gpu:{','.join(d.removeprefix('gpu:') for d in result.plan.devices)}/power_limit"
    out(f"\nto use it:  wattloop set {setting}={choice.cap_w:g} -- COMMAND\n")
    if any(lever.device.startswith("nvidia:") for lever in result.plan.levers):
        cards = ",".join(x.device.removeprefix("nvidia:") for x in result.plan.levers)
        out(f"or, until it is set again:  sudo nvidia-smi -i {cards} -pl {choice.cap_w:g}\n")
    if is_terminal(sys.stdout):
        out(f"kept as {result.experiment_id}\n")


COMMAND = "wattloop.cap.command"


class CapGroup(TyperGroup):
    """Command group that takes everything after `--` as the user's command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the user's command off."""
        if "--" in args:
            end = args.index("--")
            args, ctx.meta[COMMAND] = args[:end], args[end + 1 :]
        return list(super().parse_args(ctx, args))


app = typer.Typer(
    cls=CapGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Find the best GPU power cap with few probes.",
    epilog="Examples: wattloop cap find -- python train.py --epochs 1; "
    "wattloop cap find --progress 'step (\\d+)' --apply -- python train.py.",
)


Metric = Annotated[str, typer.Option("--metric", help="energy, edp, ed2p, eds or gain_minus_loss.")]


K = Annotated[float, typer.Option("--k", help="For eds: accept k times the time for no energy.")]


@app.command("find")
def find_command(  # noqa: PLR0913 - one parameter per option
    ctx: typer.Context,
    *,
    metric: Metric = "eds",
    k: K = 2.0,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus", metavar="LIST", help="The job's (default: CUDA_VISIBLE_DEVICES or all)."
        ),
    ] = None,
    caps: Annotated[
        str | None,
        typer.Option("--caps", metavar="VALUES", help="100:250:25 or 150,200; W or % of TDP."),
    ] = None,
    probes: Annotated[
        int | None,
        typer.Option(
            "--probes", help="Never more (default: 4; one per cap if readings are noisy)."
        ),
    ] = None,
    noise: Annotated[
        float, typer.Option("--noise", metavar="PCT", help="How much two equal runs differ, in %.")
    ] = 1.0,
    progress: Annotated[
        str | None,
        typer.Option(
            "--progress",
            metavar="REGEX",
            help="One run only: lines that match are progress; a group that is a number counts it.",
        ),
    ] = None,
    precision: Annotated[
        float, typer.Option("--precision", metavar="PCT", help="With --progress: of each probe.")
    ] = 1.0,
    most_s: Annotated[
        float, typer.Option("--probe-seconds", help="With --progress: the longest a probe lasts.")
    ] = 60.0,
    apply: Annotated[
        bool, typer.Option("--apply", help="With --progress: keep the cap for the rest of the run.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="End a run after this.")
    ] = None,
    window: Annotated[
        str,
        typer.Option(
            "--window", metavar="NAME", help="Count only wattloop.measure(NAME) in the command."
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show caps and writes; run nothing.")
    ] = False,
    new: Annotated[
        bool, typer.Option("--new", help="Start a new search, even if the same one is unfinished.")
    ] = False,
    show_output: Annotated[
        bool, typer.Option("--show-output", help="Show what the command prints.")
    ] = False,
    json_file: JsonFile = None,
    interval: Interval = None,
    devices: Devices = None,
    meters: Meters = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Find the best power cap for a command. Caps are always restored at the end.

    The command is run once per probe; with --progress once in all.
    """
    from wattloop.cli.settings import settings_of

    check_target(json_file, "--json")
    request = FindRequest(
        command=ctx.meta.get(COMMAND, []),
        metric=metric,
        k=k,
        gpus=gpus,
        caps=caps,
        most_probes=probes,
        noise=noise / 100,
        progress=progress,
        precision=precision / 100,
        most_s=most_s,
        apply=apply,
        timeout_s=timeout,
        window=window,
        dry_run=dry_run,
        new=new,
        show_output=show_output,
        json_file=json_file,
        settings=settings_of(
            config, interval=interval, devices=devices, meters=meters, store=store
        ),
    )
    find(request)


@app.command("evaluate")
def evaluate_command(
    *,
    table: Annotated[
        str,
        typer.Option("--table", metavar="FILE", help="CSV of measured curves; see docs/cap.md."),
    ],
    metric: Metric = "eds",
    k: K = 2.0,
    noise: Annotated[
        float, typer.Option("--noise", metavar="PCT", help="Noise of every reading, in %.")
    ] = 0.0,
    seeds: Annotated[int, typer.Option("--seeds", help="Draws of noise per curve.")] = 10,
    json_file: JsonFile = None,
) -> None:
    """Replay the finder on measured curves and compare it with trying every cap."""
    check_target(json_file, "--json")
    evaluate_table(table, metric, k, noise / 100, seeds, json_file)
