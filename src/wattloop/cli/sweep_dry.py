"""`wattloop sweep --dry-run`: every point and every write."""

import shlex
from typing import Any

from wattloop.cli.output import write_json
from wattloop.core.units import format_duration
from wattloop.sweep.plan import SweepPlan, SweepPoint

__all__ = ["print_plan"]


def print_plan(plan: SweepPlan, json_file: str | None) -> None:
    """List what would happen; nothing is set and nothing is run."""
    if json_file is not None:
        write_json(_as_dict(plan), json_file)
    if json_file == "-":
        return
    import sys

    rule = plan.spec.repeats
    out = sys.stdout.write
    out(f"{len(plan.points)} points, {rule.least} to {rule.most} runs each")
    out(f", {plan.spec.warmup} warm-up run(s) per default setting")
    if plan.spec.timeout_s is not None:
        out(f", each ended after {format_duration(plan.spec.timeout_s)}")
    out("\n")
    for point in plan.block(0):
        trial = plan.trial(point, "0")
        out(f"\n{point.key}{' (default)' if point.is_default else ''}\n")
        for name, value in trial.environment.items():
            out(f"  {name}={value}\n")
        for text in _writes(plan, point):
            out(f"  {text}\n")
        out(f"  $ {shlex.join(trial.command)}\n")
    out("\nat the end every lever is put back to what it was before\n")


def _writes(plan: SweepPlan, point: SweepPoint) -> list[str]:
    levers = {lever.name: lever for axis in plan.axes for lever in axis.levers}
    texts = (levers[name].write_text(value) for name, value in point.settings.items())
    return [line for text in texts for line in text.splitlines()]


def _as_dict(plan: SweepPlan) -> dict[str, Any]:
    return {
        "points": [
            {
                **point.to_dict(),
                "key": point.key,
                "settings": dict(point.settings),
                "writes": _writes(plan, point),
                "command": list(plan.trial(point, "0").command),
                "environment": dict(plan.trial(point, "0").environment),
            }
            for point in plan.block(0)
        ],
        "spec": plan.spec.to_dict(),
    }
