"""A scenario on a real Slurm under several policies, and what the simulator says of each."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.schedule.slurm.replay.carried import Carried, Progress, carry_out
from wattloop.schedule.slurm.replay.latency import Latency, steered_end_s
from wattloop.schedule.slurm.replay.nodes import matched_nodes
from wattloop.schedule.slurm.replay.outcome import Figures, difference
from wattloop.schedule.slurm.replay.own_scheduler import own_scheduler
from wattloop.schedule.slurm.replay.plan import Plan
from wattloop.schedule.slurm.replay.simulated import simulated

__all__ = ["COMPARED", "OWN", "Driving", "Replayed", "replay"]

OWN = "slurm"
"""Slurm's own scheduler, as it is configured."""
COMPARED = ("makespan_s", "gpu_energy_j", "throughput_per_h", "jct_mean_s", "peak_w")
SAME_POWER = (
    "Power is simulated, by the same virtual GPUs on both sides: what is compared is scheduling."
)

Driving = Callable[[str], AbstractContextManager[object]]
"""Something that steers Slurm by the policy of this name, while it is open."""


@dataclass(frozen=True)
class Replayed:
    """One policy, on the real Slurm and in the simulator.

    Attributes:
        policy: `slurm` with its scheduler, or the name of one of ours.
        real: what happened.
        simulated: what the simulator says, told this Slurm's latencies.
        untold: what it says of a Slurm without any.
    """

    policy: str
    real: Carried
    simulated: Figures
    untold: Figures

    def differences(self) -> dict[str, float]:
        """By what share of the real figure the simulated one is off."""
        real, other = self.real.figures, self.simulated
        return {name: difference(getattr(real, name), getattr(other, name)) for name in COMPARED}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
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
    plan: Plan,
    policies: Sequence[str],
    *,
    slurm: Callable[..., str],
    folder: Path,
    drive: Driving | None = None,
    partition: str = "",
    tell: Callable[[str], Progress] | None = None,
    rounds_of: Callable[[str], Sequence[tuple[float, Sequence[int]]]] | None = None,
) -> list[Replayed]:
    """Carry a plan out under one policy after the other.

    Args:
        plan: the jobs.
        policies: `slurm` for its own scheduler, or names of ours.
        slurm: runs one of Slurm's commands.
        folder: for plan, notes and virtual GPUs; every node sees it.
        drive: steers Slurm by a policy of ours; needed for those.
        partition: to submit to; Slurm's default unless given.
        tell: makes, for a policy's name, what is told how far it is.
        rounds_of: when the driver of a policy looked, and which jobs it started then; under a
            budget, what ends is waited for by whoever needs its power.

    Raises:
        ConfigError: the scenario does not fit this Slurm, or jobs of others are in the way.
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
            real = carry_out(
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
        found.append(Replayed(label, real, told, untold))
    return found


def latency_dict(latency: Latency) -> dict[str, Any]:
    """Plain data for JSON."""
    return {
        "start_s": latency.start_s,
        "end_s": latency.end_s,
        "starts": latency.starts,
        "ends": latency.ends,
        "source": latency.source,
    }


def _check_empty(slurm: Callable[..., str], names: Mapping[int, str]) -> None:
    """Jobs of others would take GPUs that the simulator thinks are free."""
    nodes = ",".join(names.values())
    running = slurm("squeue", "-h", "-t", "R,CF,S", "-w", nodes, "-o", "%i").split()
    if running:
        raise ConfigError(
            f"replay: {len(running)} jobs run on {nodes}, the first is {running[0]}; wait until "
            "they are done, or give a --partition of nodes that are free"
        )
