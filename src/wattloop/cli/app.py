"""The typer application and its verbs; the module of a verb is imported when the verb is used."""

import functools
import importlib
import inspect
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from wattloop.cli.completion import COMPLETED
from wattloop.cli.options import (
    Config,
    Devices,
    Interval,
    JsonFile,
    Meters,
    OptionSpec,
    StorePlace,
    argument,
    file_option,
    option,
    settings_of,
)
from wattloop.cli.output import check_target, present, set_quiet
from wattloop.core.settings import STORE, Settings
from wattloop.version import __version__

if TYPE_CHECKING:
    from wattloop.store.database import Store

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Measure": {
        "run": ("run.command", "Measure the energy of any program."),
        "watch": ("watch", "Show power and energy live."),
        "runs": ("runs.command", "List (what cost most), show, compare and export measured runs."),
        "bench": ("bench", "Time and energy of six kernels, framework by framework."),
        "idle": ("idle", "Measure the idle power of this machine."),
    },
    "Save": {
        "advise": ("advise", "Show why a run was wasteful, and how to save energy."),
        "savings": ("savings", "Sum up what 'run --save' saved, with intervals and evidence."),
        "set": ("set", "Set power limits, clocks or a governor while a program runs."),
        "carbon": ("carbon", "Show the carbon intensity of the grid, and when to start a job."),
        "study": ("study", "Six steps from a need to a proven saving."),
        "check": ("check", "Fail a CI job when a command uses more energy than it did."),
    },
    "Find": {
        "sweep": ("sweep.command", "Try caps, clocks and GPU counts on a command; find the best."),
        "cap": ("cap", "Find the best GPU power cap with few probes."),
        "tune": ("tune.command", "Find settings that reach the same quality for less energy."),
        "analyze": (
            "analyze.command",
            "Regression, clusters, Pareto front, quotient over a search, sweep or CSV.",
        ),
    },
    "Predict": {
        "predict": (
            "predict.command",
            "Cost, time, energy and memory of a job on another GPU, such as an H100.",
        ),
        "calibrate": ("calibrate", "Measure a GPU in minutes, and fit the constants predict uses."),
    },
    "Schedule": {
        "simulate": (
            "simulate.command",
            "Compare scheduling policies on a simulated GPU cluster; plan what to buy.",
        ),
        "slurm": (
            "slurm.command",
            "Let a policy run a Slurm cluster: order, places, caps, a power budget.",
        ),
        "k8s": ("k8s.command", "Energy of pods, and a policy that orders Jobs, on Kubernetes."),
    },
    "Share": {
        "serve": ("serve", "Show everything in a browser: the dashboard."),
        "report": ("report", "Write a report on a run as one HTML file or a PDF."),
        "card": ("card", "Write a model's energy card: SVG, Markdown and JSON."),
    },
    "Operate": {
        "doctor": ("doctor", "Check this set-up, and print what to fix."),
        "devices": ("devices", "Show what can be measured and controlled here."),
        "restore": ("restore", "Restore levers that a killed program left changed."),
        "agent": ("agent", "Measure the energy of jobs on a node of Slurm or Kubernetes."),
        "fleet": ("fleet", "Show what is wrong on nodes; manage tokens; delete old data."),
        "control-daemon": (
            "control_daemon",
            "Let users who are not root set levers, within an operator's rules.",
        ),
    },
}
"""Group of `--help` -> verb -> (module of `cli.commands` with its `app`, one line of help)."""

VERBS = {verb: entry for verbs in GROUPS.values() for verb, entry in verbs.items()}


class VerbGroup(TyperGroup):
    """Command group that lists verbs from the table above and imports one only to run it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for group, verbs in GROUPS.items():
            for name, (_, summary) in verbs.items():
                self.commands[name] = TyperCommand(name=name, help=summary, rich_help_panel=group)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Return the imported command in place of the listed one."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in VERBS:
            module = importlib.import_module(f"wattloop.cli.commands.{VERBS[name][0]}")
            command = typer.main.get_command(module.app)
            _show_flags_bare(command, ctx)
        return name, command, rest

    def get_help_option(self, ctx: Any) -> Any:
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
    for flag in options:
        if getattr(flag, "is_flag", False) and flag.metavar is None:
            flag.metavar = ""


QUESTIONS = {
    "What cost most in 7 days?": "wattloop runs list --since 7d --sort cost",
    "Which of two runs is better?": "wattloop runs compare RUN RUN",
    "Why was a run wasteful?": "wattloop advise RUN",
    "What would it cost on an H100?": "wattloop predict --run RUN --gpu h100-sxm",
    "Is anything wrong on node7?": "wattloop fleet nodes node7",
}
"""Questions of a newcomer, for the end of `--help`."""
app = typer.Typer(
    cls=VerbGroup,
    help="Measure, understand and cut the energy of deep-learning training.",
    epilog="\n\n".join(
        ["Questions, and the command that answers (RUN: a name, an identifier, or 'last'):"]
        + [f"{question:31} {command}" for question, command in QUESTIONS.items()]
    ),
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
USER_COMMAND = "wattloop.user_command"


class UserCommandGroup(TyperGroup):
    """Command group that takes everything after `--` as the user's command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            end = args.index("--")
            args, ctx.meta[USER_COMMAND] = args[:end], args[end + 1 :]
        return list(super().parse_args(ctx, args))


def user_command(ctx: typer.Context) -> list[str]:
    """Return the words after `--`; empty without any."""
    return list(ctx.meta.get(USER_COMMAND, ()))


class UsualCommandGroup(TyperGroup):
    """Command group in which `VERB WORD` means `VERB run WORD` unless WORD is a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0] if args else None
        is_command = first in self.commands or first in (None, "--help", "-h")
        if not is_command or (first is None and USER_COMMAND in ctx.meta):
            args = [RUN, *args]
        return list(super().parse_args(ctx, args))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, and where the options of `VERB` without a command are."""
        super().format_help(ctx, formatter)
        path = ctx.command_path
        sys.stdout.write(f" Without a command it is '{path} {RUN}';\n")
        sys.stdout.write(f" its options: {path} {RUN} --help\n\n")

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete commands, options, and options and the first argument of `run`."""
        own = super().shell_complete(ctx, incomplete)
        names = {item.value for item in own}
        run = self.commands[RUN]
        first = [p for p in run.params if p.param_type_name == "argument"][:1]
        more = [item for p in first for item in p.shell_complete(ctx, incomplete)]
        more += run.shell_complete(ctx, incomplete)
        return [*own, *(item for item in more if item.value not in names)]


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Options of commands that show what is stored."""

    json_file: JsonFile = None
    store: StorePlace = None
    config: Config = None

    def settings(self, needs: Collection[str] | None = STORE) -> Settings:
        return settings_of(self.config, needs=needs, store=self.store)

    def open_store(self, *, create: bool = False) -> "AbstractContextManager[Store]":
        """Open the store; one that does not exist is not created unless `create`."""
        from wattloop.cli.stored import open_user_store

        return open_user_store(self.store, self.config, create=create)

    def open_existing_store(self) -> "AbstractContextManager[Store | None]":
        from wattloop.cli.stored import open_existing_store

        return open_existing_store(self.store, self.config)

    def present(self, as_data: Callable[[], Any], print_text: Callable[[], None]) -> None:
        present(self.json_file, as_data, print_text)


@dataclass(frozen=True, kw_only=True)
class MeterOptions:
    """Options of commands that measure and store."""

    json_file: JsonFile = None
    interval: Interval = None
    devices: Devices = None
    meters: Meters = None
    store: StorePlace = None
    config: Config = None

    def settings(self) -> Settings:
        given = {name: getattr(self, name) for name in ("interval", "devices", "meters", "store")}
        return settings_of(self.config, **given)


class Verb(typer.Typer):
    """Commands of a verb, declared by `cli.options`.

    A parameter whose type is a dataclass is a group: its fields are options in its place. Every
    command has `-q`, and `-j` where it has `--json`.
    """

    def __init__(self, text: str | None = None, *, example: str = "", **more: Any) -> None:
        no_args = {"no_args_is_help": True} if text else {}
        super().__init__(
            add_completion=False,
            pretty_exceptions_enable=False,
            **{"help": text, "epilog": _epilog(example, ""), **no_args, **more},
        )

    def command(  # type: ignore[override]  # an example is demanded of every command
        self, name: str | None = None, *, example: str, epilog: str = "", **more: Any
    ) -> Callable[[Any], Any]:
        """Add a command; `example` has a command line per line, for the end of its help."""
        return _decorator(super().command(name, epilog=_epilog(example, epilog), **more))

    def callback(self, **more: Any) -> Callable[[Any], Any]:
        return _decorator(super().callback(**more))

    def add_plot(self, verb: str, noun: str, first: Sequence[str], what: str) -> None:
        """Add `plot`, which draws the figures of a subject's report.

        Args:
            verb: that the command is added to, for the help.
            noun: of the argument, such as RUN.
            first: how names of figures begin; the first that exists is drawn by default.
            what: that figure, for the help.
        """

        def plot_command(
            which: Annotated[
                str, argument(noun, "Identifier, its beginning, name, or 'last'.")
            ] = "last",
            *,
            figure: str | None = option("--figure -f NAME", "Another figure by its name, or all."),
            output: str | None = file_option(
                "--output -o FILE", "Write .svg, .png or .html (with every figure)."
            ),
            given: StoreOptions,
        ) -> None:
            from wattloop.cli.plot import plot

            plot(given, which, noun, figure=figure, output=output, first=first)

        example = f"wattloop {verb} plot\nwattloop {verb} plot last -o figure.svg"
        said = f"Draw {what} here, or any figure of the report into a file."
        self.command("plot", example=example, help=said)(plot_command)


def _epilog(example: str, text: str) -> str | None:
    """Format the end of a help page: an example per line, then the text."""
    lines = example.splitlines()
    head = ["Example:" if len(lines) == 1 else "Examples:"] if lines else []
    # typer makes one line of texts without an empty line between them
    return "\n\n".join([*head, *lines, *([text] if text else [])]) or None


def _decorator(register: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that registers a function for typer, and leaves it as it is."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        register(_for_typer(function))
        return function

    return decorate


def _for_typer(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with a signature that typer reads."""
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += map(_typed, _fields(parameter.annotation))
        else:
            parameters.append(_typed(parameter))
    json_file = next((p.name for p in parameters if _is_json(p)), None)
    if json_file is not None:
        after = 1 + [p.name for p in parameters].index(json_file)
        parameters.insert(after, _flag("as_json", "-j", "Print the result as JSON: --json -."))
    if not any(p.name == "quiet" for p in parameters):
        parameters.append(_flag("is_quiet", "--quiet", "-q", QUIET))

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        if given.pop("is_quiet", False):
            set_quiet(True)
        if given.pop("as_json", False) and json_file is not None:
            given[json_file] = given[json_file] or "-"
        for name, group in groups.items():
            own = {field.name: given.pop(field.name) for field in fields(group)}
            given[name] = group(**own)
        command(**given)

    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # any may
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    del wrapped.__wrapped__  # or its signature would be read
    return wrapped


QUIET = "Print results, warnings and errors only."


def _flag(name: str, *words: str) -> inspect.Parameter:
    """Return a flag for typer: its option names, then its help."""
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[bool, typer.Option(*words[:-1], help=words[-1])],
        default=False,
    )


def _is_json(parameter: inspect.Parameter) -> bool:
    known = [each for each in get_args(parameter.annotation) if hasattr(each, "param_decls")]
    # typer takes the first name of an option in an `Annotated` for its default, until it reads it
    return any("--json" in (each.default, *(each.param_decls or ())) for each in known)


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(group)
    ]


def _typed(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return the parameter with typer's annotation and plain default."""
    annotation, default = parameter.annotation, parameter.default
    if isinstance(default, OptionSpec):
        spec, default = default, _default_of(default, annotation)
    elif get_origin(annotation) is Annotated and isinstance(get_args(annotation)[1], OptionSpec):
        annotation, spec = get_args(annotation)
    else:
        return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    place = (spec.metavar or "").removesuffix("...")
    completer = COMPLETED.get(f"{spec.names[0]} {place}" if spec.names else place)
    if not spec.names:
        known = typer.Argument(metavar=spec.metavar, help=spec.text, autocompletion=completer)
    else:
        known = typer.Option(
            *spec.names,
            metavar=spec.metavar,
            help=spec.text,
            callback=_check_writable if spec.is_file else None,
            autocompletion=completer,
            **spec.more,
        )
    return inspect.Parameter(
        parameter.name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[annotation, known],
        default=default,
    )


def _default_of(spec: OptionSpec, annotation: Any) -> Any:
    """Return the stated default; else a flag is off, and what may be None is not given."""
    if spec.default is not ...:
        return spec.default
    if annotation is bool:
        return False
    return None if type(None) in get_args(annotation) else inspect.Parameter.empty


def _check_writable(param: typer.CallbackParam, value: str | None) -> str | None:
    """Refuse a file that cannot be written before hours are spent on its content."""
    check_target(value, param.opts[0])
    return value


@contextmanager
def stopping(event: threading.Event | None = None) -> Iterator[threading.Event]:
    """Set the event on SIGTERM and Ctrl-C; the earlier handlers are restored."""
    stop = event or threading.Event()

    def ask(number: int, frame: object) -> None:
        del number, frame
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
