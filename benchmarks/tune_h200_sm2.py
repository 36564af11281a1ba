"""Results of SM2's first choice of rates, for the page of `tune_h200.py`."""

from collections.abc import Mapping
from typing import Any

from bars import Table

__all__ = ["first_choices", "why_lost"]

TEXT = """
Survivors of the first halving (alpha 0.75). The rate is the largest of a window in which the loss
after *single* steps is calm and low, each step but one of twenty in a round being at another rate
(Geißler et al., 4.2; ADR 0024). Whether a *training* at that rate goes well is first asked in the
five thorough epochs that follow. By SGD it does: steps at rates that are too high undo what others
taught, the loss has its least in the middle of the range, and the choice lies near it. By AdamW,
whose steps are as long as the rate whatever the gradient, steps at the high end of the round teach
most and one of them in twenty does no harm; so the loss is lowest there, and configurations are
lost by rates at which they cannot be trained, however good their batch size is.
"""


def first_choices(scenarios: Mapping[str, Any]) -> Table:
    """Return the rate, and quality before and after the first thorough epochs, of each survivor."""
    rows: list[list[object]] = []
    for found in scenarios.values():
        for choice in _survivors(found):
            rows.append(
                [
                    found["facts"]["title"],
                    choice["batch_size"],
                    f"{choice['rate']:.2g}",
                    f"{choice['rate'] / found['facts']['rate']:.2g}x",
                    f"{choice['explored']:.4g}",
                    f"{choice['trained']:.4g}",
                    choice["epochs"],
                ]
            )
    header = [
        "",
        "batch size",
        "rate",
        "over vanilla's",
        "quality after exploring",
        "quality after training",
        "epochs trained",
    ]
    return Table("What SM2 chose first", header, rows, TEXT)


def why_lost(found: Mapping[str, Any], lost: float | None) -> str:
    """Return a sentence for a search that lost more than noise; else an empty one."""
    if lost is None or lost <= 1:
        return ""
    chosen = _survivors(found)
    worse = [c for c in chosen if _is_worse(found, c["trained"], c["explored"])]
    if not worse:
        return ""
    ratios = [c["rate"] / found["facts"]["rate"] for c in worse]
    left = next((t["parameters"].get("batch_size") for t in _searches(found)), None)
    return (
        f"{len(worse)} of the {len(chosen)} configurations that survived the first halving were "
        f"broken by the rates SM2 chose for them ({min(ratios):.2g} to {max(ratios):.2g} times "
        f"vanilla's): they left their first thorough epochs worse than a quarter of an epoch of "
        f"exploring had made them. What was left is batch size {left}. The reason is the "
        "document's rule for rates as reconstructed in ADR 0024: see 'What SM2 chose first'"
    )


def _searches(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [t for t in found["trainings"] if t["kind"] == "sm2-0.75"]


def _survivors(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    chosen: dict[str, dict[str, Any]] = {}
    explored: dict[str, float] = {}
    for training in _searches(found):
        for segment in training["segments"]:
            name, quality = segment["candidate"], segment["quality"]
            if quality is None or name in chosen:
                continue
            if segment["sweep"]:
                explored[name] = quality
            elif name in explored and segment["rate"]:
                chosen[name] = {
                    "batch_size": segment["batch_size"],
                    "rate": segment["rate"],
                    "explored": explored[name],
                    "trained": quality,
                    "epochs": segment["epochs"],
                }
    return list(chosen.values())


def _is_worse(found: Mapping[str, Any], one: float, other: float) -> bool:
    return one < other if found["facts"]["maximize"] else one > other
