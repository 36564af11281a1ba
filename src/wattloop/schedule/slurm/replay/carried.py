"""One policy on the real Slurm, from the first submission to the last end."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattloop.core.errors import WattloopError
from wattloop.schedule.slurm.replay.cards import cards_of
from wattloop.schedule.slurm.replay.latency import Latency, Times, latency_of, read_times
from wattloop.schedule.slurm.replay.notes import Ran, read_notes
from wattloop.schedule.slurm.replay.outcome import Figures, real_figures
from wattloop.schedule.slurm.replay.plan import Plan
from wattloop.schedule.slurm.replay.submit import sbatch_command, write_plan
from wattloop.schedule.slurm.replay.watching import PowerSample, PowerWatch, exact_peak_w

__all__ = ["Carried", "Progress", "carry_out"]

Progress = Callable[[int, int, int, float], None]
"""Called with jobs submitted, jobs done, all jobs, and power now."""

LOOK_S = 0.2
ASK_SLURM_S = 5.0
PATIENCE_S = 120.0
"""How long nothing may happen while jobs are left."""


@dataclass(frozen=True)
class Carried:
    """A replay that has been carried out.

    Attributes:
        figures: of the whole.
        latency: of this Slurm in this run.
        times: of jobs, by Slurm.
        ran: what every job did.
        samples: power of all GPUs.
        wall_s: how long it took.
        late_s: by how much submissions were late at most.
        exact_peak_w: most that all GPUs drew at any moment, between samples too.
    """

    figures: Figures
    latency: Latency
    times: Times
    ran: tuple[Ran, ...]
    samples: tuple[PowerSample, ...]
    wall_s: float
    late_s: float
    exact_peak_w: float


def carry_out(
    plan: Plan,
    slurm: Callable[..., str],
    folder: Path,
    names: Mapping[int, str],
    *,
    options: Sequence[str] = (),
    described: bool = False,
    tell: Progress | None = None,
    patience_s: float = PATIENCE_S,
) -> Carried:
    """Submit the jobs of a plan as they come, and wait until all are done.

    Args:
        plan: the jobs.
        slurm: runs one of Slurm's commands and returns what it prints.
        folder: for plan, notes and virtual GPUs; every node sees it under this path.
        names: node number of the plan's cluster -> what Slurm calls it.
        options: further options of sbatch.
        described: tell what each job trains in its comment.
        tell: is told how far it is.
        patience_s: how long nothing may happen.

    Raises:
        WattloopError: jobs failed, or nothing happens any more.
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
        time.sleep(2 * LOOK_S)  # the last of the meters' ticks
        ran = read_notes(folder)
        times = read_times(slurm)
    end_s = max(each.end_s for each in ran)
    samples = watch.samples(begin_s - LOOK_S, end_s + LOOK_S)
    energy_j = sum(gpu.true_energy_j(begin_s, end_s) for gpus in cards.values() for gpu in gpus)
    return Carried(
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
    """Jobs that have noted their end; those of several nodes once."""
    ended = {
        path.name.partition(".")[0]
        for path in (folder / "notes").iterdir()
        if path.read_bytes().rstrip().endswith(b'"done": 1.0}')
    }
    return len(ended)


def _check(slurm: Callable[..., str], number_of: Mapping[int, int]) -> None:
    """Jobs that failed will never note an end.

    Raises:
        WattloopError: which, and how to find out why.
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
