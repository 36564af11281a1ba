"""Rule: a training that pauses too often to write checkpoints."""

import math

from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts
from wattloop.core.units import format_duration, format_energy

SHARE = 0.05
"""Of the run. With a failure a day, the best interval (below) spends 4% of the time on checkpoints
of five minutes, and less on shorter ones."""
SHORTEST_S = 10.0
BETWEEN_FAILURES_S = 86_400.0
"""Assumed: one failure a day."""
INTERVALS = (
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
    phase = facts.long_phase("checkpoint", SHARE, SHORTEST_S)
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
    share = phase.time_s / facts.duration_s
    saving_j = left_out * phase.energy_j
    changed = facts.scaled_argument(INTERVALS, phase.parts // needed)
    return Advice(
        rule="checkpoint-pauses",
        title=f"Paused for checkpoints {share:.0%} of the time",
        text=(
            f"The training waited {phase.parts} times, {format_duration(pause_s)} each, until a "
            f"checkpoint was written: {format_energy(phase.energy_j)}. With one failure a day, a "
            f"checkpoint every {format_duration(interval_s)} is best: {needed} in this run. Or "
            "write them while the training continues (torch.distributed.checkpoint.async_save, "
            "Lightning's AsyncCheckpointIO), or first to a local disk."
        ),
        saving_j=saving_j,
        saving_share=saving_j / facts.energy_j,
        time_change_share=-left_out * share,
        evidence=(
            f"checkpoint: {format_duration(phase.time_s)} of {format_duration(facts.duration_s)}, "
            f"{format_energy(phase.energy_j)}, {phase.parts} pauses",
        ),
        source="modelled: by Young's formula with one failure a day",
        command=facts.run_again(more=changed) if changed else "",
    )
