"""Campaign: policies x seeds on a scenario and its variants."""

import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import wattloop
from wattloop.core.errors import ConfigError
from wattloop.core.user_code import user_sources
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.scenarios.scenario import Scenario

PARTS = ("schedule", "predict", "hardware")
"""Packages that a simulation's figures depend on."""
SUFFIXES = (".py", ".yaml", ".json", ".csv", ".gz", ".npz")


@cache
def source_digest(packages: tuple[str, ...] = PARTS) -> str:
    """Hash all code and data of packages, so that results of other versions are not reused.

    A version number would have to be raised by hand with every change of a policy or a constant.
    The hash takes about 20 ms.
    """
    root = Path(wattloop.__file__).parent
    found = hashlib.sha256()
    for part in packages:
        for path in sorted((root / part).rglob("*")):
            if path.suffix in SUFFIXES:
                found.update(str(path.relative_to(root)).encode() + b"\0")
                found.update(path.read_bytes())
    return found.hexdigest()


MOST = 1_000_000


def seeds_from(text: str) -> tuple[int, ...]:
    """Parse seeds: `10` is the first ten, `0..99` a range with both ends, `3,5,7` a list."""
    found: list[int] = []
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        stretch = re.fullmatch(r"(\d+)\s*\.\.\s*(\d+)", part)
        if stretch is not None:
            first, last = int(stretch[1]), int(stretch[2])
            if last < first:
                raise ConfigError(f"--seeds {text}: {part} is empty; write {last}..{first}")
            _few_enough(text, last - first + 1)
            found += range(first, last + 1)
        elif not part.isascii() or not part.isdecimal():
            raise ConfigError(f"--seeds {text}: write how many (10), 0..99, or a list (3,5,7)")
        elif len(parts) == 1:
            _few_enough(text, int(part))
            found = list(range(int(part)))
        else:
            found.append(int(part))
    if not found:
        raise ConfigError(f"--seeds {text}: give at least one seed")
    if len(set(found)) < len(found):
        twice = next(seed for seed in found if found.count(seed) > 1)
        raise ConfigError(f"--seeds {text}: {twice} is given twice; it would count twice")
    return tuple(found)


def seeds_text(seeds: tuple[int, ...]) -> str:
    """Return the shortest text that `seeds_from` accepts: `0..9`, or `3,5,7`."""
    if len(seeds) > 1 and seeds == tuple(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}..{seeds[-1]}"
    if len(seeds) == 1:
        return f"{seeds[0]}..{seeds[0]}"
    return ",".join(map(str, seeds))


def _few_enough(text: str, count: int) -> None:
    if count > MOST:
        raise ConfigError(f"--seeds {text}: {count} seeds are too many")


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """Policy with its parameters, as given by the user.

    Attributes:
        given: as written: `zeus`, `zeus{age_weight_per_s: 0.1}`, `FILE.py:Class`, or a mapping.
        label: name in tables; unique within a campaign.
        source: hash of a user's policy file and its imports from the same folder; shipped policies
            are part of `source_digest`.
    """

    given: str | Mapping[str, Any]
    label: str
    source: str = ""

    @classmethod
    def named(cls, given: str | Mapping[str, Any]) -> "PolicyChoice":
        policy = policy_from(given)
        return cls(given, policy.name, _foreign_source(policy))

    def policy(self) -> Policy:
        return policy_from(self.given)


@dataclass(frozen=True, slots=True)
class SimulationJob:
    """One simulation of a campaign.

    Attributes:
        key: equal for equal simulations by the same code; see `key_of`.
        variant: variant of the scenario; empty without variants.
    """

    key: str
    choice: PolicyChoice
    seed: int
    variant: str = ""

    @property
    def label(self) -> str:
        of = f" of {self.variant}" if self.variant else ""
        return f"{self.choice.label} on seed {self.seed}{of}"

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "variant": self.variant,
            "policy": self.choice.label,
            "given": self.choice.given,
            "seed": self.seed,
        }


def simulation_key(scenario: str, choice: PolicyChoice, seed: int) -> str:
    """Hash scenario (its digest), policy, parameters, seed and the simulator's code."""
    said = [scenario, choice.label, choice.source, seed, source_digest()]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]


def _foreign_source(policy: Policy) -> str:
    module = inspect.getmodule(type(policy))
    if module is None or module.__name__.startswith("wattloop."):
        return ""
    files = [path.name.encode() + b"\0" + path.read_bytes() for path in user_sources(module)]
    return hashlib.sha256(b"".join(files) or module.__name__.encode()).hexdigest()


Outcomes = Mapping[tuple[str, str, int], Mapping[str, Any]]
"""(variant, label of the policy, seed) -> outcome of that simulation."""
AS_WRITTEN = "as-written"
"""Name of the unchanged scenario among its variants."""


@dataclass(frozen=True)
class Campaign:
    """Simulations of policies x seeds.

    Attributes:
        choices: the policies; the others are compared with the first.
        seeds: the same for all policies, so that differences are paired.
    """

    scenario: Scenario
    choices: tuple[PolicyChoice, ...]
    seeds: tuple[int, ...]
    checks: bool = False

    def __post_init__(self) -> None:
        if not self.choices:
            raise ConfigError(
                "no policy given; name some with --policies (see 'wattloop simulate policies')"
            )
        labels = [choice.label for choice in self.choices]
        for label in labels:
            if labels.count(label) > 1:
                raise ConfigError(f"--policies: {label} is given twice; once is enough")

    @property
    def scenarios(self) -> dict[str, Scenario]:
        """Return variant -> scenario, starting with the scenario itself.

        Its name is empty if there are no variants. It is left out if a variant equals it.
        """
        variants = dict(self.scenario.variants)
        if not variants:
            return {"": self.scenario}
        own = self.scenario.digest()
        if AS_WRITTEN in variants or any(each.digest() == own for each in variants.values()):
            return variants
        return {AS_WRITTEN: self.scenario, **variants}

    def cells(self) -> list[SimulationJob]:
        """Return all simulations, grouped by scenario and seed."""
        found: list[SimulationJob] = []
        worlds: dict[str, str] = {}
        for variant, scenario in self.scenarios.items():
            world = scenario.digest() + (" checked" if self.checks else "")
            if worlds.setdefault(world, variant) != variant:
                raise ConfigError(
                    f"{self.scenario.name}: variants {worlds[world]} and {variant} are the same; "
                    "leave one of them out"
                )
            found += [
                SimulationJob(simulation_key(world, choice, seed), choice, seed, variant)
                for seed in self.seeds
                for choice in self.choices
            ]
        return found

    def spec(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario.to_dict(),
            "variants": [name for name in self.scenarios if name],
            "policies": [choice.label for choice in self.choices],
            "seeds": seeds_text(self.seeds),
            "checks": self.checks,
            "scope": _scope(self.scenario),
        }


def fingerprint(cells: list[SimulationJob]) -> str:
    """Return a hash of the simulations, independent of the campaign's name."""
    return hashlib.sha256("".join(sorted(cell.key for cell in cells)).encode()).hexdigest()


def _scope(scenario: Scenario) -> str:
    """Return the scope of energy: GPUs only, if hosts and network are not counted."""
    cluster = scenario.cluster
    others_w = [cluster.network_w, *(group.host_w for group in cluster.groups)]
    others_w += [group.host_busy_w_per_gpu for group in cluster.groups]
    return "cluster" if any(others_w) else "gpu"
