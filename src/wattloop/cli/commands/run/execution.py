"""Execution of `wattloop run`; imports nothing that would delay the program."""

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args

from wattloop.cli.options import (
    Config,
    Devices,
    Interval,
    JsonFile,
    Meters,
    Pue,
    StorePlace,
    Tariff,
    Zone,
    file_option,
    option,
    option_amount,
    settings_of,
)
from wattloop.cli.output import (
    DOMAIN_HEADERS,
    check_target,
    domain_rows,
    remarks,
    say,
    table_text,
    terminal_room,
    write_json,
    write_text,
)
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.core.units import Dimension, format_duration, format_energy
from wattloop.integrations.step_hook.program import StepHook
from wattloop.measure.command import CommandRun, ProgramHook, run_command
from wattloop.measure.session import RunResult
from wattloop.store.journal import journal_directory, read_journal

if TYPE_CHECKING:
    from wattloop.cap.saver.saving_hook import SavingHook
    from wattloop.integrations.run_phases import StepTotals
    from wattloop.integrations.serving import ServingTotals

NOT_MEASURED = "wattloop: nothing was measured"


def print_summary(
    done: CommandRun, totals: "StepTotals | None" = None, serving: "ServingTotals | None" = None
) -> None:
    """Print a line, those of steps, phases and a server; on a terminal a table of many domains."""
    run = done.run
    if run is None:
        say(NOT_MEASURED)
        return
    line = run.summary if run.energy_j is not None and run.summary else plain_line(run)
    part = "" if run.counted or not run.reported else f", part of run {run.counted_by}"
    say(f"{line} | run {run.run_id}{part}")
    if totals is not None:
        from wattloop.integrations.run_phases import format_totals

        for line in format_totals(totals):
            say(f"wattloop: {line}")
    if serving is not None:
        from wattloop.integrations.serving import format_serving

        for line in format_serving(serving):
            say(f"wattloop: {line}")
    if run.saving is not None:
        from wattloop.cap.saver.proof import SavingResult, format_saving

        say(f"wattloop: {format_saving(SavingResult.from_dict(run.saving))}")
    room = terminal_room(sys.stderr)
    if room is not None:
        rows = domain_rows(run.result) if run.reported else []
        table = table_text(DOMAIN_HEADERS, rows, room - 2) if len(rows) > 1 else ""
        for line in (*table.splitlines(), *remarks(run.missing, run.result.warnings)):
            say(f"  {line}")
    else:
        for left_out in run.left_out:
            say(f"wattloop: {left_out.text}")
        if run.shared is not None:
            say(f"wattloop: {run.shared.text(run.result.energy_j)}")
    if done.outcome.left_running:
        say(
            f"wattloop: {done.outcome.left_running} process(es) it started still run and are no "
            "longer measured; --follow waits for them"
        )


def broken_wishes(done: CommandRun, settings: Settings) -> list[str]:
    """Explain missing carbon to a user who asked for it, e.g. because of a misspelt zone."""
    asked = settings.zone or settings.carbon_url or settings.carbon_file or settings.carbon_provider
    if not asked or done.run is None or done.run.energy_j is None:
        return []
    reason = done.run.accounting.get("carbon_reason")
    return [f"no carbon: {reason}"] if reason else []


def plain_line(run: RunResult) -> str:
    """Format total energy and duration."""
    lasted = format_duration(run.result.duration_s)
    if not run.reported:
        return f"wattloop: ended after {lasted}; energy is counted by run {run.counted_by}"
    energy_j = run.energy_j
    if energy_j is None:
        return f"{NOT_MEASURED} in {lasted}; 'wattloop devices' says why"
    kind = run.result.provenance
    partial = "" if run.result.complete else ", incomplete"
    return f"wattloop: {format_energy(energy_j)} ({kind}{partial}) in {lasted}"


def run_json(
    done: CommandRun,
    tags: dict[str, str],
    totals: "StepTotals | None" = None,
    serving: "ServingTotals | None" = None,
) -> dict[str, Any]:
    """Return the run as plain data with every documented key, also when nothing was measured."""
    data: dict[str, Any] = {
        "run_id": None,
        "duration_s": None,
        "energy_j": None,
        "complete": False,
        "domains": [],
        "missing": [{"name": "node", "reason": w} for w in done.warnings],
        "carbon_g": None,
        "cost": None,
        "labels": {},
        "saving": None,
    }
    if done.run is not None:
        data = done.run.to_dict()
    data["exit_code"] = done.outcome.exit_code
    data["signal"] = done.outcome.signal
    data["left_running"] = done.outcome.left_running
    data["tags"] = tags
    data["step_totals"] = None if totals is None else totals.to_dict()
    data["serving"] = None if serving is None else serving.to_dict()
    data["notes"] = list(done.warnings)
    return data


def write_prometheus(
    done: CommandRun, target: str, tags: dict[str, str], totals: "StepTotals | None" = None
) -> None:
    """Write a file for node_exporter's textfile collector."""
    from wattloop.store.formats.prometheus import text_of
    from wattloop.store.runs import RunRecord

    run = done.run
    if run is None:
        return
    record = RunRecord(
        run_id=run.run_id,
        name=run.result.name,
        status=run.status,
        started_wall_s=run.started_wall_s,
        exit_code=done.outcome.exit_code,
        result=run.result,
        accounting=dict(run.accounting),
        counted=run.counted,
        counted_by=run.counted_by,
        shared=None if run.shared is None else run.shared.to_dict(),
        tags=dict(tags),
    )
    known = {run.run_id: totals.to_dict()} if totals and totals.steps else {}
    write_text(text_of([record], known), target, "--prometheus")


FOLD_TIMEOUT_S = 2.0
"""How long to wait for a store that another process holds; the journal keeps the run meanwhile."""
ADVISED_FROM_S = 20.0
"""Shorter runs are not worth the fraction of a second that looking for advice takes."""


@dataclass(slots=True)
class RunOptions:
    """Options of `wattloop run`; None means not given."""

    name: Annotated[str, option("--name -n", "What the run is called.")] = ""
    tag: Annotated[list[str] | None, option("--tag -t KEY=VALUE", "A label; repeat.")] = None
    follow: Annotated[
        bool, option("--follow --wait-children", "Also wait for processes it leaves behind.")
    ] = False
    quiet: Annotated[bool, option("--quiet -q", "Print no summary.")] = False
    json_file: JsonFile = None
    prometheus: Annotated[
        str | None, file_option("--prometheus FILE", "Write a Prometheus text file.")
    ] = None
    no_steps: Annotated[
        bool, option("--no-steps", "Do not look for training steps in Python programs.")
    ] = False
    serving: Annotated[
        str | None,
        option(
            "--serving URL",
            "Metrics of a language-model server (vLLM, SGLang, TGI, llama.cpp): energy per token.",
        ),
    ] = None
    save: Annotated[
        bool, option("--save", "Lower the GPUs' power while it trains, within a slowdown limit.")
    ] = False
    max_slowdown: Annotated[
        str | None,
        option("--max-slowdown SHARE", "With --save: how much longer it may take (5%), or none."),
    ] = None
    metric: Annotated[
        str | None,
        option("--metric NAME", "With --save: energy (default), eds or edp, within the limit."),
    ] = None
    reference_share: Annotated[
        str | None,
        option("--reference-share SHARE", "With --save: time at full power, as proof (2%)."),
    ] = None
    observe: Annotated[
        bool, option("--observe", "With --save: set nothing, say what could be saved.")
    ] = False
    metrics_port: Annotated[
        str | None,
        option("--metrics-port PORT", "Live metrics at this port or host:port, or to an OTLP URL."),
    ] = None
    when_green: Annotated[
        str | None,
        option(
            "--when-green DELAY",
            "Wait up to this long, such as 12h, for the hours with the least carbon.",
        ),
    ] = None
    lasts: Annotated[
        str | None, option("--lasts TIME", "With --when-green: how long it will run (1h).")
    ] = None
    interval: Interval = None
    devices: Devices = None
    meters: Meters = None
    share: Annotated[
        str | None,
        option("--share HOW", "device: all of each device. process: the program's part, modelled."),
    ] = None
    pue: Pue = None
    zone: Zone = None
    tariff: Tariff = None
    store: StorePlace = None
    config: Config = None


FLAGS = ("follow", "quiet", "no_steps", "save", "observe")
SETTINGS = ("interval", "devices", "meters", "share", "pue", "zone", "tariff", "store")
WORDS: dict[str, str] = {
    word: name
    for name, hint in RunOptions.__annotations__.items()
    for word in get_args(hint)[1].names
}
"""Option -> field."""


def quick(words: list[str]) -> tuple[list[str], RunOptions] | None:
    """Parse a plain command line without typer; None when typer has to parse it."""
    options = RunOptions()
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word, separator, value = rest.pop(0).partition("=")
        if word == "--" and not separator:
            break
        if word == "-j" and not separator:
            options.json_file = options.json_file or "-"
            continue
        name = WORDS.get(word)
        if name is None or (separator and not word.startswith("--")):
            return None
        if name in FLAGS:
            if separator:
                return None
            setattr(options, name, True)
            continue
        if not separator:
            if not rest:
                return None
            value = rest.pop(0)
        setattr(options, name, [*(options.tag or ()), value] if name == "tag" else value)
    return (rest, options) if rest else None


def execute(command: list[str], options: RunOptions) -> int:
    """Measure the program; return its exit code."""
    settings = settings_of(options.config, **{name: getattr(options, name) for name in SETTINGS})
    check_target(options.json_file, "--json")
    check_target(options.prometheus, "--prometheus")
    tags = _tags(options.tag or [])
    if options.lasts is not None and options.when_green is None:
        raise ConfigError("--lasts is for the start; add --when-green 12h")
    if options.when_green is not None:
        from wattloop.cli.commands.carbon import wait_until_green

        wait_until_green(settings, options.when_green, options.lasts or "1h")
    hook = None if options.no_steps else StepHook()
    hooks: list[ProgramHook] = [] if hook is None else [hook]
    saving = _saving(command, options, hook)
    hooks += [] if saving is None else [saving]
    if options.metrics_port is not None:
        from wattloop.measure.metrics_endpoint import RunMetrics
        from wattloop.measure.run_journal import RunProgress

        progress = RunProgress if hook is None else (lambda: hook.progress)
        hooks.append(RunMetrics(options.metrics_port, progress))
    server = None
    if options.serving is not None:
        from wattloop.integrations.serving import ServingHook, check_address

        server = ServingHook(check_address(options.serving))
        hooks.append(server)
    done = run_command(
        command, settings, name=options.name, tags=tags, follow=options.follow, hooks=hooks
    )
    totals = None if hook is None else hook.totals
    with suppress(KeyboardInterrupt), _interruptible():
        _finish(done, settings, options, tags, totals, None if server is None else server.totals)
    return done.outcome.exit_code


def _saving(command: list[str], options: RunOptions, hook: StepHook | None) -> "SavingHook | None":
    """Return the saver; None without --save. Raises ConfigError for options that do not fit."""
    given = {
        "--max-slowdown": options.max_slowdown,
        "--metric": options.metric,
        "--reference-share": options.reference_share,
        "--observe": options.observe,
    }
    if not options.save:
        for name, value in given.items():
            if value:
                raise ConfigError(f"{name} is for the saver; add --save")
        return None
    if hook is None:
        raise ConfigError("--save needs the program's steps; leave out --no-steps")
    from wattloop.cap.saver.saver import SaverConfig
    from wattloop.cap.saver.saving_hook import SavingHook

    if options.metric not in (None, *SAVER_METRICS):
        raise ConfigError(f"--metric {options.metric}: use one of {', '.join(SAVER_METRICS)}")
    chosen: dict[str, Any] = {"observe": options.observe, "metric": options.metric or "energy"}
    if options.max_slowdown is not None:
        limit = options.max_slowdown
        chosen["max_slowdown"] = None if limit == "none" else _share(limit, "--max-slowdown", 1.0)
    if options.reference_share is not None:
        chosen["reference_share"] = _share(options.reference_share, "--reference-share", 0.5)
    return SavingHook(hook, SaverConfig(**chosen), command)


SAVER_METRICS = ("energy", "eds", "edp")


def _share(text: str, name: str, most: float) -> float:
    value = option_amount(text, name, Dimension.SHARE, "a share; write it as 5% or 0.05")
    if not 0 <= value <= most:
        raise ConfigError(f"{name} {text}: give a share from 0 to {100 * most:g}%, such as 5%")
    return value


RAISED = ("SIGTERM", "SIGHUP", "SIGQUIT")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Exit with the program's exit code also when interrupted while reporting."""
    raised = [getattr(signal, name) for name in RAISED if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in raised}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _finish(
    done: CommandRun,
    settings: Settings,
    options: RunOptions,
    tags: dict[str, str],
    totals: "StepTotals | None",
    serving: "ServingTotals | None",
) -> None:
    """Report and store the run. Nothing in here may change the program's exit code."""
    for warning in (*done.warnings, *broken_wishes(done, settings)):
        say(f"wattloop: warning: {warning}")
    steps: list[Callable[[], None]] = []
    if not options.quiet:
        steps.append(lambda: print_summary(done, totals, serving))
    if options.json_file is not None:
        target = options.json_file
        steps.append(lambda: write_json(run_json(done, tags, totals, serving), target))
    if options.prometheus is not None:
        text_file = options.prometheus
        steps.append(lambda: write_prometheus(done, text_file, tags, totals))
    if done.journaled and not _left_to_another(done):
        asked = None if options.quiet or done.run is None else done.run
        run_id = "" if done.run is None else done.run.run_id
        steps.append(lambda: keep(settings, asked, run_id))
    for step in steps:
        try:
            step()
        except KeyboardInterrupt:
            say("wattloop: interrupted; the run is in its journal and will be kept next time")
            return
        except BrokenPipeError:
            pass  # the reader of our output has closed it
        except Exception as error:  # noqa: BLE001 - a step that fails must not stop the others
            say(f"wattloop: warning: {error}")


def _left_to_another(done: CommandRun) -> bool:
    """Return True for a rank whose node another rank counts: that one imports its journal.

    Sixty-four ranks that end together and all want to write would only wait for each other.
    """
    return done.run is not None and not done.run.counted and done.run.counted_by is not None


def keep(settings: Settings, run: "RunResult | None" = None, run_id: str = "") -> None:
    """Import the finished journal, and those of crashed runs, into the store.

    Then say what `run` has wasted, if it was long enough for that to matter. Where the store
    refuses, say what the journal of `run_id` holds.
    """
    with _without_collecting():
        from wattloop.core.errors import StoreError
        from wattloop.measure.recovery import finalize_orphaned_run
        from wattloop.store.sqlite_import import import_ended

        advised = run is not None and run.result.duration_s >= ADVISED_FROM_S
        if import_ended(settings.store_location, finalize_orphaned_run) and not advised:
            return
        from wattloop.store.database import open_store
        from wattloop.store.journal_import import import_orphaned

        try:
            with open_store(settings.store_location, FOLD_TIMEOUT_S) as store:
                for folded in import_orphaned(store, finalize_orphaned_run):
                    if folded.note:
                        say(f"wattloop: warning: {folded.note}")
                if run is not None and advised:
                    from wattloop.cli.commands.advise import say_advice

                    say_advice(store, run.run_id, settings)
        except StoreError as error:
            say(f"wattloop: warning: the run is not in the store yet: {error}")
            if run_id:
                say(f"wattloop: {_waiting(settings, run_id)}")


def _waiting(settings: Settings, run_id: str) -> str:
    """Return what waits for the store, judged by the journal's content."""
    from wattloop.measure.recovery import finalize_orphaned_run

    path = journal_directory(settings.store_location) / f"{run_id}.journal"
    try:
        journal = read_journal(path)
    except OSError:
        journal = None
    if journal is None:
        return "no journal of this run is left: it will not be in the store"
    end = journal.end or finalize_orphaned_run(journal)
    energy_j = end["result"]["energy_j"]
    text = "no energy" if energy_j is None else format_energy(energy_j)
    return (
        f"its journal {path} holds {text}, status {end['status']}; the next wattloop command that "
        "can write to the store imports it"
    )


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Disable garbage collection: the end of the process frees everything anyway.

    Loading SQLAlchemy is most of what folding a short run takes, and this a third of loading it.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _tags(pairs: list[str]) -> dict[str, str]:
    tags = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"--tag {pair}: write it as key=value, such as model=resnet50")
        tags[key.strip()] = value
    return tags
