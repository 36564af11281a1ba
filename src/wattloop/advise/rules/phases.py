"""Rules on phases that take much of a run.

Start-up, compilation, evaluation, checkpoints, and waiting for data on CPUs.
"""

import math
import re
import shlex
from typing import Any

from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts
from wattloop.advise.gpu_facts import GpuFacts, TraceInterval
from wattloop.advise.rules.starved_loader import FREE_CORES, MANY, WAITING, WORKERS
from wattloop.core.units import format_duration, format_energy, format_power
from wattloop.integrations.run_phases import Phase

SHORTEST_S = 10.0
STARTUP_SHARE = 0.1
"""Of the run. A run of ten minutes may start for one."""
SHORTEST_STARTUP_S = 30.0
NATURAL_S = 15.0
"""Not counted as saved: importing PyTorch and a model library, creating the CUDA context and
reading a model take about this long."""
MOSTLY_IDLE = 0.5
"""GPUs that work for more than half of the start-up do something useful there, such as generating
data or quantising a model."""


def startup_share(facts: RunFacts) -> Advice | None:
    """Start-up on idle GPUs, or on CPUs; at most what exceeds a natural start can be saved."""
    phase = facts.long_phase("start-up", STARTUP_SHARE, SHORTEST_STARTUP_S)
    if phase is None or phase.energy_j is None:
        return None
    gpus = facts.used_gpus
    if gpus:
        return _on_idle_gpus(facts, phase, gpus)
    avoidable = 1 - NATURAL_S / phase.time_s
    return _startup_advice(
        facts,
        phase,
        saving_j=avoidable * phase.energy_j,
        remedy=(
            "Prepare the data once, store the result and load it in later runs; import only what "
            "the training needs (python -X importtime names slow imports)."
        ),
        evidence=(),
        source=f"upper bound: the energy of the start-up beyond {NATURAL_S:g} s",
    )


def _on_idle_gpus(facts: RunFacts, phase: Phase, gpus: tuple[GpuFacts, ...]) -> Advice | None:
    # Compilations before the first step are not start-up: this end is early by their length.
    span = TraceInterval(0.0, phase.time_s)
    if min(gpu.idle_share(span) for gpu in gpus) < MOSTLY_IDLE:
        return None
    saving_j, evidence = 0.0, []
    for gpu in gpus:
        idle_s = gpu.idle_share(span) * span.length_s
        power_w = gpu.power_while_idle_w(span)
        saving_j += power_w * max(0.0, idle_s - NATURAL_S)
        evidence.append(
            f"{gpu.label}: no work in {gpu.idle_share(span):.0%} of it, "
            f"{format_power(power_w)} meanwhile"
        )
    return _startup_advice(
        facts,
        phase,
        saving_j=min(saving_j, phase.energy_j or 0.0),
        remedy=(
            "The GPUs were reserved and idle. Download, tokenise and decode in an earlier job "
            "without a GPU, store the result, and start the training with it; python -X importtime "
            "names slow imports."
        ),
        evidence=tuple(evidence),
        source=f"upper bound: what the idle GPUs drew in the start-up beyond {NATURAL_S:g} s",
    )


def _startup_advice(
    facts: RunFacts,
    phase: Phase,
    *,
    saving_j: float,
    remedy: str,
    evidence: tuple[str, ...],
    source: str,
) -> Advice:
    share = phase.time_s / facts.duration_s
    return Advice(
        rule="startup-share",
        title=f"Started for {share:.0%} of the time",
        text=(
            f"The first step began after {format_duration(phase.time_s)} of imports, data "
            f"preparation and model loading, which took {format_energy(phase.energy_j or 0.0)}. "
            + remedy
        ),
        saving_j=saving_j,
        saving_share=saving_j / facts.energy_j,
        time_change_share=-(phase.time_s - NATURAL_S) / facts.duration_s,
        evidence=(
            f"start-up: {format_duration(phase.time_s)} of {format_duration(facts.duration_s)}",
            *evidence,
        ),
        source=source,
        command=_import_times(facts.command),
        upper_bound=True,
    )


def _import_times(command: list[str]) -> str:
    """Return the command that lists slow imports; only for a program that Python runs."""
    if not command or not command[0].rpartition("/")[2].startswith("python"):
        return ""
    return shlex.join([command[0], "-X", "importtime", *command[1:]]) + " 2> imports.txt"


COMPILE_SHARE = 0.1
"""Of the run. A training of an hour compiles for a minute or two."""
CACHED = 0.7
"""Share of the compilation that a full cache saves. Dynamo traces the program again in each run;
what Inductor generated is read from the cache. Of two small models on a CPU with torch 2.13, a
transformer saved 94% and a convolutional network 76% of the time."""
MANY_PARTS = 10
"""A model without graph breaks compiles its forward and its backward pass, and each again when the
first change of shape makes it dynamic. More parts are graph breaks or recompilations."""


def compile_share(facts: RunFacts) -> Advice | None:
    """Time in `torch.compile`, and the part of it that a cache between runs saves."""
    phase = facts.long_phase("compilation", COMPILE_SHARE, SHORTEST_S)
    if phase is None or phase.energy_j is None:
        return None
    share = phase.time_s / facts.duration_s
    saving_j = CACHED * phase.energy_j
    again = facts.run_again()
    logged = "TORCH_LOGS=recompiles,graph_breaks " if phase.parts >= MANY_PARTS else ""
    return Advice(
        rule="compile-share",
        title=f"Compiled for {share:.0%} of the time",
        text=(
            f"torch.compile took {format_duration(phase.time_s)} and "
            f"{format_energy(phase.energy_j)}. Keep compiled code between runs: point "
            "TORCHINDUCTOR_CACHE_DIR to a folder that outlives the job (the default is in /tmp)."
            + (_recompilations(phase.parts) if logged else "")
        ),
        saving_j=saving_j,
        saving_share=saving_j / facts.energy_j,
        time_change_share=-CACHED * share,
        evidence=(
            f"compilation: {format_duration(phase.time_s)} of "
            f"{format_duration(facts.duration_s)}, {format_energy(phase.energy_j)}, "
            f"in {phase.parts} part{'' if phase.parts == 1 else 's'}",
        ),
        source=f"modelled: a cache saves {CACHED:.0%} of the compilation from the next run on",
        command=f"TORCHINDUCTOR_CACHE_DIR=$HOME/.cache/torchinductor {logged}{again}"
        if again
        else "",
    )


def _recompilations(parts: int) -> str:
    return (
        f" It compiled {parts} times: graph breaks, or shapes that change. Pad batches to a few "
        "lengths, drop the last smaller batch, or use torch.compile(dynamic=True); "
        "TORCH_LOGS=recompiles,graph_breaks names the causes."
    )


EVALUATION_SHARE = 0.2
"""Of the run. With a sixth as much validation as training data, an evaluation per epoch takes a
seventh of the time even where loading the data takes all of it."""
STEPS_BETWEEN = 10
"""A model that changes to evaluation mode more often generates data for its next steps."""
GENERATES = re.compile(r"(^|[^a-z])(ppo|grpo|rloo|dqn|sac|rlhf|rollouts?|reinforce|gym)([^a-z]|$)")
"""Reinforcement learning acts in evaluation mode: that is training, too."""
EVALUATION_INTERVALS = (
    "--eval_steps",
    "--eval-steps",
    "--eval_interval",
    "--eval-interval",
    "--eval_every",
    "--eval-every",
    "--val_interval",
    "--check_val_every_n_epoch",
    "--trainer.check_val_every_n_epoch",
)


def evaluation_share(facts: RunFacts) -> Advice | None:
    """Several evaluations with a large share; every second one could be left out."""
    phase = facts.long_phase("evaluation", EVALUATION_SHARE, SHORTEST_S)
    if phase is None or phase.energy_j is None or phase.parts < 2 or facts.totals is None:
        return None
    said = [*facts.command, facts.record.name, *map(str, facts.record.tags.values())]
    if any(GENERATES.search(word.lower()) for word in said):
        return None
    if phase.parts * STEPS_BETWEEN > facts.totals.steps:
        return None
    share = phase.time_s / facts.duration_s
    left_out = phase.parts // 2 / phase.parts
    return Advice(
        rule="evaluation-share",
        title=f"Evaluated for {share:.0%} of the time",
        text=(
            f"{phase.parts} evaluations took {format_duration(phase.time_s)} and "
            f"{format_energy(phase.energy_j)}. Evaluate half as often, or on a fixed part of the "
            "validation data until the last evaluation. Evaluate under torch.inference_mode(), "
            "which stores nothing for gradients and leaves room for a larger batch."
        ),
        **_left_out(facts, phase, left_out, f"{phase.parts} times in {facts.totals.steps:,} steps"),
        source="modelled: half as many evaluations of the same length",
        command=facts.run_again(more=facts.scaled_argument(EVALUATION_INTERVALS, 2)),
    )


CHECKPOINT_SHARE = 0.05
"""Of the run. With a failure a day, the best interval (below) spends 4% of the time on checkpoints
of five minutes, and less on shorter ones."""
BETWEEN_FAILURES_S = 86_400.0
"""Assumed: one failure a day."""
CHECKPOINT_INTERVALS = (
    "--save_steps",
    "--save-steps",
    "--save_interval",
    "--save-interval",
    "--save_every",
    "--save-every",
    "--checkpoint_interval",
    "--checkpoint-interval",
    "--ckpt_interval",
    "--checkpointing_steps",
)


def checkpoint_pauses(facts: RunFacts) -> Advice | None:
    """More checkpoints than protect the run; the additional ones could be left out."""
    phase = facts.long_phase("checkpoint", CHECKPOINT_SHARE, SHORTEST_S)
    if phase is None or phase.energy_j is None or phase.parts < 2:
        return None
    pause_s = phase.time_s / phase.parts
    # T = sqrt(2 C M): best time between checkpoints of length C with a failure every M seconds
    # (J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17, 1974)
    interval_s = math.sqrt(2 * pause_s * BETWEEN_FAILURES_S)
    needed = max(1, math.ceil(facts.duration_s / interval_s))
    if needed >= phase.parts:
        return None
    left_out = 1 - needed / phase.parts
    changed = facts.scaled_argument(CHECKPOINT_INTERVALS, phase.parts // needed)
    return Advice(
        rule="checkpoint-pauses",
        title=f"Paused for checkpoints {phase.time_s / facts.duration_s:.0%} of the time",
        text=(
            f"The training waited {phase.parts} times, {format_duration(pause_s)} each, until a "
            f"checkpoint was written: {format_energy(phase.energy_j)}. With one failure a day, a "
            f"checkpoint every {format_duration(interval_s)} is best: {needed} in this run. Or "
            "write them while the training continues (torch.distributed.checkpoint.async_save, "
            "Lightning's AsyncCheckpointIO), or first to a local disk."
        ),
        **_left_out(facts, phase, left_out, f"{phase.parts} pauses"),
        source="modelled: by Young's formula with one failure a day",
        command=facts.run_again(more=changed),
    )


def _left_out(facts: RunFacts, phase: Phase, part: float, often: str) -> dict[str, Any]:
    """Return the saving of an advice that leaves a part of a phase out, and its evidence."""
    energy_j = phase.energy_j or 0.0
    return {
        "saving_j": part * energy_j,
        "saving_share": part * energy_j / facts.energy_j,
        "time_change_share": -part * phase.time_s / facts.duration_s,
        "evidence": (
            f"{phase.name}: {format_duration(phase.time_s)} of "
            f"{format_duration(facts.duration_s)}, {format_energy(energy_j)}, {often}",
        ),
    }


def unused_cores(facts: RunFacts) -> Advice | None:
    """Waiting for data with free cores. Where a GPU works, `starved-loader` judges the waiting."""
    phase = facts.long_phase("waiting for data", WAITING, SHORTEST_S)
    host = facts.host
    if phase is None or phase.energy_j is None or phase.parts < MANY or facts.working is not None:
        return None
    utilisation = facts.cpu_utilisation(facts.whole)
    if host is None or utilisation is None or utilisation >= FREE_CORES:
        return None
    share = phase.time_s / facts.duration_s
    # The work of loading stays; the idle power of the time that is gone is saved.
    saving_j = min(host.idle_w * phase.time_s, phase.energy_j)
    return Advice(
        rule="unused-cores",
        title=f"Waited for data {share:.0%} of the time with free cores",
        text=(
            f"The training waited {format_duration(phase.time_s)} for its loader while "
            f"{1 - utilisation:.0%} of the CPU was unused. Give the loader more workers "
            "(num_workers, persistent_workers=True), so that it prepares the next batch during "
            "the step, or decode the data once ahead of time."
        ),
        saving_j=saving_j,
        saving_share=saving_j / facts.energy_j,
        time_change_share=-share,
        evidence=(
            f"waiting for data: {format_duration(phase.time_s)} of "
            f"{format_duration(facts.duration_s)}, in {phase.parts} parts",
            f"CPU utilisation {utilisation:.0%}, idle power {format_power(host.idle_w)} "
            f"({host.idle_source})",
        ),
        source="upper bound: idle power over the waiting, if all of it ends",
        command=facts.run_again(more=facts.scaled_argument(WORKERS, 2, least=4)),
        upper_bound=True,
    )
