"""`wattloop simulate scenarios`, `policies` and `init`: what can be named, and a file to edit."""

from typing import Annotated

import typer

from wattloop.cli.options import JsonFile
from wattloop.cli.output import check_target, print_table, say, write_json, write_text
from wattloop.core.errors import ConfigError
from wattloop.core.units import format_number
from wattloop.core.user_code import user_path

__all__ = ["init_command", "policies_command", "scenarios_command"]


def scenarios_command(*, json_file: JsonFile = None) -> None:
    """List the scenarios that come with Wattloop."""
    from wattloop.schedule.scenarios.file import shipped_scenarios

    check_target(json_file, "--json")
    known = shipped_scenarios()
    if json_file is not None:
        write_json(known, json_file)
    if json_file != "-":
        print_table(("scenario", "what it is"), list(known.items()))


def policies_command(*, json_file: JsonFile = None) -> None:
    """List the policies, what each ranks jobs by, and its parameters."""
    from dataclasses import asdict

    from wattloop.schedule.policies.registry import describe

    check_target(json_file, "--json")
    cards = describe()
    if json_file is not None:
        write_json([asdict(card) for card in cards], json_file)
    if json_file != "-":
        rows = [
            (
                card.name,
                card.summary,
                ", ".join(f"{name}: {_short(value)}" for name, value in card.parameters.items()),
            )
            for card in cards
        ]
        print_table(("policy", "what it does", "parameters"), rows)


def init_command(
    target: Annotated[
        str, typer.Argument(metavar="FILE.yaml", help="Where to; - is standard output.")
    ] = "scenario.yaml",
    *,
    json_file: JsonFile = None,
) -> None:
    """Write an example of a scenario, to be edited."""
    from wattloop.schedule.scenarios.file import SHIPPED

    check_target(json_file, "--json")
    check_target(target, "FILE")
    if target != "-" and user_path(target).exists():
        raise ConfigError(f"{target}: is there already; name another file, or remove it")
    text = SHIPPED.with_name("example.yaml").read_text(encoding="utf-8")
    write_text(text, target, "FILE")
    if json_file is not None:
        write_json({"file": target}, json_file)
    if target != "-":
        say(f"wattloop: {target} is written; edit it, then: wattloop simulate {target}")


def _short(value: object) -> str:
    """0.00167 for 1/600."""
    return format_number(value, 3) if isinstance(value, float) else str(value)
