"""Rule: a long start-up before the first training step."""

import shlex

from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts
from wattloop.advise.gpu_facts import GpuFacts
from wattloop.advise.signal_trace import TraceInterval
from wattloop.core.units import format_duration, format_energy, format_power
from wattloop.integrations.phases import Phase

SHARE = 0.1
"""Of the run. A run of ten minutes may start for one."""
SHORTEST_S = 30.0
NATURAL_S = 15.0
"""Not counted as saved: importing PyTorch and a model library, creating the CUDA context and
reading a model take about this long."""
MOSTLY_IDLE = 0.5
"""GPUs that work for more than half of the start-up do something useful there, such as generating
data or quantising a model."""


def startup_share(facts: RunFacts) -> Advice | None:
    """Start-up on idle GPUs, or on CPUs; at most what exceeds a natural start can be saved."""
    phase = facts.long_phase("start-up", SHARE, SHORTEST_S)
    if phase is None or phase.energy_j is None:
        return None
    gpus = facts.used_gpus
    if gpus:
        return _on_idle_gpus(facts, phase, gpus)
    avoidable = 1 - NATURAL_S / phase.time_s
    return _advice(
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
    return _advice(
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


def _advice(
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
