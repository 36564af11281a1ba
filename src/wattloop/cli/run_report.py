"""What `wattloop run` tells about a finished run."""

import sys
from typing import Any

from wattloop.cli.output import say, table_text, terminal_room, write_json, write_text
from wattloop.cli.result_view import DOMAIN_HEADERS, domain_rows, remarks
from wattloop.core.settings import Settings
from wattloop.core.units import format_duration, format_energy
from wattloop.measure.command import CommandRun
from wattloop.measure.run_result import RunResult

__all__ = ["broken_wishes", "print_summary", "run_json", "write_prometheus", "write_run_json"]

NOT_MEASURED = "wattloop: nothing was measured"


def print_summary(done: CommandRun) -> None:
    """One line for logs; a small table below it for a person at a terminal."""
    run = done.run
    if run is None:
        say(NOT_MEASURED)
        return
    line = run.summary if run.energy_j is not None and run.summary else plain_line(run)
    part = "" if run.counted or not run.reported else f", part of run {run.counted_by}"
    say(f"{line} | run {run.run_id}{part}")
    room = terminal_room(sys.stderr)
    if room is not None:
        rows = domain_rows(run.result) if run.reported else []
        table = table_text(DOMAIN_HEADERS, rows, room - 2) if rows else ""
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
    """Why there is no carbon, for who asked for it: a misspelt zone must not pass in silence."""
    asked = settings.zone or settings.carbon_url or settings.carbon_file
    if not asked or done.run is None or done.run.energy_j is None:
        return []
    reason = done.run.accounting.get("carbon_reason")
    return [f"no carbon: {reason}"] if reason else []


def plain_line(run: RunResult) -> str:
    """Total and duration."""
    lasted = format_duration(run.result.duration_s)
    if not run.reported:
        return f"wattloop: ended after {lasted}; energy is counted by run {run.counted_by}"
    energy_j = run.energy_j
    if energy_j is None:
        return f"{NOT_MEASURED} in {lasted}; 'wattloop devices' says why"
    kind = run.result.provenance
    partial = "" if run.result.complete else ", incomplete"
    return f"wattloop: {format_energy(energy_j)} ({kind}{partial}) in {lasted}"


def write_run_json(done: CommandRun, target: str, tags: dict[str, str]) -> None:
    """Write the JSON that `--json` promises; a failure is a warning, the program has ended."""
    write_json(run_json(done, tags), target)


def run_json(done: CommandRun, tags: dict[str, str]) -> dict[str, Any]:
    """The run as plain data; every promised key is there, also when nothing was measured."""
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
    }
    if done.run is not None:
        data = done.run.to_dict()
    data["exit_code"] = done.outcome.exit_code
    data["signal"] = done.outcome.signal
    data["left_running"] = done.outcome.left_running
    data["tags"] = tags
    data["notes"] = list(done.warnings)
    return data


def write_prometheus(done: CommandRun, target: str, tags: dict[str, str]) -> None:
    """Write the text file that node_exporter's textfile collector reads."""
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
    write_text(text_of([record]), target, "--prometheus")
