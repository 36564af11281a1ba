"""Submission of a plan's jobs through sbatch, and virtual GPUs of the nodes."""

import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster, GpuType
from wattloop.schedule.engine.settings import Keeps
from wattloop.schedule.slurm.replay.plan import ReplayPlan
from wattloop.virtual.cards import write_card
from wattloop.virtual.gpu import VirtualGpu
from wattloop.virtual.machine import MODEL_VARIABLE, STATE_VARIABLE, shared_machine


def write_cards(cluster: Cluster, folder: Path) -> None:
    """Write a file per GPU type with the scenario's idle power and power limits."""
    (folder / "virtual").mkdir(parents=True, exist_ok=True)
    for each in cluster.types:
        _write(each, _file(folder, each.name))


def node_environment(folder: Path, node: str, type_name: str) -> dict[str, str]:
    """Return the variables with which jobs, meters and agents find a node's virtual GPUs."""
    return {
        STATE_VARIABLE: str(folder / "virtual" / f"{node}.state"),
        MODEL_VARIABLE: str(_file(folder, type_name)),
    }


def cards_of(
    cluster: Cluster, folder: Path, names: Mapping[int, str]
) -> dict[str, tuple[VirtualGpu, ...]]:
    """Return the virtual GPUs of every node, by Slurm's name of the node."""
    found = {}
    for number, node in names.items():
        group = cluster.node_groups[number]
        environment = node_environment(folder, node, group.type_name)
        found[node] = shared_machine(group.gpus_per_node, environment=environment).gpus
    return found


def _file(folder: Path, type_name: str) -> Path:
    return folder / "virtual" / f"{type_name}.json"


def _write(kind: GpuType, path: Path) -> None:
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


PROGRAM = "wattloop.schedule.slurm.replay.job"


def write_plan(plan: ReplayPlan, folder: Path, names: Mapping[int, str]) -> None:
    """Write the files that jobs read: GPUs of the nodes, and time and power of each option.

    Args:
        plan: the jobs.
        folder: folder that all nodes share.
        names: node number of the cluster -> Slurm's name.
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
    plan: ReplayPlan, job: int, folder: Path, *, extra: Sequence[str] = (), described: bool = False
) -> list[str]:
    """Build the sbatch command line of a job.

    Args:
        plan: the jobs.
        job: job number.
        folder: folder of `write_plan`.
        extra: further options of sbatch, such as a partition.
        described: write into the job's comment what it trains, for a scheduler with an oracle.

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
        command.append(f"--comment={comment_of(plan, job)}")
    return [*command, f"--wrap=export WATTLOOP_REPLAY_KEEPS={keeps}; {work}"]


def comment_of(plan: ReplayPlan, job: int) -> str:
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
