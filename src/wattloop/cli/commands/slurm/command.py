"""Commands of `wattloop slurm`."""

import getpass
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattloop.cli.app import Verb, stopping
from wattloop.cli.cluster_driver import (
    ClusterDriverOptions,
    Console,
    readings_of,
    store_of,
    token_of,
    would_have_rows,
)
from wattloop.cli.commands.simulate.scenario import Budget, Set, Variant, read_scenario
from wattloop.cli.options import JsonFile, argument, option
from wattloop.cli.output import present, print_rows, say, write_json
from wattloop.cli.progress import bars, is_redrawable
from wattloop.core.errors import ConfigError, SlurmError
from wattloop.core.files import user_path
from wattloop.core.units import format_duration, format_energy, format_power
from wattloop.schedule.driver.event_log import DriverLog, RoundReport
from wattloop.schedule.driver.inventory import SchedulerNode
from wattloop.schedule.driver.managed_cluster import (
    DriverSettings,
    ManagedCluster,
    build_managed_cluster,
)
from wattloop.schedule.driver.rounds import RoundRunner, run_loop
from wattloop.schedule.policies.registry import policies_from, policy_from, split_policies
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.driver import SlurmDriver, SlurmObserver
from wattloop.schedule.slurm.executor import JobControl
from wattloop.schedule.slurm.replay.plan import ReplayPlan, check_speedup, match_nodes, replay_plan
from wattloop.schedule.slurm.replay.result import ReplayFigures
from wattloop.schedule.slurm.replay.runner import (
    OWN,
    SAME_POWER,
    ReplayDriver,
    ReplayResult,
    replay,
)
from wattloop.schedule.slurm.replay.runner import Progress as Told
from wattloop.schedule.slurm.replay.simulation import BACKFILL, OwnScheduler, simulate_replay
from wattloop.schedule.slurm.reservation_gate import ReservationGate
from wattloop.schedule.slurm.state import (
    DriverState,
    default_state_path,
    read_status,
    status_path,
    write_status,
)
from wattloop.store.database import Store

if TYPE_CHECKING:
    from wattloop.schedule.slurm.energy_annotator import EnergyAnnotator

# `wattloop slurm run`: drive, or observe.


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmDriverOptions(ClusterDriverOptions):
    """Options of `slurm run`; None means not given."""

    partition: Annotated[
        list[str] | None,
        option("--partition NAME", "Whose jobs are ours to place (may be repeated)."),
    ] = None
    observe: Annotated[bool, option("--observe", "Change nothing; show what it would do.")] = False
    dry_run: Annotated[bool, option("--dry-run", "One round: print its commands, run none.")] = (
        False
    )
    lease: Annotated[
        float, option("--lease SECONDS", "How long Slurm waits for a driver that died.")
    ] = 20.0
    annotate: Annotated[
        bool | None,
        option(
            "--annotate/--no-annotate",
            "Write the measured energy of ended jobs into AdminComment (default: with "
            "--fleet or --store; not with --observe).",
        ),
    ] = None
    standby: Annotated[
        bool, option("--standby/--no-standby", "Let jobs through ahead, for GPUs about to be free.")
    ] = True
    state: Annotated[str | None, option("--state FILE", "Where the driver keeps its notes.")] = None


@contextmanager
def annotating_of(
    options: SlurmDriverOptions, store: "Store | None", client: SlurmClient, log: DriverLog
) -> "Iterator[EnergyAnnotator | None]":
    has_source = store is not None or options.fleet is not None
    if options.annotate and not has_source:
        raise ConfigError("--annotate needs to know the energy: give --fleet URL or --store PLACE")
    default = has_source and not options.observe and not options.dry_run
    if not (default if options.annotate is None else options.annotate):
        yield None
        return
    from wattloop.schedule.slurm.energy_annotator import (
        EnergyAnnotator,
        MeasuredEnergy,
        energy_from_fleet,
        energy_from_store,
    )

    cluster, token = client.cluster_name(), token_of(options.token_file)

    def energy_of(number: str) -> MeasuredEnergy | None:
        if store is not None:
            return energy_from_store(store, cluster, number)
        return energy_from_fleet(str(options.fleet), token, cluster, number)

    with EnergyAnnotator(SlurmClient(), energy_of, log) as annotating:
        yield annotating


def execute(options: SlurmDriverOptions) -> None:
    """Drive, observe, or show the commands of one poll.

    Raises:
        WattloopError: something asked for is wrong, or the policy failed too often.
    """
    if options.observe and options.dry_run:
        raise ConfigError("--observe goes on and on, --dry-run is one round; give one of them")
    policy = policy_from(options.policy)
    settings = DriverSettings(
        interval_s=options.interval, lease_s=options.lease, standby=options.standby
    )
    state_path = user_path(options.state) if options.state else default_state_path()
    looks_only = options.observe or options.dry_run
    client, console = SlurmClient(), Console(quiet=options.dry_run)
    log_path = user_path(options.log) if options.log else state_path.with_suffix(".log.jsonl")
    with store_of(options) as store:
        asked = options.cluster_options(options.partition or (), store)
        site = build_managed_cluster(client.nodes(), asked, policy)
        console.introduce(site, policy.name, looks_only=looks_only)
        log = DriverLog(None if options.dry_run and not options.log else log_path, console.tell)

        def rebuild(nodes: Sequence[SchedulerNode]) -> ManagedCluster:
            return build_managed_cluster(nodes, asked, policy)

        with readings_of(options, site, log) as readings:
            steering: SlurmDriver | SlurmObserver
            if looks_only:
                steering = SlurmObserver(
                    client,
                    site,
                    policy,
                    log=log,
                    settings=settings,
                    readings=readings,
                    rebuild=rebuild,
                )
            else:
                state = DriverState.load(state_path)
                state.lock()
                steering = SlurmDriver(
                    client,
                    site,
                    policy,
                    state=state,
                    log=log,
                    settings=settings,
                    owner=getpass.getuser(),
                    readings=readings,
                    rebuild=rebuild,
                )
            reports = _Reports(options, steering, state_path, console)
            with stopping() as stop, annotating_of(options, store, client, log) as annotating:

                def on_round(report: RoundReport) -> None:
                    reports.add(report)
                    if annotating is not None:
                        annotating.update(steering.snapshot.by_key, report.at_s)

                rounds = 1 if options.once or options.dry_run else None
                run_loop(steering, stop, rounds=rounds, on_round=on_round)
            if isinstance(steering, SlurmDriver):
                steering.state.unlock()
        _finish(options, steering, reports)
        log.close()


class _Reports:
    """Output of polls: console, status file and `--json`."""

    def __init__(
        self, options: SlurmDriverOptions, steering: RoundRunner, state_path: Path, console: Console
    ) -> None:
        self._console, self._steering = console, steering
        self._path = None if options.dry_run else _own_status(state_path)
        self._mode = "observe" if options.observe else "drive"
        self._started_s = time.time()
        self.rounds = 0
        self.last: RoundReport | None = None

    def add(self, report: RoundReport) -> None:
        self.rounds += 1
        self.last = report
        self._console.round(report)
        if self._path is not None:
            write_status(self._path, self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        return {
            "mode": self._mode,
            "policy": self._steering.policy.name,
            "pid": os.getpid(),
            "started_s": self._started_s,
            "rounds": self.rounds,
            "events": dict(self._steering.log.counts),
            "last": None if self.last is None else self.last.to_dict(),
        }


def _own_status(state_path: Path) -> Path | None:
    """Return the status file; None when another driver uses it."""
    path = status_path(state_path)
    with suppress(ConfigError):
        there = read_status(path)
        if there["alive"] and there.get("mode") == "drive" and there.get("pid") != os.getpid():
            return None
    return path


def _finish(
    options: SlurmDriverOptions, steering: SlurmDriver | SlurmObserver, reports: _Reports
) -> None:
    data = reports.to_dict()
    if isinstance(steering, SlurmObserver):
        data["would_have"] = [row.to_dict() for row in steering.table.rows.values()]
        data["commands"] = [list(words) for words in steering.commands]
        if options.dry_run and options.json_file != "-":
            for words in steering.commands:
                sys.stdout.write(shlex.join(words) + "\n")
            if not steering.commands:
                say("wattloop: nothing to do in this round")
        elif options.json_file != "-":
            would_have_rows(steering.table)
    write_json(data, options.json_file)


# `wattloop slurm replay`: run a scenario on a real Slurm and compare it with the simulator.


def print_replayed(plan: ReplayPlan, found: Sequence[ReplayResult]) -> None:
    headers = ["policy", "", "makespan", "GPU energy", "peak", "jobs/h", "completion", "misses"]
    if not math.isinf(max(plan.settings.budget_w.values)):
        headers.append("over budget")
    rows: list[list[str]] = []
    for each in found:
        rows.append(_row(each.policy, "real", each.real.figures))
        rows.append(_row("", "simulated", each.simulated))
        off = each.differences()
        names = ("makespan_s", "gpu_energy_j", "peak_w", "throughput_per_h", "jct_mean_s")
        rows.append(["", "off by", *(f"{100 * off[name]:+.1f}%" for name in names), ""])
    width = len(headers)
    print_rows(headers, [[*row, *[""] * width][:width] for row in rows])
    for each in found:
        latency = each.real.latency
        cleared = "-" if latency.end_s is None else f"{latency.end_s:.2f} s"
        say(
            f"{each.policy}: Slurm took {latency.start_s:.2f} s to start a job and {cleared} to "
            f"give its GPUs to the next ({latency.source}); the simulator was told"
        )
    say(f"Times and energy are the scenario's (real ones x {plan.speedup:g}). {SAME_POWER}")


def _row(policy: str, kind: str, figures: ReplayFigures) -> list[str]:
    over = figures.over_budget_s
    return [
        policy,
        kind,
        format_duration(figures.makespan_s),
        format_energy(figures.gpu_energy_j),
        format_power(figures.peak_w),
        f"{figures.throughput_per_h:.1f}",
        format_duration(figures.jct_mean_s),
        f"{figures.misses}/{figures.deadlines}",
        *([] if over is None else [format_duration(over)]),
    ]


MOST_JOBS = 100_000


def replay_command(  # noqa: PLR0913 - one parameter per option
    scenario: str = argument("SCENARIO", "YAML file, or a shipped one such as slurm-lab."),
    *,
    speedup: float = option("--speedup X", "Seconds of the scenario per real second.", 10.0),
    policies: str = option(
        "--policies -p LIST",
        "'slurm' is Slurm's own scheduler; others steer it: slurm,zeus,charon.",
        "slurm,zeus",
    ),
    jobs: int | None = option("--jobs N", "Only the first so many jobs."),
    seed: int = option("--seed", "Of the scenario's jobs.", 0),
    variant: Variant = None,
    budget: Budget = None,
    changes: Set = None,
    partition: str = option("--partition NAME", "To submit to (default: Slurm's).", ""),
    interval: float = option("--interval SECONDS", "Between rounds of the driver.", 0.5),
    folder: str | None = option(
        "--folder DIR", "For notes and virtual GPUs, seen by all nodes (default: a temporary one)."
    ),
    json_file: JsonFile = None,
) -> None:
    """Submit a scenario's jobs to a real Slurm, policy by policy, and compare with the simulator.

    Jobs occupy virtual GPUs; power is simulated on both sides, so that only scheduling is compared.
    """
    names = _policies(policies)
    settings = DriverSettings(interval_s=interval)
    check_speedup(speedup)
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise ConfigError(f"--jobs {jobs}: give 1 to {MOST_JOBS:,}")
    if seed < 0:
        raise ConfigError(f"--seed {seed}: give a number from 0 on")
    world = read_scenario(scenario, variant=variant, budget=budget, changes=changes)
    client = SlurmClient()
    _check_slurm(client)  # before the jobs are worked out, which takes a while
    match_nodes(world.cluster, client.text, partition)
    plan = replay_plan(world, seed=seed, speedup=speedup, most_jobs=jobs)
    place = _folder(folder)
    _say_how_long(plan, names)
    driver = ReplayDriver(plan, client, place, partition, settings)
    with _progress() as tell:
        found = replay(
            plan,
            names,
            slurm=client.text,
            folder=place,
            driver=driver,
            partition=partition,
            tell=tell,
        )
    data = {
        "scenario": plan.scenario,
        "seed": plan.seed,
        "speedup": plan.speedup,
        "jobs": len(plan.asked),
        "power": SAME_POWER,
        "policies": [each.to_dict() for each in found],
    }
    write_json(data, json_file)
    if json_file != "-":
        print_replayed(plan, found)
        say(f"wattloop: notes of jobs and driver are in {place}")


def _check_slurm(client: "SlurmClient") -> None:
    """Check that Slurm answers before its commands wait for a minute.

    Raises:
        ConfigError: there is none here.
        SlurmError: it does not answer.
    """
    named = os.environ.get("SLURM_CONF")
    if named and not Path(named).is_file():
        raise ConfigError(f"SLURM_CONF={named}: no such file; name the slurm.conf of your cluster")
    try:
        answer = client.text("scontrol", "ping")
    except SlurmError as error:
        raise SlurmError(f"slurmctld does not answer ({error}); see 'scontrol ping'") from None
    if "UP" not in answer:
        raise SlurmError(f"slurmctld does not answer: {' '.join(answer.split())[:200]}")


def _policies(given: str) -> list[str]:
    """Return known policy names, each once."""
    names = split_policies(given)
    ours = [name for name in names if name != OWN]
    if ours:
        policies_from(ours)
    if not names or len(names) - len(ours) > 1:
        raise ConfigError(f"--policies {given}: name each once, such as slurm,zeus")
    return names


def _folder(given: str | None) -> Path:
    if given is None:
        path = Path(tempfile.mkdtemp(prefix="wattloop-replay-"))
        path.chmod(0o755)
        return path
    path = user_path(given).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as problem:
        raise ConfigError(f"--folder {given}: {problem.strerror}; name another one") from None
    return path


def _say_how_long(plan: "ReplayPlan", policies: list[str]) -> None:
    """Print the duration that the simulator expects."""
    figures, _ = simulate_replay(plan, OwnScheduler(BACKFILL), None)
    each_s = figures.makespan_s / plan.speedup
    say(
        f"wattloop: {len(plan.asked)} jobs of {plan.scenario}, {len(policies)} policies: about "
        f"{format_duration(each_s)} each at {plan.speedup:g} times the speed; more --speedup is "
        "shorter, and what Slurm takes to start jobs weighs more"
    )


@contextmanager
def _progress() -> "Iterator[Callable[[str], Told]]":
    if not is_redrawable():

        def quiet(policy: str) -> "Told":
            say(f"wattloop: replaying under {policy}")
            return lambda submitted, done, jobs, power_w: None

        yield quiet
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

    columns = ("{task.description}", BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(),
               "{task.fields[said]}")  # fmt: skip
    with bars(*columns) as rows:

        def shown(policy: str) -> "Told":
            task = rows.add_task(policy, total=None, said="")

            def tell(submitted: int, done: int, jobs: int, power_w: float) -> None:
                said = f"{submitted - done} in Slurm, {format_power(power_w)} (simulated)"
                rows.update(task, completed=done, total=jobs, said=said)

            return tell

        yield shown


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
def run_command(*, options: SlurmDriverOptions) -> None:
    """Let a policy decide what Slurm starts, where, and under which cap.

    Jobs of the managed partitions start when the policy says so. All others are left to Slurm.
    """
    execute(options)


@app.command("status", example="wattloop slurm status")
def status_command(*, state: StateFile = None, json_file: JsonFile = None) -> None:
    """Show the state of the driver; exit code 1 when it does not run."""
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
