"""Step 5: the decision tree (thesis figure 6.8), and what the simulated figures say to it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattloop.study.goals import GoalVerdict

__all__ = ["TREE", "Decision", "decide"]

TREE = {
    "energy and performance": ("zeus", "least energy-delay product"),
    "fairness": ("hades", "energy-delay product, users who had little first"),
    "deadlines": ("aurachronos", "slack first, preempting where a deadline is in danger"),
    "power budget": ("charon", "starts jobs only while they fit under the budget"),
}
"""Primary objective -> the policy the tree names, and why."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to deploy; empty when no candidate meets all goals."""

    choice: str
    reasons: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"choice": self.choice, "reasons": list(self.reasons)}


def decide(
    objective: str, verdicts: Mapping[str, tuple[GoalVerdict, ...]], energy: Mapping[str, float]
) -> Decision:
    """The tree's policy where it meets all goals, else the one that does with least energy.

    Args:
        objective: the primary one.
        verdicts: candidate -> its verdicts in the simulation.
        energy: candidate -> mean energy, to choose among those that meet all goals.
    """
    named, why = TREE[objective]
    good = [name for name, found in verdicts.items() if all(v.met for v in found)]
    reasons = [f"for {objective} the tree names {named}: {why}"]
    for name, found in verdicts.items():
        failed = [v for v in found if not v.met]
        told = "; ".join(f"{v.metric} {v.goal}: {v.why}" for v in failed)
        reasons.append(f"{name} meets all goals" if not failed else f"{name} fails {told}")
    if not good:
        reasons.append("no candidate meets all goals: back to step 3, or other candidates or goals")
        return Decision("", tuple(reasons))
    if named in good:
        best = min(good, key=lambda name: energy.get(name, float("inf")))
        if best != named:
            reasons.append(f"{best} meets them, too, with less energy")
            return Decision(best, tuple(reasons))
        return Decision(named, tuple(reasons))
    best = min(good, key=lambda name: energy.get(name, float("inf")))
    tried = "was not among the candidates" if named not in verdicts else "does not meet them"
    reasons.append(f"{named} {tried}; {best} meets all with least energy")
    return Decision(best, tuple(reasons))
