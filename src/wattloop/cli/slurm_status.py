"""`wattloop slurm status` and `release`."""

import sys
import time
from typing import Annotated

import typer

from wattloop.cli.options import JsonFile
from wattloop.cli.output import check_target, say, write_json
from wattloop.core.units import format_duration, format_power
from wattloop.core.user_code import user_path

__all__ = ["release_command", "status_command"]

StateFile = Annotated[
    str | None, typer.Option("--state", metavar="FILE", help="Where the driver keeps its notes.")
]
NOT_RUNNING = 1


def status_command(*, state: StateFile = None, json_file: JsonFile = None) -> None:
    """What the driver is doing; exit code 1 when it does not run."""
    from wattloop.schedule.slurm.state import (
        DriverState,
        default_state_path,
        read_status,
        status_path,
    )

    check_target(json_file, "--json")
    path = user_path(state) if state else default_state_path()
    status = read_status(status_path(path))
    opened = DriverState.load(path).opened
    status["opened"] = [each.to_dict() for each in opened.values() if each.why != "ran"]
    if json_file is not None:
        write_json(status, json_file)
    if json_file != "-":
        _show(status)
    raise typer.Exit(0 if status["alive"] else NOT_RUNNING)


def release_command(*, state: StateFile = None, json_file: JsonFile = None) -> None:
    """Undo what a driver that died has left, without starting one.

    Slurm goes on without this, too: the reservation ends by itself. Only node lists of jobs that
    were about to start stay as they were asked for.
    """
    from wattloop.schedule.slurm.event_log import DriverLog
    from wattloop.schedule.slurm.executor import PlanExecutor
    from wattloop.schedule.slurm.reservation_gate import ReservationGate
    from wattloop.schedule.slurm.scontrol import SlurmClient
    from wattloop.schedule.slurm.state import DriverState, default_state_path

    check_target(json_file, "--json")
    notes = DriverState.load(user_path(state) if state else default_state_path())
    notes.hold()
    client = SlurmClient()
    jobs = {job.key: job for job in client.jobs()}
    carrying_out = PlanExecutor(client, notes, DriverLog(None, _tell), notes.gate_name)
    carrying_out.set_free(jobs)
    released = [key for key in notes.opened if key in jobs and jobs[key].is_pending]
    carrying_out.close(list(notes.opened), jobs)
    is_there = any(each.name == notes.gate_name for each in client.reservations())
    if is_there:
        ReservationGate(client, notes.gate_name, "", "", 0.0, time.monotonic).remove()
    carrying_out.nudge(job for job in jobs.values() if job.is_pending)
    notes.let_go()
    if json_file is not None:
        write_json({"released": released, "reservation_removed": is_there}, json_file)
    if json_file != "-":
        gate = "the reservation was removed" if is_there else "no reservation was left"
        sys.stdout.write(f"{len(released)} jobs put back as they were; {gate}\n")


def _tell(kind: str, text: str) -> None:
    if kind in ("refused", "warning"):
        say(f"wattloop: {text}")


def _show(status: dict[str, object]) -> None:
    last = status.get("last")
    alive = "runs" if status["alive"] else "does not run; Slurm goes on by itself"
    lines = [f"driver    {alive} ({status.get('mode')}, {status.get('policy')})"]
    if isinstance(last, dict):
        age_s = max(time.time() - float(last["at_s"]), 0.0)
        lines += [
            f"round     {status.get('rounds')}, {format_duration(age_s)} ago, took "
            f"{1e3 * float(last['took_s']):.0f} ms",
            f"jobs      {last['waiting']} wait, {last['running']} run, {last['coming']} about to",
            f"GPUs      {last['free_gpus']} free",
            f"power     {format_power(float(last['power_w'] or 0))}, measured on "
            f"{last['measured_nodes']} nodes, estimated elsewhere",
        ]
        if last["budget_w"] is not None:
            lines.append(f"budget    {format_power(float(last['budget_w']))}")
    events = status.get("events")
    if isinstance(events, dict) and events:
        lines.append("events    " + ", ".join(f"{n} {kind}" for kind, n in sorted(events.items())))
    sys.stdout.write("\n".join(lines) + "\n")
