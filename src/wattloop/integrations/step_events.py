"""Steps and epochs as events of the journal.

    {"type": "steps", "kind": "step", "index": [...], "epoch": [...], "begin_s": [...],
     "end_s": [...], "domains": ["cpu:0/package", "gpu:0"], "energy_j": [[...], [...]],
     "uncertainty_j": [[...], [...]], "loss": [...], "metrics": {"accuracy": [...]},
     "count": [...]}

One list per domain, in the order of `domains`, one entry per step; null is "not read". `loss`,
`metrics` and `count` are there only when they say something: `count` tells how many steps an
entry stands for, where a very long run writes several as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wattloop.integrations.records import EpochRecord, StepRecord

__all__ = ["epoch_event", "merged", "steps_event"]


def steps_event(
    records: Sequence[StepRecord], counts: Sequence[int] | None = None
) -> dict[str, Any]:
    """One event for many steps."""
    domains = list({name: None for record in records for name in record.energy})
    columns = [[record.energy.get(name) for record in records] for name in domains]
    names = list({name: None for record in records for name in record.metrics})
    metrics = {name: [_short(r.metrics.get(name)) for r in records] for name in names}
    event: dict[str, Any] = {
        "type": "steps",
        "kind": "step",
        "index": [record.index for record in records],
        "epoch": [record.epoch for record in records],
        "begin_s": [round(record.begin_s, 6) for record in records],
        "end_s": [round(record.end_s, 6) for record in records],
        "domains": domains,
        "energy_j": [[_short(v[0]) if v else None for v in column] for column in columns],
        "uncertainty_j": [[_short(v[1]) if v else None for v in column] for column in columns],
    }
    if "loss" in metrics:
        event["loss"] = metrics.pop("loss")
    if metrics:
        event["metrics"] = metrics
    if counts is not None:
        event["count"] = list(counts)
    return event


def epoch_event(epoch: EpochRecord) -> dict[str, Any]:
    """The event of one epoch."""
    result = epoch.result
    metrics = {**epoch.signals, **epoch.metrics, "steps": epoch.steps}
    return {
        "type": "step",
        "kind": "epoch",
        "index": epoch.index,
        "begin_s": result.begin_s,
        "end_s": result.end_s,
        "energy": {
            d.name: [d.energy_j, d.uncertainty_j] for d in result.domains if d.energy_j is not None
        },
        "metrics": {name: _short(value) for name, value in metrics.items()},
    }


def merged(records: Sequence[StepRecord]) -> StepRecord:
    """Consecutive steps as one."""
    first, last = records[0], records[-1]
    names = {name for record in records for name in record.energy}
    energy = {
        name: (
            sum(r.energy[name][0] for r in records if name in r.energy),
            math.sqrt(sum(r.energy[name][1] ** 2 for r in records if name in r.energy)),
        )
        for name in sorted(names)
    }
    totals = [r.energy_j for r in records if r.energy_j is not None]
    return StepRecord(
        index=last.index,
        epoch=last.epoch,
        begin_s=first.begin_s,
        end_s=last.end_s,
        energy=energy,
        energy_j=sum(totals) if totals else None,
        uncertainty_j=math.sqrt(sum(r.uncertainty_j**2 for r in records)),
        metrics=dict(last.metrics),
    )


def _short(value: float | None) -> float | None:
    """Seven digits are more than any sensor has; infinities and NaN are no JSON."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.7g}")
