"""What is to be simulated: policies x seeds on a scenario, and on each of its variants."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.schedule.campaigns.cell import Cell, PolicyChoice, key_of
from wattloop.schedule.campaigns.seeds import seeds_text
from wattloop.schedule.scenarios.scenario import Scenario

__all__ = ["AS_WRITTEN", "Campaign", "Outcomes", "fingerprint"]

Outcomes = Mapping[tuple[str, str, int], Mapping[str, Any]]
"""(variant, label of the policy, seed) -> what came of that cell."""
AS_WRITTEN = "as-written"
"""Name of a scenario itself among its variants."""


@dataclass(frozen=True)
class Campaign:
    """Cells to be simulated.

    Attributes:
        scenario: cluster, jobs, oracle and rules.
        choices: the policies; the first is what others are compared with.
        seeds: the same for all policies, so that differences are paired.
        checks: look after every event whether the invariants hold.
    """

    scenario: Scenario
    choices: tuple[PolicyChoice, ...]
    seeds: tuple[int, ...]
    checks: bool = False

    def __post_init__(self) -> None:
        if not self.choices:
            raise ConfigError(
                "which policies? Name some with --policies; 'wattloop simulate policies' lists them"
            )
        labels = [choice.label for choice in self.choices]
        for label in labels:
            if labels.count(label) > 1:
                raise ConfigError(f"--policies: {label} is given twice; once is enough")

    @property
    def scenarios(self) -> dict[str, Scenario]:
        """Variant -> scenario, the scenario itself first.

        It has no name where it has no variants, and is left out where a variant is the same.
        """
        variants = dict(self.scenario.variants)
        if not variants:
            return {"": self.scenario}
        own = self.scenario.digest()
        if AS_WRITTEN in variants or any(each.digest() == own for each in variants.values()):
            return variants
        return {AS_WRITTEN: self.scenario, **variants}

    def cells(self) -> list[Cell]:
        """All of them, world by world."""
        found: list[Cell] = []
        worlds: dict[str, str] = {}
        for variant, scenario in self.scenarios.items():
            world = scenario.digest() + (" checked" if self.checks else "")
            if worlds.setdefault(world, variant) != variant:
                raise ConfigError(
                    f"{self.scenario.name}: variants {worlds[world]} and {variant} are the same; "
                    "leave one of them out"
                )
            found += [
                Cell(key_of(world, choice, seed), choice, seed, variant)
                for seed in self.seeds
                for choice in self.choices
            ]
        return found

    def spec(self) -> dict[str, Any]:
        """Plain data for the store."""
        return {
            "scenario": self.scenario.to_dict(),
            "variants": [name for name in self.scenarios if name],
            "policies": [choice.label for choice in self.choices],
            "seeds": seeds_text(self.seeds),
            "checks": self.checks,
            "scope": _scope(self.scenario),
        }


def fingerprint(cells: list[Cell]) -> str:
    """The same for the same cells."""
    return hashlib.sha256("".join(sorted(cell.key for cell in cells)).encode()).hexdigest()


def _scope(scenario: Scenario) -> str:
    """Whose energy it is: of GPUs alone where hosts and network are not counted."""
    cluster = scenario.cluster
    others_w = [cluster.network_w, *(group.host_w for group in cluster.groups)]
    others_w += [group.host_busy_w_per_gpu for group in cluster.groups]
    return "cluster" if any(others_w) else "gpu"
