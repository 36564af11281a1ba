"""`wattloop cap`: find the best power cap of a command, and evaluate the finder."""

import math
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from wattloop.cli.app import MeterOptions, UserCommandGroup, Verb, user_command
from wattloop.cli.options import JsonFile, option
from wattloop.cli.output import is_terminal, present, print_rows, say
from wattloop.cli.progress import counted
from wattloop.core.clock import RealClock
from wattloop.core.errors import ConfigError
from wattloop.core.process import find_program
from wattloop.core.table import format_cell
from wattloop.core.units import format_duration, format_energy, format_power

if TYPE_CHECKING:
    from wattloop.cap.command_search import CapResult
    from wattloop.cap.finder import CapFinder
    from wattloop.cap.gpus import CapPlan
    from wattloop.trials.trial import TrialOutcome

MOST_NOISE_PCT = 50.0
Metric = Annotated[str, option("--metric", "energy, edp, ed2p, eds or gain_minus_loss.")]
K = Annotated[float, option("--k", "For eds: accept k times the time for no energy.")]
app = Verb(
    "Find the best GPU power cap with few probes.",
    example="wattloop cap find -- python train.py --epochs 1",
    cls=UserCommandGroup,
)


@app.command(
    "find",
    example="wattloop cap find -- python train.py --epochs 1\n"
    "wattloop cap find --progress 'step (\\d+)' --apply -- python train.py",
)
def find_command(  # noqa: PLR0913 - one parameter per option
    ctx: typer.Context,
    *,
    metric: Metric = "eds",
    k: K = 2.0,
    gpus: str | None = option("--gpus LIST", "The job's (default: CUDA_VISIBLE_DEVICES or all)."),
    caps: str | None = option("--caps VALUES", "100:250:25 or 150,200; W or % of TDP."),
    probes: int | None = option(
        "--probes", "Never more (default: 4; one per cap if readings are noisy)."
    ),
    noise: float = option("--noise PCT", "How much two equal runs differ, in %.", 1.0),
    progress: str | None = option(
        "--progress REGEX",
        "One run only: lines that match are progress; a group that is a number counts it.",
    ),
    precision: float = option("--precision PCT", "With --progress: of each probe.", 1.0),
    most_s: float = option("--probe-seconds", "With --progress: the longest a probe lasts.", 60.0),
    apply: bool = option("--apply", "With --progress: keep the cap for the rest of the run."),
    timeout: float | None = option("--timeout SECONDS", "End a run after this."),
    window: str = option("--window NAME", "Count only wattloop.measure(NAME) in the command.", ""),
    dry_run: bool = option("--dry-run", "Show caps and writes; run nothing."),
    new: bool = option("--new", "Start a new search, even if the same one is unfinished."),
    show_output: bool = option("--show-output", "Show what the command prints."),
    given: MeterOptions,
) -> None:
    """Find the best power cap for a command. Caps are always restored at the end.

    The command is run once per probe; with --progress once in all.
    """
    from wattloop.cap.command_search import CapJob, CapRun, CapSearch, open_search
    from wattloop.cap.finder import CapFinder
    from wattloop.cap.gpus import cap_plan, check_metered, job_gpus
    from wattloop.control.registry import find_levers
    from wattloop.store.database import open_store
    from wattloop.trials.experiment_lock import refuse_locked

    settings = given.settings()
    command = user_command(ctx)
    if not command:
        raise ConfigError(
            "no command; write it after --, such as: wattloop cap find -- python x.py"
        )
    if timeout is not None and not timeout > 0:
        raise ConfigError(f"--timeout {timeout:g}: give seconds above 0")
    if apply and progress is None:
        raise ConfigError(
            "--apply keeps the cap for the rest of the one run that --progress makes; without it "
            "every probe is a run of its own. To run at the cap found, use 'wattloop set'"
        )
    if window and progress is not None:
        raise ConfigError(
            "--window is for a run per probe; with --progress its lines say what counts"
        )
    for name, value in (("--precision", precision), ("--probe-seconds", most_s)):
        if not value > 0:
            raise ConfigError(f"{name}: give a number above 0")
    if not 0 <= noise < MOST_NOISE_PCT:
        raise ConfigError(f"--noise {noise:g}: give per cent, from 0 to below {MOST_NOISE_PCT:g}")
    if probes is not None and probes < 1:
        raise ConfigError(f"--probes {probes}: at least one is needed")
    levers = find_levers(settings=settings)
    plan = cap_plan(levers, job_gpus(levers) if gpus is None else gpus, caps)
    finder = CapFinder(
        plan.caps_w, metric, k, noise=noise / 100, devices=len(plan.levers), most_probes=probes
    )
    if dry_run:
        present(
            given.json_file,
            lambda: {
                **plan.to_dict(),
                "command": command,
                "writes": {f"{cap:g}": plan.writes(cap) for cap in plan.caps_w},
            },
            lambda: _print_plan(plan, finder, command),
        )
        return
    find_program(command[0])
    check_metered(settings, plan.devices)
    # probes of one mode cannot be used in another
    mode = f"window {window}" if window else "runs"
    mode = mode if progress is None else f"progress {progress}"
    with open_store(settings.store_location) as store:
        experiment, resumed = open_search(
            store, plan, finder, command, RealClock(), mode=mode, new=new
        )
        identity = experiment.experiment_id
        refuse_locked(store, identity)
        if resumed:
            say(f"wattloop: going on with {identity}")
        job = CapJob(
            plan=plan,
            finder=finder,
            command=command,
            experiment=experiment,
            store=store,
            settings=settings,
            timeout_s=timeout,
            window=window,
        )
        try:
            if progress is not None:
                result = CapRun(
                    job,
                    progress=progress,
                    precision=precision / 100,
                    most_s=most_s,
                    apply=apply,
                    echo=given.json_file != "-",
                    report=say,
                ).run()
            else:
                result = CapSearch(
                    job,
                    began=lambda cap_w, number: _say_begin(cap_w, number, finder),
                    ended=_say_end,
                    outputs=None if show_output else store.outputs_folder(identity),
                ).run()
        except (KeyboardInterrupt, SystemExit):
            say(
                "wattloop: interrupted; finished probes are stored, levers are restored. The same "
                "command continues the search"
            )
            raise
    present(given.json_file, result.to_dict, lambda: print_result(result))
    if result.failure:
        raise ConfigError(f"the cap was found, but then the command failed: {result.failure}")


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


def _print_plan(plan: "CapPlan", finder: "CapFinder", command: list[str]) -> None:
    out = sys.stdout.write
    out(f"at most {_counted(finder.limit)} of these caps, the reference first")
    if finder.most_probes is None and finder.limit < len(plan.caps_w):
        out(f" (up to {len(plan.caps_w)} where readings turn out more than 2% off)")
    out(":\n")
    for cap_w in reversed(plan.caps_w):
        out(f"\n{cap_w:g} W{' (reference)' if cap_w == plan.caps_w[-1] else ''}\n")
        for line in plan.writes(cap_w):
            out(f"  {line}\n")
    out(f"\n  $ {shlex.join(command)}\n")
    out("\nat the end every limit is put back to what it was before\n")


def _counted(probes: int) -> str:
    return f"{probes} probe{'s' * (probes != 1)}"


def print_result(result: "CapResult") -> None:
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
    print_rows(("cap", "time", f"GPU energy{simulated}", "per GPU"), rows)
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
        out(f"stored as {result.experiment_id}\n")


@app.command("evaluate", example="wattloop cap evaluate --table power.csv --noise 2")
def evaluate_command(
    *,
    table: str = option("--table FILE", "CSV of measured curves; see docs/cap.md."),
    metric: Metric = "eds",
    k: K = 2.0,
    noise: float = option("--noise PCT", "Noise of every reading, in %.", 0.0),
    seeds: int = option("--seeds", "Draws of noise per curve.", 10),
    json_file: JsonFile = None,
) -> None:
    """Replay the finder on measured curves and compare it with trying every cap."""
    from wattloop.cap.evaluation import evaluate, read_curves
    from wattloop.cap.finder import CapFinder

    if not (math.isfinite(noise) and 0 <= noise <= 30):
        raise ConfigError(f"--noise {noise:g}: give per cent between 0 and 30")
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: give at least 1")
    CapFinder([1.0, 2.0], metric, k)  # refuses a wrong metric or k before the table is read
    curves = read_curves(table)
    with counted("searching", len(curves) * (seeds if noise else 1)) as bar:
        found = evaluate(curves, metric, k, noise / 100, seeds=seeds, advance=bar.advance)
    data = found.to_dict()
    present(
        json_file,
        lambda: {"table": table, **data},
        lambda: print_rows(("", ""), [(name, format_cell(v)) for name, v in data.items()]),
    )


app.add_plot("cap", "CAP", ("energy",), "energy of the probes against the cap")
