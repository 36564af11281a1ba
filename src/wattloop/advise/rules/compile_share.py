"""Rule: a run that spends much of its time on compiling its model."""

from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts
from wattloop.core.units import format_duration, format_energy

SHARE = 0.1
"""Of the run. A training of an hour compiles for a minute or two."""
SHORTEST_S = 10.0
CACHED = 0.7
"""Share of the compilation that a full cache saves. Dynamo traces the program again in each run;
what Inductor generated is read from the cache. Of two small models on a CPU with torch 2.13, a
transformer saved 94% and a convolutional network 76% of the time."""
MANY_PARTS = 10
"""A model without graph breaks compiles its forward and its backward pass, and each again when the
first change of shape makes it dynamic. More parts are graph breaks or recompilations."""


def compile_share(facts: RunFacts) -> Advice | None:
    """Time in `torch.compile`, and the part of it that a cache between runs saves."""
    phase = facts.long_phase("compilation", SHARE, SHORTEST_S)
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
