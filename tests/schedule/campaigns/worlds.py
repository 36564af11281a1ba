"""Small scenarios, and a store for campaigns."""

from pathlib import Path
from typing import Any

from wattloop.schedule.campaigns.campaign import Campaign, PolicyChoice
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.schedule.scenarios.scenario import Scenario

TINY = """
name: tiny
cluster:
  groups:
    - {name: old, type: a100, gpu: a100-sxm-40, nodes: 1, gpus_per_node: 2, host_w: 0, idle_w: 50}
jobs:
  generate: {rate_per_s: 0.005}
  users: 2
  deadlines: {share: 0.5, factor: 3}
  models:
    - model: hf:albert-base-v2
      precision: bf16
      sequence: 256
      work: {samples: 67349, epochs: 2}
      gpus: [1, 2]
      batches: [32]
oracle: {kind: analytic, noise: 10%}
engine: {horizon: 2 h}
policies: [fifo, zeus]
seeds: 2
"""
"""Two A100s and an hour's work more than they can do: who goes first matters."""

FAILING = """
from wattloop.schedule.policies import Policy


class Broken(Policy):
    def decide(self, view):
        raise ZeroDivisionError("no GPU left to divide by")


class Eager(Policy):
    \"\"\"Starts a job that does not wait, which cannot be done, and nothing else.\"\"\"

    def decide(self, view):
        from wattloop.schedule.actions import Start

        return (Start(10_000, 0),)
"""


def tiny_file(folder: Path) -> Path:
    """Write the scenario as a file."""
    path = folder / "tiny.yaml"
    path.write_text(TINY)
    return path


def tiny(folder: Path, changes: dict[str, Any] | None = None) -> Scenario:
    """Return the scenario with some fields changed."""
    return load_scenario(str(tiny_file(folder)), changes)


def campaign(scenario: Scenario, policies: str = "fifo zeus", seeds: int = 2) -> Campaign:
    """Return a campaign of policies on a scenario; names are separated by spaces."""
    choices = tuple(PolicyChoice.named(name) for name in policies.split())
    return Campaign(scenario, choices, tuple(range(seeds)))
