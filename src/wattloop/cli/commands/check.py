"""`wattloop check`: fail a CI job when a command uses more energy than before."""

import shlex
import sys
import time
from collections.abc import Callable

import typer

from wattloop.check.baselines import Baseline, Baselines, Machine
from wattloop.check.figures import (
    Execution,
    FigureKind,
    FigureSeries,
    collect_series,
    format_figure,
    judged_kind,
    parse_share,
)
from wattloop.check.markdown import HEADERS, comparison_markdown, judgement_row
from wattloop.check.measurement import CommandFigures, measure_command
from wattloop.check.verdict import BaselineComparison, EnergyVerdict, compare, mean_and_noise
from wattloop.cli.app import MeterOptions, Verb
from wattloop.cli.options import argument, file_option, option
from wattloop.cli.output import check_target, is_terminal, print_rows, say, write_json, write_text
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.units import format_share
from wattloop.version import __version__


def report(
    found: BaselineComparison, done: CommandFigures, markdown: str | None, json_file: str | None
) -> None:
    """Print the table to standard output and remarks to standard error; write the files."""
    remarks = _remarks(found, done)
    if markdown is not None:
        write_text(comparison_markdown(found, remarks), markdown, "--markdown")
    data = {**found.to_dict(), "runs": done.run_ids, "remarks": remarks}
    write_json(data, json_file)
    if "-" not in (markdown, json_file):
        rows = [judgement_row(found.judged, found.provenance)]
        rows += [(*judgement_row(one)[:-1], "shown only") for one in found.others]
        print_rows(HEADERS, rows)
    for remark in remarks:
        say(f"wattloop: {remark}")


def say_taken(label: str, taken: Baseline, done: CommandFigures, where: str) -> None:
    mean, noise = mean_and_noise(taken.series[taken.judged])
    shown = f"{format_figure(taken.judged, mean)} ± {format_share(noise / mean if mean else 0.0)}"
    say(f"wattloop: {where}: {label}: {taken.judged.words} {shown} on {taken.machine.words}")
    if taken.judged is not FigureKind.ENERGY and done.reason:
        say(f"wattloop: {done.reason}, so {taken.judged.words} is what will be compared")
    for note in done.notes:
        say(f"wattloop: {note}")


def teller(repeats: int) -> Callable[[int, Execution], None]:
    def told(number: int, execution: Execution) -> None:
        kind = judged_kind(execution)
        if is_terminal(sys.stderr) and kind is not None:
            shown = format_figure(kind, execution[kind].value)
            say(f"wattloop: repeat {number} of {repeats}: {kind.words} {shown}")

    return told


def _remarks(found: BaselineComparison, done: CommandFigures) -> list[str]:
    remarks = []
    if found.judged.kind is not FigureKind.ENERGY and done.reason:
        remarks.append(f"{done.reason}, so {found.judged.kind.words} was compared in its place")
    if found.parts:
        remarks.append(f"energy of {', '.join(found.parts)}, {found.provenance}")
    return [*remarks, *found.notes, *found.judged.notes, *done.notes]


app = Verb()
REGRESSION, UNCLEAR = 1, 3


@app.command(
    context_settings={"allow_interspersed_args": False},
    example="wattloop check --baseline energy.json --repeats 5 -- python train.py",
    epilog="Exit code 1 for a regression, 2 for what cannot be compared, 3 when noise hides the "
    "answer.",
)
def check(  # noqa: PLR0913 - one parameter per option
    command: list[str] = argument("PROGRAM", "What to check, and its arguments."),
    *,
    baseline: str = option("--baseline FILE", "The figures to compare with."),
    repeats: int = option("--repeats", "How often to run it.", 5, min=1, max=1000),
    warmup: int = option("--warmup", "Runs before those that count.", 0, min=0, max=100),
    tolerance: str = option("--tolerance SHARE", "What may be lost, beyond noise.", "5%"),
    update: bool = option("--update", "Take the figures of now as the baseline."),
    name: str = option("--name -n", "What the baseline is called (the command).", ""),
    figure: str | None = option("--figure KIND", "Judge energy, instructions, cpu_time or time."),
    other_machine: bool = option("--other-machine", "Compare also with another kind of machine."),
    strict: bool = option("--strict", "Fail with 1 when noise hides the answer."),
    markdown: str | None = file_option("--markdown FILE", "Write a table for the pull request."),
    given: MeterOptions,
) -> None:
    """Run a command several times, and compare its energy with a baseline.

    Without sensors, instructions or CPU time are compared, and that is said. What the program
    prints goes to standard error.
    """
    from wattloop.cli.commands.run.execution import keep

    path = user_path(baseline)
    machine = Machine.here()
    label = name or shlex.join(command)
    allowed = parse_share(tolerance, "--tolerance")
    wanted = _kind(figure)
    settings = given.settings()
    known = Baselines.read_if_any(path) if update else Baselines.read(path)
    if update:
        check_target(str(path), "--baseline")
        before = None
    else:  # what cannot be compared is said before hours are spent
        before = known.find(label, machine, other_machine=other_machine)
    done = measure_command(
        command, settings, repeats=repeats, warmup=warmup, name=name, told=teller(repeats)
    )
    keep(settings)
    now = collect_series(done.executions)
    kind = _judged(wanted, now, done)
    if before is None:
        taken = Baseline(machine, kind, now, time.time(), __version__)
        known.put(label, taken)
        write_text(known.to_text(), str(path), "--baseline")
        say_taken(label, taken, done, baseline)
        write_json({"name": label, "runs": done.run_ids, **taken.to_dict()}, given.json_file)
        return
    found = compare(
        label, before, now, kind, machine=machine, tolerance=allowed, chosen=wanted is not None
    )
    report(found, done, markdown, given.json_file)
    if found.verdict is EnergyVerdict.UNCLEAR:
        raise typer.Exit(REGRESSION if strict else UNCLEAR)
    raise typer.Exit(REGRESSION if found.verdict is EnergyVerdict.REGRESSION else 0)


def _kind(figure: str | None) -> "FigureKind | None":
    if figure is None:
        return None
    try:
        return FigureKind(figure.replace("-", "_").lower())
    except ValueError:
        raise ConfigError(
            f"--figure {figure}: unknown; choose one of {', '.join(FigureKind)}"
        ) from None


def _judged(
    wanted: "FigureKind | None", now: "dict[FigureKind, FigureSeries]", done: "CommandFigures"
) -> "FigureKind":
    kind = wanted or judged_kind(now)
    if kind is None or kind not in now:
        what = "nothing" if kind is None else f"no {kind.words}"
        reasons = "; ".join(filter(None, (done.reason, *done.notes)))
        raise ConfigError(
            f"{what} could be had of every repeat ({reasons}); choose another --figure"
        )
    return kind
