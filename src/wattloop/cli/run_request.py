"""What `wattloop run` was asked to do, and doing it. Loads nothing that the program waits for."""

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattloop.cli.chosen import settings_of
from wattloop.cli.output import check_target, say
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.measure.command import CommandRun, run_command

if TYPE_CHECKING:
    from wattloop.measure.run_result import RunResult

__all__ = ["RunRequest", "execute", "keep", "quick"]

FOLD_TIMEOUT_S = 2.0
"""How long to wait for a store that another process holds; the journal keeps the run meanwhile."""

ADVISED_FROM_S = 20.0
"""Shorter runs are not worth the fraction of a second that looking for advice takes."""


@dataclass(slots=True)
class RunRequest:
    """One field per option of `wattloop run`; None means not given."""

    command: list[str] = field(default_factory=list)
    name: str = ""
    tag: list[str] = field(default_factory=list)
    follow: bool = False
    quiet: bool = False
    json_file: str | None = None
    prometheus: str | None = None
    interval: str | None = None
    devices: str | None = None
    meters: str | None = None
    share: str | None = None
    pue: str | None = None
    zone: str | None = None
    tariff: str | None = None
    store: str | None = None
    config: str | None = None


WORDS = {
    "--name": "name",
    "-n": "name",
    "--tag": "tag",
    "-t": "tag",
    "--follow": "follow",
    "--wait-children": "follow",
    "--quiet": "quiet",
    "-q": "quiet",
    "--json": "json_file",
    "--prometheus": "prometheus",
    "--interval": "interval",
    "-i": "interval",
    "--devices": "devices",
    "--meters": "meters",
    "--share": "share",
    "--pue": "pue",
    "--zone": "zone",
    "--tariff": "tariff",
    "--store": "store",
    "--config": "config",
}
"""Option -> field. The same options with their help are in `run.py`."""


def quick(words: list[str]) -> RunRequest | None:
    """The request of a plain command line; None for whatever needs a word of explanation."""
    request = RunRequest()
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word, separator, value = rest.pop(0).partition("=")
        if word == "--" and not separator:
            break
        name = WORDS.get(word)
        if name is None or (separator and not word.startswith("--")):
            return None
        if name in ("follow", "quiet"):
            if separator:
                return None
            setattr(request, name, True)
            continue
        if not separator:
            if not rest:
                return None
            value = rest.pop(0)
        if name == "tag":
            request.tag.append(value)
        else:
            setattr(request, name, value)
    request.command = rest
    return request if rest else None


def execute(request: RunRequest) -> int:
    """Measure the program; returns its exit code."""
    settings = settings_of(
        request.config,
        interval=request.interval,
        devices=request.devices,
        meters=request.meters,
        share=request.share,
        pue=request.pue,
        zone=request.zone,
        tariff=request.tariff,
        store=request.store,
    )
    check_target(request.json_file, "--json")
    check_target(request.prometheus, "--prometheus")
    tags = _tags(request.tag)
    done = run_command(
        request.command, settings, name=request.name, tags=tags, follow=request.follow
    )
    with suppress(KeyboardInterrupt), _interruptible():
        _finish(done, settings, request, tags)
    return done.outcome.exit_code


@contextmanager
def _interruptible() -> Iterator[None]:
    """Whoever ends us while we report gets the program's exit code all the same."""
    raised = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
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
    done: CommandRun, settings: Settings, request: RunRequest, tags: dict[str, str]
) -> None:
    """Report and keep the run. Nothing in here may change the program's exit code."""
    from wattloop.cli import run_report

    for warning in (*done.warnings, *run_report.broken_wishes(done, settings)):
        say(f"wattloop: warning: {warning}")
    steps: list[Callable[[], None]] = []
    if not request.quiet:
        steps.append(lambda: run_report.print_summary(done))
    if request.json_file is not None:
        target = request.json_file
        steps.append(lambda: run_report.write_run_json(done, target, tags))
    if request.prometheus is not None:
        text_file = request.prometheus
        steps.append(lambda: run_report.write_prometheus(done, text_file, tags))
    if done.journaled and not _left_to_another(done):
        asked = None if request.quiet or done.run is None else done.run
        run_id = "" if done.run is None else done.run.run_id
        steps.append(lambda: keep(settings, asked, run_id))
    for step in steps:
        try:
            step()
        except KeyboardInterrupt:
            say("wattloop: interrupted; the run is in its journal and will be kept next time")
            return
        except BrokenPipeError:
            pass  # whoever read our output has seen enough
        except Exception as error:  # noqa: BLE001 - a step that fails must not stop the others
            say(f"wattloop: warning: {error}")


def _left_to_another(done: CommandRun) -> bool:
    """A rank whose node another one counts leaves its journal to that one, or to whoever looks.

    Sixty-four ranks that end together and all want to write would only wait for each other.
    """
    return done.run is not None and not done.run.counted and done.run.counted_by is not None


def keep(settings: Settings, run: "RunResult | None" = None, run_id: str = "") -> None:
    """Fold the finished journal, and those of runs that died, into the store.

    Then say what `run` has wasted, if it was long enough for that to matter. Where the store
    refuses, say what the journal of `run_id` holds.
    """
    with _without_collecting():
        from wattloop.core.errors import StoreError
        from wattloop.measure.recovery import finalize_orphaned_run
        from wattloop.store.database import open_store
        from wattloop.store.journal_import import import_orphaned

        try:
            with open_store(settings.store_location, FOLD_TIMEOUT_S) as store:
                for folded in import_orphaned(store, finalize_orphaned_run):
                    if folded.note:
                        say(f"wattloop: warning: {folded.note}")
                if run is not None and run.result.duration_s >= ADVISED_FROM_S:
                    from wattloop.cli.advise import say_advice

                    say_advice(store, run.run_id, settings)
        except StoreError as error:
            say(f"wattloop: warning: the run is not in the store yet: {error}")
            if run_id:
                say(f"wattloop: {_waiting(settings, run_id)}")


def _waiting(settings: Settings, run_id: str) -> str:
    """What waits for the store, by what is in the file: not by what was written to it."""
    from wattloop.core.units import format_energy
    from wattloop.measure.recovery import finalize_orphaned_run
    from wattloop.store.journal import journal_directory, read_journal

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
    """No search for garbage, here and at exit, among what only the end of the process frees.

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
