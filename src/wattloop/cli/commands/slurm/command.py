"""Commands of `wattloop slurm`."""

import sys
import time
from dataclasses import asdict
from typing import Annotated

import typer

from wattloop.cli.commands.slurm.replay import replay_command
from wattloop.cli.options import Config, JsonFile, StorePlace
from wattloop.cli.output import check_target, say, write_json
from wattloop.core.paths import user_path
from wattloop.core.units import format_duration, format_power

StateFile = Annotated[
    str | None, typer.Option("--state", metavar="FILE", help="Where the driver keeps its notes.")
]


NOT_RUNNING = 1


def status_command(*, state: StateFile = None, json_file: JsonFile = None) -> None:
    """Show the state of the driver; exit code 1 when it does not run."""
    from wattloop.schedule.slurm.state import (
        DriverState,
        default_state_path,
        read_status,
        status_path,
    )

    check_target(json_file, "--json")
    path = user_path(state) if state else default_state_path()
    status = read_status(status_path(path))
    released = DriverState.load(path).released
    status["opened"] = [asdict(each) for each in released.values() if each.why != "ran"]
    if json_file is not None:
        write_json(status, json_file)
    if json_file != "-":
        _show(status)
    raise typer.Exit(0 if status["alive"] else NOT_RUNNING)


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

    check_target(json_file, "--json")
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


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Let a scheduling policy run a Slurm cluster: order, places, caps, a power budget.",
    epilog="Look first: wattloop slurm run --policy zeus --observe. Then: wattloop slurm run "
    "--policy charon --budget 4500W. If it stops or dies, Slurm goes on by itself.",
)


@app.command("run")
def run_command(  # noqa: PLR0913 - one parameter per option
    *,
    policy: Annotated[
        str,
        typer.Option(
            "--policy", "-p", metavar="POLICY", help="Such as fifo, zeus, charon; FILE.py:Class."
        ),
    ] = "zeus",
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="POWER", help="Most that all nodes may draw: 4.5kW."),
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition", metavar="NAME", help="Whose jobs are ours to place (may be repeated)."
        ),
    ] = None,
    observe: Annotated[
        bool, typer.Option("--observe", help="Change nothing; show what it would do.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="One round: print its commands, run none.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="One round, then stop.")] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            "-i",
            metavar="SECONDS",
            help="Between two rounds; down to a fifth of it while jobs come and go.",
        ),
    ] = 1.0,
    lease: Annotated[
        float,
        typer.Option(
            "--lease", metavar="SECONDS", help="How long Slurm waits for a driver that died."
        ),
    ] = 20.0,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", metavar="FILE", help="Watts of GPUs and hosts (docs/clusters.md)."
        ),
    ] = None,
    gpus_only: Annotated[
        bool, typer.Option("--gpus-only", help="Count the power of GPUs, not of hosts.")
    ] = False,
    mapping: Annotated[
        str | None,
        typer.Option("--mapping", metavar="FILE", help="Rules that map job names to models."),
    ] = None,
    oracle: Annotated[
        str, typer.Option("--oracle", metavar="KIND", help="'analytic' predicts, 'table' looks up.")
    ] = "analytic",
    fleet: Annotated[
        str | None,
        typer.Option("--fleet", metavar="URL", help="The fleet's server: power as measured."),
    ] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help="Token for the server.")
    ] = None,
    annotate: Annotated[
        bool | None,
        typer.Option(
            "--annotate/--no-annotate",
            help="Write the measured energy of ended jobs into AdminComment (default: with "
            "--fleet or --store; not with --observe).",
        ),
    ] = None,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby/--no-standby", help="Let jobs through ahead, for GPUs about to be free."
        ),
    ] = True,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="FILE", help="Where the driver keeps its notes."),
    ] = None,
    log: Annotated[
        str | None, typer.Option("--log", metavar="FILE", help="Log, one JSON object a line.")
    ] = None,
    store: StorePlace = None,
    config: Config = None,
    json_file: JsonFile = None,
) -> None:
    """Let a policy decide what Slurm starts, where, and under which cap.

    Jobs of the managed partitions start when the policy says so. All others are left to Slurm.
    """
    from wattloop.cli.commands.slurm.execution import RunRequest, execute

    check_target(json_file, "--json")
    execute(
        RunRequest(
            policy=policy,
            budget=budget,
            partitions=tuple(partition or ()),
            observe=observe,
            dry_run=dry_run,
            once=once,
            interval_s=interval,
            lease_s=lease,
            cluster=cluster,
            gpus_only=gpus_only,
            mapping=mapping,
            oracle=oracle,
            fleet=fleet,
            token_file=token_file,
            annotate=annotate,
            standby=standby,
            state=state,
            log=log,
            store=store,
            config=config,
            json_file=json_file,
        )
    )


app.command("status")(status_command)


app.command("release")(release_command)


app.command("replay")(replay_command)
