"""The table of a replay: real and simulated, policy by policy."""

import math
from collections.abc import Sequence

from wattloop.cli.output import print_table, say
from wattloop.core.units import format_duration, format_energy, format_power
from wattloop.schedule.slurm.replay.outcome import Figures
from wattloop.schedule.slurm.replay.plan import ReplayPlan
from wattloop.schedule.slurm.replay.runner import SAME_POWER, ReplayResult

__all__ = ["print_replayed"]


def print_replayed(plan: ReplayPlan, found: Sequence[ReplayResult]) -> None:
    """Two rows per policy, and what Slurm took to start and clear away."""
    headers = ["policy", "", "makespan", "GPU energy", "peak", "jobs/h", "completion", "misses"]
    if not math.isinf(max(plan.settings.budget_w.values)):
        headers.append("over budget")
    rows: list[list[str]] = []
    for each in found:
        rows.append(_row(each.policy, "real", each.real.figures))
        rows.append(_row("", "simulated", each.simulated))
        off = each.differences()
        names = ("makespan_s", "gpu_energy_j", "peak_w", "throughput_per_h", "jct_mean_s")
        rows.append(["", "off by", *(f"{100 * off[name]:+.1f}%" for name in names), ""])
    width = len(headers)
    print_table(headers, [[*row, *[""] * width][:width] for row in rows])
    for each in found:
        latency = each.real.latency
        cleared = "-" if latency.end_s is None else f"{latency.end_s:.2f} s"
        say(
            f"{each.policy}: Slurm took {latency.start_s:.2f} s to start a job and {cleared} to "
            f"give its GPUs to the next ({latency.source}); the simulator was told"
        )
    say(f"Times and energy are the scenario's (real ones x {plan.speedup:g}). {SAME_POWER}")


def _row(policy: str, kind: str, figures: Figures) -> list[str]:
    over = figures.over_budget_s
    return [
        policy,
        kind,
        format_duration(figures.makespan_s),
        format_energy(figures.gpu_energy_j),
        format_power(figures.peak_w),
        f"{figures.throughput_per_h:.1f}",
        format_duration(figures.jct_mean_s),
        f"{figures.misses}/{figures.deadlines}",
        *([] if over is None else [format_duration(over)]),
    ]
