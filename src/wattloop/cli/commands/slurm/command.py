"""Commands of `wattloop slurm`."""

import sys
import time
from dataclasses import asdict
from typing import Annotated

import typer

from wattloop.cli.app import Verb
from wattloop.cli.commands.slurm.execution import DriverOptions, execute
from wattloop.cli.commands.slurm.replay import replay_command
from wattloop.cli.options import JsonFile, option
from wattloop.cli.output import present, say, write_json
from wattloop.core.files import user_path
from wattloop.core.units import format_duration, format_power

app = Verb(
    "Let a scheduling policy run a Slurm cluster: order, places, caps, a power budget.",
    example="wattloop slurm run --policy zeus --observe",
)
StateFile = Annotated[str | None, option("--state FILE", "Where the driver keeps its notes.")]
NOT_RUNNING = 1


@app.command(
    "run",
    example="wattloop slurm run --policy zeus --observe\n"
    "wattloop slurm run --policy charon --budget 4500W",
)
def run_command(*, options: DriverOptions) -> None:
    """Let a policy decide what Slurm starts, where, and under which cap.

    Jobs of the managed partitions start when the policy says so. All others are left to Slurm.
    """
    execute(options)


@app.command("status", example="wattloop slurm status")
def status_command(*, state: StateFile = None, json_file: JsonFile = None) -> None:
    """Show the state of the driver; exit code 1 when it does not run."""
    from wattloop.schedule.slurm.state import (
        DriverState,
        default_state_path,
        read_status,
        status_path,
    )

    path = user_path(state) if state else default_state_path()
    status = read_status(status_path(path))
    released = DriverState.load(path).released
    status["opened"] = [asdict(each) for each in released.values() if each.why != "ran"]
    present(json_file, lambda: status, lambda: _show(status))
    raise typer.Exit(0 if status["alive"] else NOT_RUNNING)


@app.command("release", example="wattloop slurm release")
def release_command(*, state: StateFile = None, json_file: JsonFile = None) -> None:
    """Release the jobs that a crashed driver left held, without starting one.

    Slurm goes on without this, too: the reservation ends by itself. Only node lists of jobs that
    were about to start stay as they were asked for.
    """
    from wattloop.schedule.slurm.client import SlurmClient
    from wattloop.schedule.slurm.event_log import DriverLog
    from wattloop.schedule.slurm.executor import JobControl
    from wattloop.schedule.slurm.reservation_gate import ReservationGate
    from wattloop.schedule.slurm.state import DriverState, default_state_path

    driver_state = DriverState.load(user_path(state) if state else default_state_path())
    driver_state.lock()
    client = SlurmClient()
    jobs = {job.key: job for job in client.jobs()}
    control = JobControl(client, driver_state, DriverLog(None, _tell))
    control.clear_start_delays(jobs)
    released = [key for key in driver_state.released if key in jobs and jobs[key].is_pending]
    control.restore(driver_state.released, jobs)
    is_there = any(each.name == driver_state.gate_name for each in client.reservations())
    if is_there:
        ReservationGate(client, driver_state.gate_name, "", "", 0.0).remove()
    control.nudge(job for job in jobs.values() if job.is_pending)
    driver_state.unlock()
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


app.command("replay", example="wattloop slurm replay slurm-lab --policies slurm,zeus --speedup 30")(
    replay_command
)
