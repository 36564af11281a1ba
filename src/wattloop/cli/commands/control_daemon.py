"""`wattloop control-daemon`: set levers for users without root, within an operator's rules."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from wattloop.cli.app import Verb
from wattloop.cli.options import JsonFile, option
from wattloop.cli.output import print_rows, say, write_json
from wattloop.core.files import user_path

app = Verb(
    "Let users who are not root set levers, within an operator's rules.",
    example="wattloop control-daemon --check\nwattloop control-daemon log --lines 20",
    no_args_is_help=False,
)
RULES = "/etc/wattloop/control.yaml"
RulesFile = Annotated[str, option("--rules FILE", "The operator's rules, owned by root.")]


@app.callback(invoke_without_command=True)
def control_daemon(
    ctx: typer.Context,
    *,
    rules: RulesFile = RULES,
    socket: str | None = option("--socket PATH", "In place of the rules' own."),
    check: bool = option("--check", "Say what the rules allow on this machine; start nothing."),
    json_file: JsonFile = None,
) -> None:
    """Serve until SIGTERM; SIGHUP reads the rules again.

    What a client sets is put back when it goes, however it goes.
    """
    if ctx.invoked_subcommand is not None:
        return
    from wattloop.control.daemon.rules import read_rules

    read = read_rules(user_path(rules))
    if check:
        from wattloop.control.daemon.rules import describe_rules

        lines = describe_rules(read)
        write_json({"rules": str(read.path), "socket": str(read.socket), "lines": lines}, json_file)
        if json_file != "-":
            for line in lines:
                sys.stdout.write(line + "\n")
        return
    from wattloop.control.daemon.server import Server

    server = Server(read, user_path(socket) if socket else None)
    say(f"wattloop: control daemon at {server.path}, rules of {read.path}")
    server.run()
    write_json({"rules": str(read.path), "socket": str(server.path), "ended": True}, json_file)


@app.command(
    "log",
    example="wattloop control-daemon log --lines 20\n"
    "wattloop control-daemon log --refused --user alice",
)
def log(
    *,
    rules: RulesFile = RULES,
    file: str | None = option("--log FILE", "In place of the rules' own."),
    lines: int = option("--lines", "The last so many.", 50, min=1),
    user: str | None = option("--user", "Only of this user."),
    lever: str | None = option("--lever", "Only of this lever, such as gpu:0/power_limit."),
    refused: bool = option("--refused", "Only what was refused."),
    json_file: JsonFile = None,
) -> None:
    """Show changes and refusals, the newest last."""
    from wattloop.control.daemon.audit_log import REFUSALS, read_log

    records = [
        record
        for record in read_log(_log_path(rules, file))
        if (user is None or user in (record.get("user"), str(record.get("uid"))))
        and (lever is None or record.get("lever") == lever)
        and (not refused or record["event"] in REFUSALS)
    ][-lines:]
    write_json(records, json_file)
    if json_file != "-":
        headers = ("time", "event", "user", "process", "lever", "before", "after", "why")
        print_rows(headers, [_row(record) for record in records], spare=("process",))


def _log_path(rules: str, file: str | None) -> Path:
    if file is not None:
        return user_path(file)
    from wattloop.control.daemon.rules import read_rules

    return read_rules(user_path(rules)).log


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    keys = ("time", "event", "user", "pid", "lever", "before", "after", "why")
    cells = ["" if record.get(key) is None else str(record[key]) for key in keys]
    if record.get("job"):
        cells[2] += f" (job {record['job']})"
    if record.get("fault"):
        cells[-1] += f": {record['fault']}"
    if record.get("unlisted_before"):
        cells[-1] += f" (and {record['unlisted_before']} like it before)"
    # what users sent stands in it, and this reaches a terminal
    return tuple("".join(c if c.isprintable() else "?" for c in cell) for cell in cells)
