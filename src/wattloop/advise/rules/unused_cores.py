"""Rule: a training on CPUs that waits for data while cores are free."""

from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts
from wattloop.advise.rules.starved_loader import FREE_CORES, MANY, WAITING, WORKERS
from wattloop.core.units import format_duration, format_power

SHORTEST_S = 10.0


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
        command=facts.run_again(more=more)
        if (more := facts.scaled_argument(WORKERS, 2, least=4))
        else "",
        upper_bound=True,
    )
