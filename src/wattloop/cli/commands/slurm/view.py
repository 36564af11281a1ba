"""Terminal output of the Slurm driver."""

import sys
import time

from wattloop.cli.output import is_terminal, print_rows, say
from wattloop.core.units import format_duration, format_energy, format_power
from wattloop.schedule.slurm.event_log import RoundReport
from wattloop.schedule.slurm.managed_cluster import ManagedCluster
from wattloop.schedule.slurm.observer import DecisionTable

EVERY_S = 10.0
"""A line about a round in which nothing happened, at most so often."""
TOLD = {"start": "start", "preempt": "stop", "recap": "recap", "would-start": "would start"}
QUIET = ("standby", "pass", "late")


class Console:
    """Messages of the driver on standard error.

    Args:
        quiet: nothing but refusals.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._said_s = 0.0
        self._line = is_terminal(sys.stderr)

    def introduce(self, site: ManagedCluster, policy: str, *, looks_only: bool) -> None:
        if self._quiet:
            return
        known, gpus = site.known, site.known.cluster.gpus
        what = "looks at" if looks_only else "places jobs of"
        say(
            f"wattloop: {policy} {what} {', '.join(site.managed)}: {len(known.names)} nodes, "
            f"{gpus} GPUs ({', '.join(kind.name for kind in known.cluster.types)})"
        )
        for line in known.left_out:
            say(f"wattloop: left out: {line}")
        if site.shared and not looks_only:
            say(f"wattloop: shared with {', '.join(site.shared)}: their jobs are let through")

    def tell(self, kind: str, text: str) -> None:
        if kind in QUIET or (self._quiet and kind not in ("refused", "fault", "warning")):
            return
        say(f"{time.strftime('%H:%M:%S')} {TOLD.get(kind, kind)}: {text}")

    def round(self, report: RoundReport) -> None:
        now_s = time.monotonic()
        if self._quiet or now_s - self._said_s < EVERY_S:
            return
        self._said_s = now_s
        budget = "" if report.budget_w == float("inf") else f" of {format_power(report.budget_w)}"
        say(
            f"{time.strftime('%H:%M:%S')} {report.waiting} wait, {report.running} run, "
            f"{report.free_gpus} GPUs free, {format_power(report.power_w)}{budget}, round "
            f"{report.took_s * 1e3:.0f} ms"
        )


def would_have_rows(table: DecisionTable) -> None:
    """Show the policy's decisions next to what Slurm did."""
    rows = [
        (
            row.key,
            row.user,
            row.source,
            "-" if row.would_s is None else format_duration(max(row.would_s - row.submit_s, 0)),
            "-" if row.began_s is None else format_duration(max(row.began_s - row.submit_s, 0)),
            ",".join(row.nodes),
            str(row.gpus or "-"),
            "-" if row.cap_w is None else format_power(row.cap_w),
            "-" if row.time_s is None else format_duration(row.time_s),
            "-" if row.gpu_energy_j is None else format_energy(row.gpu_energy_j),
        )
        for row in table.rows.values()
    ]
    headers = (
        "job", "user", "estimate", "would wait", "waited", "nodes", "gpus", "cap", "time",
        "gpu energy",
    )  # fmt: skip
    if rows:
        print_rows(headers, rows, spare=("user", "nodes"))
    else:
        say("wattloop: no job waited")
