"""One policy on one seed of a scenario: what a campaign is made of."""

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattloop.core.user_code import user_sources
from wattloop.schedule.campaigns.source_digest import source_digest
from wattloop.schedule.policies.policy import Policy
from wattloop.schedule.policies.registry import policy_from

__all__ = ["Cell", "PolicyChoice", "key_of"]


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy with its parameters, as a person chose it.

    Attributes:
        given: as written: `zeus`, `zeus{age_weight_per_s: 0.1}`, `FILE.py:Class`, or a mapping.
        label: what tables call it; unique within a campaign.
        source: a hash of its file, and of what that imports of its own folder, where it is not
            one of ours; ours are in `source_digest`.
    """

    given: str | Mapping[str, Any]
    label: str
    source: str = ""

    @classmethod
    def named(cls, given: str | Mapping[str, Any]) -> "PolicyChoice":
        """The policy that is written so.

        Raises:
            ConfigError: unknown policy or parameter.
        """
        policy = policy_from(given)
        return cls(given, policy.name, _foreign_source(policy))

    def policy(self) -> Policy:
        """One to simulate with."""
        return policy_from(self.given)


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation of a campaign.

    Attributes:
        key: the same whenever the same is simulated by the same code; see `key_of`.
        choice: the policy.
        seed: of everything random in the scenario.
        variant: of the scenario; empty where it has none.
    """

    key: str
    choice: PolicyChoice
    seed: int
    variant: str = ""

    @property
    def label(self) -> str:
        """For people: `zeus on seed 3 of rigid`."""
        of = f" of {self.variant}" if self.variant else ""
        return f"{self.choice.label} on seed {self.seed}{of}"

    @property
    def settings(self) -> dict[str, Any]:
        """Plain data for the store."""
        return {
            "variant": self.variant,
            "policy": self.choice.label,
            "given": self.choice.given,
            "seed": self.seed,
        }


def key_of(scenario: str, choice: PolicyChoice, seed: int) -> str:
    """A hash of scenario, policy, parameters, seed and the code that simulates.

    Args:
        scenario: a hash of all that the scenario says, files it reads included.
        choice: the policy.
        seed: of the cell.
    """
    said = [scenario, choice.label, choice.source, seed, source_digest()]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]


def _foreign_source(policy: Policy) -> str:
    module = inspect.getmodule(type(policy))
    if module is None or module.__name__.startswith("wattloop."):
        return ""
    files = [path.name.encode() + b"\0" + path.read_bytes() for path in user_sources(module)]
    return hashlib.sha256(b"".join(files) or module.__name__.encode()).hexdigest()
