"""Summary of a campaign: each policy over its seeds, and paired differences from the first."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wattloop.analyze.repeats import Estimate
from wattloop.schedule.campaigns.campaign import Outcomes
from wattloop.schedule.metrics.metrics import Difference, compare, spread

Found = Mapping[tuple[str, int], Mapping[str, Any]]
"""(label of the policy, seed) -> outcome, in one variant."""
PER_CELL = (
    "jobs_done",
    "throughput_per_h",
    "energy_kwh",
    "idle_kwh",
    "wasted_kwh",
    "jct_mean_s",
    "jct_p95_s",
    "miss_rate",
    "peak_power_w",
    "over_budget_s",
    "jain_jct",
    "jain_share",
    "preemptions",
    "event_hash",
    "wall_s",
)
"""First fields of every row in JSON, in this order; all other metrics follow."""


@dataclass(frozen=True)
class Summary:
    """Statistics of a campaign over its seeds.

    Attributes:
        labels: the policies, in the order of the campaign.
        spreads: policy -> metric -> mean and deviation; None where no seed has the figure.
        differences: policy -> metric -> paired difference from the first policy.
        failed: (policy, seed) -> error.
        never: reason -> most jobs of one seed that can never run for this reason.
        left: policy -> (jobs that never started on all seeds, the first reason).
        refused: policy -> (number of impossible actions, the first one).
        notes: assumptions about the jobs on all seeds, and the sources of time and power.
    """

    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    spreads: Mapping[str, Mapping[str, Estimate | None]]
    differences: Mapping[str, Mapping[str, Difference | None]]
    failed: Mapping[tuple[str, int], str]
    never: Mapping[str, int]
    refused: Mapping[str, tuple[int, str]]
    notes: tuple[str, ...] = ()
    left: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "policies": {
                label: {
                    name: None if found is None else found.to_dict()
                    for name, found in self.spreads[label].items()
                }
                for label in self.labels
            },
            "differences": {
                label: {
                    name: None if found is None else found.to_dict()
                    for name, found in differences.items()
                }
                for label, differences in self.differences.items()
            },
            "compared_with": self.labels[0],
            "failed": [
                {"policy": label, "seed": seed, "error": error}
                for (label, seed), error in self.failed.items()
            ],
            "never": dict(self.never),
            "left": {
                label: {"jobs": count, "first": first}
                for label, (count, first) in self.left.items()
            },
            "refused": {
                label: {"actions": count, "first": first}
                for label, (count, first) in self.refused.items()
            },
            "notes": list(self.notes),
        }


def by_variant(outcomes: Outcomes) -> dict[str, dict[tuple[str, int], Mapping[str, Any]]]:
    found: dict[str, dict[tuple[str, int], Mapping[str, Any]]] = {}
    for (variant, label, seed), outcome in outcomes.items():
        found.setdefault(variant, {})[label, seed] = outcome
    return found


def summary_of(outcomes: Found) -> Summary:
    labels = tuple(dict.fromkeys(label for label, _ in outcomes))
    seeds = tuple(dict.fromkeys(seed for _, seed in outcomes))
    good = {cell: found for cell, found in outcomes.items() if "error" not in found}
    names = _figures(good)
    columns = {
        label: {name: [_figure(good.get((label, seed)), name) for seed in seeds] for name in names}
        for label in labels
    }
    return Summary(
        labels=labels,
        seeds=seeds,
        spreads={label: {name: spread(columns[label][name]) for name in names} for label in labels},
        differences={
            label: {name: compare(columns[labels[0]][name], columns[label][name]) for name in names}
            for label in labels[1:]
        },
        failed={cell: found["error"] for cell, found in outcomes.items() if "error" in found},
        never=_never(good),
        refused=_refused(good),
        notes=_notes(good),
        left=_left(good),
    )


def per_cell(outcomes: Outcomes) -> list[dict[str, Any]]:
    """Return a row per policy and seed: `PER_CELL`, then all other metrics."""
    rows = []
    for (variant, label, seed), outcome in outcomes.items():
        row: dict[str, Any] = {"variant": variant} if variant else {}
        row |= {"policy": label, "seed": seed}
        row |= {name: outcome.get(name) for name in PER_CELL}
        rows.append(row | {name: value for name, value in outcome.items() if name not in row})
    return rows


def _figure(outcome: Mapping[str, Any] | None, name: str) -> float | None:
    """Return a metric of an outcome; `utilisation.h100` is a nested one."""
    value: Any = outcome
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _figures(good: Found) -> list[str]:
    names: dict[str, None] = {}
    for outcome in good.values():
        for name, value in outcome.items():
            if isinstance(value, int | float):
                names[name] = None
            elif name == "utilisation":
                names |= {f"utilisation.{kind}": None for kind in value}
    return list(names)


def _never(good: Found) -> dict[str, int]:
    most: dict[str, int] = {}
    for outcome in good.values():
        for reason, count in (outcome.get("never") or {}).items():
            most[reason] = max(count, most.get(reason, 0))
    return most


def _left(good: Found) -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    for (label, _), outcome in good.items():
        # A starved job says more about a policy than a job that cannot run.
        reasons = sorted(outcome.get("left") or (), key=lambda why: "starved" not in why)
        if reasons:
            count, first = found.get(label, (0, reasons[0]))
            found[label] = count + len(reasons), first
    return found


def _refused(good: Found) -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    for (label, _), outcome in good.items():
        if outcome.get("refusals"):
            count, first = found.get(label, (0, outcome["refused"][0]))
            found[label] = count + outcome["refusals"], first
    return found


def _notes(good: Found) -> tuple[str, ...]:
    """Return the notes that all seeds share, without those about single seeds."""
    if not good:
        return ()
    first, *others = good.values()
    shared = [
        note
        for note in first.get("notes", ())
        if all(note in other.get("notes", ()) for other in others)
    ]
    sources = dict.fromkeys(each for found in good.values() for each in found.get("sources", ()))
    return (*shared, *((f"time and power: {', '.join(sources)}",) if sources else ()))
