"""Rule: evaluations that take much of the training."""

import re

from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts
from wattloop.core.units import format_duration, format_energy

SHARE = 0.2
"""Of the run. With a sixth as much validation as training data, an evaluation per epoch takes a
seventh of the time even where loading the data takes all of it."""
SHORTEST_S = 10.0
STEPS_BETWEEN = 10
"""A model that changes to evaluation mode more often generates data for its next steps."""
GENERATES = re.compile(r"(^|[^a-z])(ppo|grpo|rloo|dqn|sac|rlhf|rollouts?|reinforce|gym)([^a-z]|$)")
"""Reinforcement learning acts in evaluation mode: that is training, too."""
INTERVALS = (
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
    phase = facts.long_phase("evaluation", SHARE, SHORTEST_S)
    if phase is None or phase.energy_j is None or phase.parts < 2 or facts.totals is None:
        return None
    said = [*facts.command, facts.record.name, *map(str, facts.record.tags.values())]
    if any(GENERATES.search(word.lower()) for word in said):
        return None
    if phase.parts * STEPS_BETWEEN > facts.totals.steps:
        return None
    share = phase.time_s / facts.duration_s
    left_out = phase.parts // 2 / phase.parts
    saving_j = left_out * phase.energy_j
    changed = facts.scaled_argument(INTERVALS, 2)
    return Advice(
        rule="evaluation-share",
        title=f"Evaluated for {share:.0%} of the time",
        text=(
            f"{phase.parts} evaluations took {format_duration(phase.time_s)} and "
            f"{format_energy(phase.energy_j)}. Evaluate half as often, or on a fixed part of the "
            "validation data until the last evaluation. Evaluate under torch.inference_mode(), "
            "which stores nothing for gradients and leaves room for a larger batch."
        ),
        saving_j=saving_j,
        saving_share=saving_j / facts.energy_j,
        time_change_share=-left_out * share,
        evidence=(
            f"evaluation: {format_duration(phase.time_s)} of {format_duration(facts.duration_s)}, "
            f"{format_energy(phase.energy_j)}, {phase.parts} times in {facts.totals.steps:,} steps",
        ),
        source="modelled: half as many evaluations of the same length",
        command=facts.run_again(more=changed) if changed else "",
    )
