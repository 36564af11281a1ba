"""The typer application and its verbs; the module of a verb is imported when the verb is used."""

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from wattloop.version import __version__

VERBS: dict[str, tuple[str, str]] = {
    "run": ("wattloop.cli.commands.run.command", "Measure the energy of any program."),
    "devices": (
        "wattloop.cli.commands.devices",
        "Show what can be measured and controlled here.",
    ),
    "watch": ("wattloop.cli.commands.watch", "Show power and energy live."),
    "advise": ("wattloop.cli.commands.advise", "Show what a run wasted, and how to save it."),
    "report": (
        "wattloop.cli.commands.report",
        "Write a report on a run as one HTML file or a PDF.",
    ),
    "runs": (
        "wattloop.cli.commands.runs.command",
        "List, show, compare, export and import measured runs.",
    ),
    "serve": ("wattloop.cli.commands.serve", "Show everything in a browser: the dashboard."),
    "fleet": (
        "wattloop.cli.commands.fleet",
        "Manage tokens of nodes and readers; delete old data.",
    ),
    "set": (
        "wattloop.cli.commands.set",
        "Set power limits, clocks or a governor while a program runs.",
    ),
    "control-daemon": (
        "wattloop.cli.commands.control_daemon",
        "Let users who are not root set levers, within an operator's rules.",
    ),
    "restore": (
        "wattloop.cli.commands.restore",
        "Restore levers that a killed program left changed.",
    ),
    "sweep": (
        "wattloop.cli.commands.sweep.command",
        "Try caps, clocks and GPU counts on a command; find the best.",
    ),
    "analyze": (
        "wattloop.cli.commands.analyze.command",
        "Regression, clusters, Pareto front, quotient over a search, sweep or CSV.",
    ),
    "bench": (
        "wattloop.cli.commands.bench",
        "Time and energy of six kernels, framework by framework.",
    ),
    "tune": (
        "wattloop.cli.commands.tune.command",
        "Find settings that reach the same quality for less energy.",
    ),
    "predict": (
        "wattloop.cli.commands.predict.command",
        "Time, power, energy and memory of a training on a GPU, before it runs.",
    ),
    "calibrate": (
        "wattloop.cli.commands.calibrate",
        "Measure a GPU in minutes, and fit the constants predict uses.",
    ),
    "simulate": (
        "wattloop.cli.commands.simulate.command",
        "Compare scheduling policies on a simulated GPU cluster; plan what to buy.",
    ),
    "study": ("wattloop.cli.commands.study", "Six steps from a need to a proven saving."),
    "card": ("wattloop.cli.commands.card", "Write a model's energy card: SVG, Markdown and JSON."),
    "check": (
        "wattloop.cli.commands.check",
        "Fail a CI job when a command uses more energy than it did.",
    ),
    "cap": ("wattloop.cli.commands.cap", "Find the best GPU power cap with few probes."),
    "idle": ("wattloop.cli.commands.idle", "Measure the idle power of this machine."),
    "slurm": (
        "wattloop.cli.commands.slurm.command",
        "Let a policy run a Slurm cluster: order, places, caps, a power budget.",
    ),
    "agent": ("wattloop.cli.commands.agent", "Measure the energy of jobs on a Slurm node."),
}


"""Verb -> (module with a typer `app`, one line of help)."""


class VerbGroup(TyperGroup):
    """Command group that lists verbs from the table above and imports one only to run it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, (_, summary) in VERBS.items():
            self.commands[name] = TyperCommand(name=name, help=summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Return the imported command in place of the listed one."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in VERBS:
            module = importlib.import_module(VERBS[name][0])
            command = typer.main.get_command(module.app)
            _show_flags_bare(command, ctx)
        return name, command, rest

    def get_help_option(self, ctx: Any) -> Any:
        """Return the help option without its type."""
        option = super().get_help_option(ctx)
        _without_type([*self.params, option])
        return option


def _show_flags_bare(command: Any, ctx: Any) -> None:
    """Remove the type of flags of a verb and of all its commands."""
    _without_type([*command.params, command.get_help_option(ctx)])
    for each in getattr(command, "commands", {}).values():
        _show_flags_bare(each, ctx)


def _without_type(options: list[Any]) -> None:
    """Return a flag without the `<bool>` that newer typers print next to it."""
    for option in options:
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = ""


app = typer.Typer(
    cls=VerbGroup,
    help="Measure, understand and cut the energy of deep-learning training.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"wattloop {__version__}")
        raise typer.Exit


@app.callback()
def _frame(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


RUN = "run"


class UsualCommandGroup(TyperGroup):
    """Command group in which `VERB WORD` means `VERB run WORD` unless WORD is a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `run` unless the first argument is a command or option of the group."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [RUN, *args]
        return list(super().parse_args(ctx, args))

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete commands, options, and options of `run`."""
        own = super().shell_complete(ctx, incomplete)
        names = {item.value for item in own}
        more = self.commands[RUN].shell_complete(ctx, incomplete)
        return [*own, *(item for item in more if item.value not in names)]
