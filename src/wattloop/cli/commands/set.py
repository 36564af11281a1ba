"""`wattloop set LEVER=VALUE ... -- CMD`: change levers while a program runs."""

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from wattloop.cli.app import Verb
from wattloop.cli.commands.restore import restore_leftovers
from wattloop.cli.options import Config, JsonFile, argument, option, settings_of
from wattloop.cli.output import say, write_json
from wattloop.control.lever import Lever, Setting, parse_setting
from wattloop.control.registry import find_levers, levers_named
from wattloop.control.session import LeverSession, lever_session
from wattloop.core.errors import ConfigError, LeverError
from wattloop.core.process import find_program
from wattloop.core.settings import SENSORS
from wattloop.hardware.host import Host
from wattloop.measure.command import Supervisor
from wattloop.meters.base import Context

app = Verb()
NOT_RESTORED = 1
EXAMPLE = "wattloop set gpu/power_limit=70% cpu/governor=powersave -- python train.py"


@app.command(
    "set",
    context_settings={"allow_interspersed_args": False},
    example=EXAMPLE,
    epilog="'wattloop devices' lists the levers. The exit code is the program's own.",
)
def set_levers(
    words: list[str] = argument(
        "LEVER=VALUE... -- PROGRAM", "What to set, then what to run meanwhile."
    ),
    *,
    dry_run: bool = option("--dry-run", "Show every write; write and run nothing."),
    guardian: bool = option(
        "--guardian/--no-guardian",
        "Start a small process that restores everything if wattloop is killed.",
        True,
    ),
    json_file: JsonFile = None,
    config: Config = None,
) -> None:
    """Set power limits, clocks or a governor while a program runs, then restore them.

    They are restored however the program or wattloop ends. Values are watts, MHz, shares
    such as 70%, names, or default.
    """
    pairs, command = _split(words)
    if not command and not dry_run:
        raise ConfigError(f"name the program after '--', such as: {EXAMPLE}")
    if command:
        find_program(command[0])
    if not dry_run:
        restore_leftovers()
    levers = find_levers(Context(Host.from_environment(), settings_of(config, needs=SENSORS)))
    chosen = _chosen(levers, pairs)
    held = lever_session([lever for lever, _ in chosen], dry_run=dry_run, guardian=guardian)
    values = {lever.name: value for lever, value in chosen}
    code = _shown(held, values) if dry_run else _run(held, values, command)
    write_json(_report(held, values, code), json_file)
    raise typer.Exit(code)


def _split(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    count = words.index("--") if "--" in words else len(words)
    pairs = []
    for word in words[:count]:
        name, separator, value = word.partition("=")
        if not separator or not name or not value:
            hint = "" if "--" in words else " (and the program after '--')"
            raise ConfigError(f"{word!r}: write settings as LEVER=VALUE{hint}, such as: {EXAMPLE}")
        pairs.append((name, value))
    if not pairs:
        raise ConfigError(f"nothing to set; write settings as LEVER=VALUE, such as: {EXAMPLE}")
    return pairs, list(words[count + 1 :])


def _chosen(
    levers: Sequence[Lever], pairs: Sequence[tuple[str, str]]
) -> list[tuple[Lever, Setting]]:
    chosen: dict[str, tuple[Lever, Setting]] = {}
    for name, text in pairs:
        for lever in levers_named(levers, name):
            if lever.name in chosen:
                raise ConfigError(f"{lever.name} is set twice; give one value")
            chosen[lever.name] = (lever, parse_setting(text, lever))
    return list(chosen.values())


def _shown(held: LeverSession, values: dict[str, Setting]) -> int:
    with held:
        held.set(values)
    for line in held.writes:
        sys.stdout.write(line + "\n")
    return 0


def _run(held: LeverSession, values: dict[str, Setting], command: Sequence[str]) -> int:
    outcome = None
    with Supervisor() as supervisor:
        try:
            with held:
                held.set(values)
                outcome = supervisor.run(command, dict(os.environ))
        except LeverError as error:
            if outcome is None:
                raise
            # the program has run; what it returned counts, unless it hides that this failed
            say(f"wattloop: {error}")
            return outcome.exit_code or NOT_RESTORED
    return outcome.exit_code


def _report(held: LeverSession, values: dict[str, Setting], code: int) -> dict[str, Any]:
    return {
        "set": values,
        "previous": held.previous,
        "writes": held.writes,
        "restored": [result.to_dict() for result in held.restored],
        "exit_code": code,
    }
