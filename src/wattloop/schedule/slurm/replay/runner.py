"""Runner of replays: a scenario on a real Slurm under several policies, and in the simulator."""

import getpass
import json
import math
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError, SlurmError, WattloopError
from wattloop.schedule.cluster.cluster import Cluster, GpuType
from wattloop.schedule.driver.event_log import DriverLog, RoundReport
from wattloop.schedule.driver.inventory import known_nodes
from wattloop.schedule.driver.managed_cluster import (
    DriverSettings,
    JobEstimates,
    ManagedCluster,
    only_partition,
    shared_partitions,
)
from wattloop.schedule.driver.rounds import run_loop
from wattloop.schedule.engine.settings import Keeps
from wattloop.schedule.estimates.fleet_file import FleetOracle
from wattloop.schedule.estimates.job_estimator import JobEstimator
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.driver import SlurmDriver
from wattloop.schedule.slurm.replay.latency import (
    JobTimes,
    Latency,
    driver_end_latency,
    measure_latency,
    read_times,
)
from wattloop.schedule.slurm.replay.plan import ReplayPlan, match_nodes
from wattloop.schedule.slurm.replay.result import (
    GpuPowerSample,
    PowerWatch,
    ReplayedRun,
    ReplayFigures,
    difference,
    exact_peak_w,
    read_records,
    real_figures,
)
from wattloop.schedule.slurm.replay.simulation import own_scheduler, simulate_replay
from wattloop.schedule.slurm.state import DriverState
from wattloop.schedule.step_function import StepFunction
from wattloop.virtual.cards import write_card
from wattloop.virtual.gpu import VirtualGpu
from wattloop.virtual.node import MODEL_VARIABLE, STATE_VARIABLE, shared_machine

PROGRAM = "wattloop.schedule.slurm.replay.job_process"
OWN = "slurm"
"""Name of the policy that leaves the decisions to Slurm's own scheduler."""
COMPARED = ("makespan_s", "gpu_energy_j", "throughput_per_h", "jct_mean_s", "peak_w")
SAME_POWER = (
    "Power is simulated, by the same virtual GPUs on both sides: what is compared is scheduling."
)
Progress = Callable[[int, int, int, float], None]
"""Called with jobs submitted, jobs done, all jobs, and power now."""
POLL_S = 0.2
ASK_SLURM_S = 5.0
PATIENCE_S = 120.0
"""Longest time without progress while jobs are left."""


def write_plan(plan: ReplayPlan, folder: Path, names: Mapping[int, str]) -> None:
    """Write the files that jobs read: GPUs of the nodes, and time and power of each option."""
    for name in ("jobs", "notes", "virtual"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for note in (folder / "notes").iterdir():
        note.unlink()
    for kind in plan.cluster.types:
        _write_card(kind, folder / "virtual" / f"{kind.name}.json")
    groups = plan.cluster.node_groups
    nodes = {name: groups[number].type_name for number, name in names.items()}
    (folder / "plan.json").write_text(json.dumps({"nodes": nodes}) + "\n", "utf-8")
    types = [each.name for each in plan.cluster.types]
    for job in range(len(plan.open)):
        options, work = plan.options(job), float(plan.open.work[job])
        rows = {}
        for row in range(len(options)):
            gpus = int(options.gpus[row])
            key = f"{types[int(options.type_index[row])]}/{gpus}"
            rows[key] = [work * float(options.sample_s[row]), float(options.power_w[row]) / gpus]
        text = json.dumps({"options": rows}) + "\n"
        (folder / "jobs" / f"{job}.json").write_text(text, "utf-8")


def virtual_gpus(
    cluster: Cluster, folder: Path, names: Mapping[int, str]
) -> dict[str, tuple[VirtualGpu, ...]]:
    found = {}
    for number, node in names.items():
        group = cluster.node_groups[number]
        environment = {
            STATE_VARIABLE: str(folder / "virtual" / f"{node}.state"),
            MODEL_VARIABLE: str(folder / "virtual" / f"{group.type_name}.json"),
        }
        found[node] = shared_machine(group.gpus_per_node, environment=environment).gpus
    return found


def _write_card(kind: GpuType, path: Path) -> None:
    # All power above idle is arithmetic at the highest clock, so that any power up to the limit
    # corresponds to a busy share. It follows without delay because jobs are short.
    write_card(
        path,
        "h200",
        name=f"virtual {kind.name}",
        idle_w=kind.idle_w,
        compute_w=kind.tdp_w - kind.idle_w,
        memory_w=0.0,
        memory_idle_w=0.0,
        default_limit_w=kind.tdp_w,
        min_limit_w=kind.gpu.cap_min_w,
        ramp_s=0.005,
        source="power of the replayed scenario's GPU type",
    )


def sbatch_command(
    plan: ReplayPlan, job: int, folder: Path, *, extra: Sequence[str] = (), described: bool = False
) -> list[str]:
    """Build the sbatch command line of a job.

    With `described`, the comment states what the job trains, for a scheduler with an oracle.

    Raises:
        ConfigError: the nodes cannot share the job's GPUs evenly.
    """
    gpus = plan.asked_gpus(job)
    widest = max(group.gpus_per_node for group in plan.cluster.groups)
    nodes = max(1, math.ceil(gpus / widest))
    if gpus % nodes:
        raise ConfigError(
            f"job {job} asks for {gpus} GPUs, which {nodes} nodes of {widest} cannot share evenly"
        )
    program = [sys.executable, "-m", PROGRAM, str(folder), str(job)]
    work = shlex.join([*(("srun", "--ntasks-per-node=1") if nodes > 1 else ("exec",)), *program])
    # Not by --export: slurmd would start a login shell for every job, which takes a second or more.
    keeps = "nothing" if plan.settings.preemption.keeps is Keeps.NOTHING else "work"
    command = [
        "sbatch", "--parsable", "--output=/dev/null", "--error=/dev/null", "--requeue",
        f"--job-name=replay-{job}", f"--time={plan.limit_min(job)}", f"--nodes={nodes}",
        "--ntasks-per-node=1", f"--gres=gpu:{gpus // nodes}",
        *extra,
    ]  # fmt: skip
    if described:
        command.append(f"--comment={job_comment(plan, job)}")
    return [*command, f"--wrap=export WATTLOOP_REPLAY_KEEPS={keeps}; {work}"]


def job_comment(plan: ReplayPlan, job: int) -> str:
    """Return the job's comment, in the format of docs/slurm.md."""
    kind = plan.open.kinds[plan.open.kind[job]]
    fields = [
        f"model={kind.model.removeprefix('hf:')}",
        f"batch={kind.batches[0]}",
        f"samples={float(plan.open.work[job]):.6g}",
        f"gpus={'|'.join(map(str, kind.gpus))}",
    ]
    if kind.precision:
        fields.append(f"precision={kind.precision}")
    if kind.sequence is not None:
        fields.append(f"seq={kind.sequence}")
    if kind.types:
        fields.append(f"types={'|'.join(kind.types)}")
    due_s = float(plan.open.deadline_s[job] - plan.open.arrival_s[job])
    if math.isfinite(due_s):
        fields.append(f"deadline={due_s:.0f}s")
    return f"wattloop:{','.join(fields)}"


@dataclass
class ReplayDriver:
    """Slurm driver of a replay.

    Args:
        plan: replay plan; the driver uses its oracle and its budget.
        partition: managed partition; by default Slurm's only one.

    Attributes:
        rounds: reports of the driver's rounds, by policy.
    """

    plan: ReplayPlan
    client: SlurmClient
    folder: Path
    partition: str = ""
    settings: DriverSettings = field(default_factory=DriverSettings)
    rounds: dict[str, list[RoundReport]] = field(default_factory=dict)

    def polls(self, policy: str) -> list[tuple[float, list[int]]]:
        """Return the times of a driver's polls (`time.monotonic`) and the jobs started then."""
        offset_s = time.time() - time.monotonic()
        return [
            (report.at_s - offset_s, [int(key) for key in report.starts if key.isdigit()])
            for report in self.rounds.get(policy, [])
        ]

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Run a driver in the background that schedules Slurm's jobs with the named policy."""
        stem = name.partition("{")[0]
        state = DriverState.load(self.folder / f"driver-{stem}.json")
        log = DriverLog(self.folder / f"driver-{stem}.jsonl")
        state.lock()
        driver = SlurmDriver(
            self.client,
            self._managed_cluster(),
            policy_from(name),
            state=state,
            log=log,
            settings=self.settings,
            owner=getpass.getuser(),
        )
        stop, faults = threading.Event(), list[Exception]()
        reports = self.rounds.setdefault(name, [])

        def work() -> None:
            try:
                run_loop(driver, stop, on_round=reports.append)
            except Exception as error:  # noqa: BLE001 - reported when the context ends
                faults.append(error)

        thread = threading.Thread(target=work, name=f"driver {name}")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            state.unlock()
            log.close()
        if faults:
            raise SlurmError(f"replay: the driver of {name} gave up: {faults[0]}")

    def _managed_cluster(self) -> ManagedCluster:
        plan = self.plan
        nodes = self.client.nodes()
        partitions = (self.partition,) if self.partition else only_partition(nodes)
        known = known_nodes(nodes, partitions, described=plan.cluster)
        oracle = FleetOracle.of(known.cluster, plan.oracle)
        for kind in plan.open.kinds:
            oracle.options(kind)  # trace models now: tracing takes longer than a round
        return ManagedCluster(
            known=known,
            managed=partitions,
            shared=shared_partitions(nodes, known, partitions),
            estimates=JobEstimates(JobEstimator(oracle), known.cluster),
            oracle=oracle,
            budget_w=_constant(plan.settings.budget_w),
        )


def _constant(budget: StepFunction) -> StepFunction:
    """Return the budget if it is constant: driver and plan count time from different origins."""
    if len(budget.values) > 1 and not math.isinf(max(budget.values)):
        raise ConfigError("replay: a budget that changes over the day; give one with --budget")
    return budget


@dataclass(frozen=True)
class RealRun:
    """Result of a replay on Slurm.

    Attributes:
        late_s: greatest delay of a submission.
        exact_peak_w: peak power of all GPUs, including peaks between samples.
    """

    figures: ReplayFigures
    latency: Latency
    times: JobTimes
    ran: tuple[ReplayedRun, ...]
    samples: tuple[GpuPowerSample, ...]
    wall_s: float
    late_s: float
    exact_peak_w: float


def run_real(
    plan: ReplayPlan,
    slurm: Callable[..., str],
    folder: Path,
    names: Mapping[int, str],
    *,
    options: Sequence[str] = (),
    described: bool = False,
    tell: Progress | None = None,
) -> RealRun:
    """Submit the jobs of a plan at their arrival times, and wait until all are done.

    Args:
        plan: the jobs.
        slurm: runs one of Slurm's commands and returns what it prints.
        folder: folder of plan, records and virtual GPUs; all nodes share it under this path.
        names: node number of the plan's cluster -> Slurm's name.
        options: further options of sbatch.
        described: write into each job's comment what it trains.
        tell: called with the progress.

    Raises:
        WattloopError: jobs failed, or made no progress.
    """
    write_plan(plan, folder, names)
    cards = virtual_gpus(plan.cluster, folder, names)
    jobs, submitted_s = len(plan.asked), dict[int, float]()
    late_s, number_of = 0.0, dict[int, int]()
    with PowerWatch(cards) as watch:
        begin_s = news_s = time.monotonic()
        asked_slurm_s, done = begin_s, 0
        while done < jobs:
            now_s = time.monotonic()
            while len(submitted_s) < jobs:
                job = len(submitted_s)
                due_s = begin_s + float(plan.asked.arrival_s[job])
                if due_s > now_s:
                    break
                command = sbatch_command(plan, job, folder, extra=options, described=described)
                number_of[int(slurm(*command).split(";")[0])] = job
                submitted_s[job] = news_s = now_s = time.monotonic()
                late_s = max(late_s, now_s - due_s)
            before, done = done, _done(folder)
            if done > before:
                news_s = now_s
            if tell is not None:
                tell(len(submitted_s), done, jobs, watch.power_now_w)
            if now_s - asked_slurm_s > ASK_SLURM_S:
                asked_slurm_s = now_s
                _check(slurm, number_of)
            if now_s - news_s > PATIENCE_S and len(submitted_s) == jobs:
                raise WattloopError(
                    f"replay: nothing has happened for {PATIENCE_S:g} s and {jobs - done} of "
                    f"{jobs} jobs are left; see squeue and the log of slurmctld"
                )
            time.sleep(POLL_S)
        time.sleep(2 * POLL_S)  # the last tick of the energy counters
        ran = read_records(folder)
        times = read_times(slurm)
    end_s = max(each.end_s for each in ran)
    samples = watch.samples(begin_s - POLL_S, end_s + POLL_S)
    energy_j = sum(gpu.true_energy_j(begin_s, end_s) for gpus in cards.values() for gpu in gpus)
    return RealRun(
        figures=real_figures(plan, ran, submitted_s, samples, energy_j),
        latency=measure_latency(ran, submitted_s, times, with_backfilled=described),
        times=times,
        ran=tuple(ran),
        samples=tuple(samples),
        wall_s=end_s - begin_s,
        late_s=late_s,
        exact_peak_w=exact_peak_w(cards, begin_s, end_s),
    )


def _done(folder: Path) -> int:
    """Count the jobs that have recorded their end; a job on several nodes counts once."""
    notes = (folder / "notes").iterdir()
    ended = (p for p in notes if p.read_bytes().rstrip().endswith(b'"done": 1.0}'))
    return len({path.name.partition(".")[0] for path in ended})


def _check(slurm: Callable[..., str], number_of: Mapping[int, int]) -> None:
    """Check for failed jobs, which never record an end."""
    failed = [
        number
        for line in slurm("squeue", "-h", "-t", "F,TO,NF,OOM,CA,BF", "-o", "%A").splitlines()
        if (number := int(line)) in number_of
    ]
    if failed:
        raise WattloopError(
            f"replay: {len(failed)} jobs failed, the first is job {number_of[failed[0]]} of the "
            f"plan; 'scontrol show job {failed[0]}' says how, and the log of its node why"
        )


@dataclass(frozen=True)
class ReplayResult:
    """Result of one policy, on the real Slurm and in the simulator.

    Attributes:
        policy: `slurm` with the name of its scheduler, or a policy of Wattloop.
        without_latency: result of the simulator without latencies.
    """

    policy: str
    real: RealRun
    simulated: ReplayFigures
    without_latency: ReplayFigures

    def differences(self) -> dict[str, float]:
        real, other = self.real.figures, self.simulated
        return {name: difference(getattr(real, name), getattr(other, name)) for name in COMPARED}

    def to_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "real": self.real.figures.to_dict(),
            "simulated": self.simulated.to_dict(),
            "simulated_without_latency": self.without_latency.to_dict(),
            "difference": self.differences(),
            "latency": asdict(self.real.latency),
            "wall_s": self.real.wall_s,
            "submissions_late_s": self.real.late_s,
            "exact_peak_w": self.real.exact_peak_w,
            "power_samples": len(self.real.samples),
            "power_samples_per_s": len(self.real.samples) / self.real.wall_s,
            "power": SAME_POWER,
        }


def replay(
    plan: ReplayPlan,
    policies: Sequence[str],
    *,
    slurm: Callable[..., str],
    folder: Path,
    driver: ReplayDriver | None = None,
    partition: str = "",
    tell: Callable[[str], Progress] | None = None,
) -> list[ReplayResult]:
    """Replay a plan under each of several policies.

    Args:
        plan: the jobs.
        policies: `slurm` for Slurm's own scheduler, or policies of Wattloop.
        slurm: runs one of Slurm's commands.
        folder: folder of plan, records and virtual GPUs, shared by all nodes.
        driver: runs a policy of Wattloop on Slurm; needed for those.
        partition: partition to submit to; by default Slurm's.
        tell: returns the progress callback for a policy's name.

    Raises:
        ConfigError: the scenario does not fit this Slurm, or other jobs run on its nodes.
        WattloopError: jobs failed.
    """
    names = match_nodes(plan.cluster, slurm, partition)
    scheduler = own_scheduler(slurm)
    options = (f"--partition={partition}",) if partition else ()
    found = []
    for policy in policies:
        _check_empty(slurm, names)
        own = policy == OWN
        label = f"{OWN} ({scheduler.kind})" if own else policy
        with nullcontext() if own or driver is None else driver.running(policy):
            real = run_real(
                plan,
                slurm,
                folder,
                names,
                options=options,
                described=not own,
                tell=None if tell is None else tell(label),
            )
        if driver and not own and math.isfinite(min(plan.settings.budget_w.values)):
            # Under a budget, jobs wait for the power of finished jobs, not for their GPUs.
            end_s = driver_end_latency(real.ran, real.times, driver.polls(policy))
            latency = replace(real.latency, end_s=real.latency.end_s if end_s is None else end_s)
            real = replace(real, latency=latency)
        who = scheduler if own else policy
        simulated, _ = simulate_replay(plan, who, real.latency)
        without_latency, _ = simulate_replay(plan, who, None)
        found.append(ReplayResult(label, real, simulated, without_latency))
    return found


def _check_empty(slurm: Callable[..., str], names: Mapping[int, str]) -> None:
    """Check that no other jobs run: the simulator assumes that all GPUs are free."""
    nodes = ",".join(names.values())
    running = slurm("squeue", "-h", "-t", "R,CF,S", "-w", nodes, "-o", "%i").split()
    if running:
        raise ConfigError(
            f"replay: {len(running)} jobs run on {nodes}, the first is {running[0]}; wait until "
            "they are done, or give a --partition of nodes that are free"
        )
