"""A job of a plan as sbatch takes it."""

import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.schedule.engine.settings import Keeps
from wattloop.schedule.slurm.replay.cards import write_cards
from wattloop.schedule.slurm.replay.plan import Plan

__all__ = ["comment_of", "sbatch_command", "write_plan"]

PROGRAM = "wattloop.schedule.slurm.replay.job"


def write_plan(plan: Plan, folder: Path, names: Mapping[int, str]) -> None:
    """What jobs read when they run: which node has which GPUs, and time and power of each option.

    Args:
        plan: the jobs.
        folder: where; all nodes see it.
        names: node number of the cluster -> what Slurm calls it.
    """
    for name in ("jobs", "notes"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for note in (folder / "notes").iterdir():
        note.unlink()
    write_cards(plan.cluster, folder)
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


def sbatch_command(
    plan: Plan, job: int, folder: Path, *, extra: Sequence[str] = (), described: bool = False
) -> list[str]:
    """The whole command line.

    Args:
        plan: the jobs.
        job: number of one of them.
        folder: of `write_plan`.
        extra: further options of sbatch, such as a partition.
        described: say in the job's comment what it trains, for a scheduler that asks an oracle.

    Raises:
        ConfigError: the job is wider than whole nodes can hold.
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
    # Not by --export: slurmd would start a login shell for every job, a second or more.
    keeps = "nothing" if plan.settings.preemption.keeps is Keeps.NOTHING else "work"
    command = [
        "sbatch", "--parsable", "--output=/dev/null", "--error=/dev/null", "--requeue",
        f"--job-name=replay-{job}", f"--time={plan.limit_min(job)}", f"--nodes={nodes}",
        "--ntasks-per-node=1", f"--gres=gpu:{gpus // nodes}",
        *extra,
    ]  # fmt: skip
    if described:
        command.append(f"--comment={comment_of(plan, job)}")
    return [*command, f"--wrap=export WATTLOOP_REPLAY_KEEPS={keeps}; {work}"]


def comment_of(plan: Plan, job: int) -> str:
    """What the job trains, in the words of docs/slurm.md."""
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
