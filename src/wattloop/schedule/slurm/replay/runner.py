"""Runner of replays: a scenario on a real Slurm under several policies, and in the simulator."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError, WattloopError
from wattloop.schedule.slurm.replay.latency import (
    Latency,
    Times,
    latency_of,
    read_times,
    steered_end_s,
)
from wattloop.schedule.slurm.replay.outcome import (
    Figures,
    PowerSample,
    PowerWatch,
    Ran,
    difference,
    exact_peak_w,
    read_notes,
    real_figures,
)
from wattloop.schedule.slurm.replay.plan import ReplayPlan, matched_nodes
from wattloop.schedule.slurm.replay.simulation import own_scheduler, simulated
from wattloop.schedule.slurm.replay.submit import cards_of, sbatch_command, write_plan

Progress = Callable[[int, int, int, float], None]


"""Called with jobs submitted, jobs done, all jobs, and power now."""


LOOK_S = 0.2


ASK_SLURM_S = 5.0


PATIENCE_S = 120.0


"""Longest time without progress while jobs are left."""


@dataclass(frozen=True)
class RealRun:
    """Result of a replay on Slurm.

    Attributes:
        figures: figures of the whole run.
        latency: Slurm's latencies in this run.
        times: Slurm's times of jobs.
        ran: records of all jobs.
        samples: power of all GPUs.
        wall_s: real duration.
        late_s: greatest delay of a submission.
        exact_peak_w: peak power of all GPUs, including peaks between samples.
    """

    figures: Figures
    latency: Latency
    times: Times
    ran: tuple[Ran, ...]
    samples: tuple[PowerSample, ...]
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
    patience_s: float = PATIENCE_S,
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
        patience_s: longest time without progress.

    Raises:
        WattloopError: jobs failed, or there is no progress.
    """
    write_plan(plan, folder, names)
    cards = cards_of(plan.cluster, folder, names)
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
            waits_for_next = len(submitted_s) < jobs
            if now_s - news_s > patience_s and not waits_for_next:
                raise WattloopError(
                    f"replay: nothing has happened for {patience_s:g} s and {jobs - done} of "
                    f"{jobs} jobs are left; see squeue and the log of slurmctld"
                )
            time.sleep(LOOK_S)
        time.sleep(2 * LOOK_S)  # the last tick of the energy counters
        ran = read_notes(folder)
        times = read_times(slurm)
    end_s = max(each.end_s for each in ran)
    samples = watch.samples(begin_s - LOOK_S, end_s + LOOK_S)
    energy_j = sum(gpu.true_energy_j(begin_s, end_s) for gpus in cards.values() for gpu in gpus)
    return RealRun(
        figures=real_figures(plan, ran, submitted_s, samples, energy_j),
        latency=latency_of(ran, submitted_s, times, with_backfilled=described),
        times=times,
        ran=tuple(ran),
        samples=tuple(samples),
        wall_s=end_s - begin_s,
        late_s=late_s,
        exact_peak_w=exact_peak_w(cards, begin_s, end_s),
    )


def _done(folder: Path) -> int:
    """Count the jobs that have recorded their end; a job on several nodes counts once."""
    ended = {
        path.name.partition(".")[0]
        for path in (folder / "notes").iterdir()
        if path.read_bytes().rstrip().endswith(b'"done": 1.0}')
    }
    return len(ended)


def _check(slurm: Callable[..., str], number_of: Mapping[int, int]) -> None:
    """Check for failed jobs, which never record an end.

    Raises:
        WattloopError: a job failed; the message names it and where to find the reason.
    """
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


OWN = "slurm"


"""Name of the policy that leaves the decisions to Slurm's own scheduler."""


COMPARED = ("makespan_s", "gpu_energy_j", "throughput_per_h", "jct_mean_s", "peak_w")


SAME_POWER = (
    "Power is simulated, by the same virtual GPUs on both sides: what is compared is scheduling."
)


Driving = Callable[[str], AbstractContextManager[object]]


"""Function that returns a context in which the named policy schedules Slurm's jobs."""


@dataclass(frozen=True)
class ReplayResult:
    """Result of one policy, on the real Slurm and in the simulator.

    Attributes:
        policy: `slurm` with the name of its scheduler, or a policy of Wattloop.
        real: result on Slurm.
        simulated: result of the simulator with Slurm's latencies.
        untold: result of the simulator without latencies.
    """

    policy: str
    real: RealRun
    simulated: Figures
    untold: Figures

    def differences(self) -> dict[str, float]:
        """Return the relative differences of the simulated figures from the real ones."""
        real, other = self.real.figures, self.simulated
        return {name: difference(getattr(real, name), getattr(other, name)) for name in COMPARED}

    def to_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "real": self.real.figures.to_dict(),
            "simulated": self.simulated.to_dict(),
            "simulated_without_latency": self.untold.to_dict(),
            "difference": self.differences(),
            "latency": latency_dict(self.real.latency),
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
    drive: Driving | None = None,
    partition: str = "",
    tell: Callable[[str], Progress] | None = None,
    rounds_of: Callable[[str], Sequence[tuple[float, Sequence[int]]]] | None = None,
) -> list[ReplayResult]:
    """Replay a plan under each of several policies.

    Args:
        plan: the jobs.
        policies: `slurm` for Slurm's own scheduler, or policies of Wattloop.
        slurm: runs one of Slurm's commands.
        folder: folder of plan, records and virtual GPUs, shared by all nodes.
        drive: runs a policy of Wattloop on Slurm; needed for those.
        partition: partition to submit to; by default Slurm's.
        tell: returns the progress callback for a policy's name.
        rounds_of: returns the times of a driver's polls and the jobs started then; under a
            budget, jobs wait for the power of finished jobs.

    Raises:
        ConfigError: the scenario does not fit this Slurm, or other jobs run on its nodes.
        WattloopError: jobs failed.
    """
    names = matched_nodes(plan.cluster, slurm, partition)
    scheduler = own_scheduler(slurm)
    options = (f"--partition={partition}",) if partition else ()
    found = []
    for policy in policies:
        _check_empty(slurm, names)
        own = policy == OWN
        label = f"{OWN} ({scheduler.kind})" if own else policy
        with nullcontext() if own or drive is None else drive(policy):
            real = run_real(
                plan,
                slurm,
                folder,
                names,
                options=options,
                described=not own,
                tell=None if tell is None else tell(label),
            )
        if rounds_of is not None and not own and math.isfinite(min(plan.settings.budget_w.values)):
            end_s = steered_end_s(real.ran, real.times, rounds_of(policy))
            latency = replace(real.latency, end_s=real.latency.end_s if end_s is None else end_s)
            real = replace(real, latency=latency)
        who = scheduler if own else policy
        told, _ = simulated(plan, who, real.latency)
        untold, _ = simulated(plan, who, None)
        found.append(ReplayResult(label, real, told, untold))
    return found


def latency_dict(latency: Latency) -> dict[str, Any]:
    return {
        "start_s": latency.start_s,
        "end_s": latency.end_s,
        "starts": latency.starts,
        "ends": latency.ends,
        "source": latency.source,
    }


def _check_empty(slurm: Callable[..., str], names: Mapping[int, str]) -> None:
    """Check that no other jobs run: the simulator assumes that all GPUs are free."""
    nodes = ",".join(names.values())
    running = slurm("squeue", "-h", "-t", "R,CF,S", "-w", nodes, "-o", "%i").split()
    if running:
        raise ConfigError(
            f"replay: {len(running)} jobs run on {nodes}, the first is {running[0]}; wait until "
            "they are done, or give a --partition of nodes that are free"
        )
