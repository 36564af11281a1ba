"""Promise: a scenario is replayed on nodes like its own, or refused with the nodes that exist."""

from collections.abc import Callable

import pytest

from tests.schedule.slurm.replay.small_plan import small_plan
from wattloop.core.errors import ConfigError
from wattloop.schedule.slurm.replay.plan import match_nodes

CLUSTER = small_plan([(0, 1)]).cluster


def sinfo(*lines: str) -> Callable[..., str]:
    """Make a Slurm whose commands print these lines."""
    return lambda *command: "\n".join(lines) + "\n"


def test_nodes_are_found_by_gpus() -> None:
    """Of the right type and count, and up; each once, in any number of partitions."""
    slurm = sinfo("x1|gpu:h100:2|idle", "n1|gpu:a100:2|idle", "n1|gpu:a100:2|idle",
                  "n2|gpu:a100:2(S:0)|mix", "n3|gpu:a100:2|idle")  # fmt: skip
    assert match_nodes(CLUSTER, slurm) == {0: "n1", 1: "n2"}


def test_a_scenario_wider_than_the_cluster_is_refused() -> None:
    """The message lists missing and existing nodes; nodes that are down do not count."""
    slurm = sinfo("n1|gpu:a100:2|idle", "n2|gpu:a100:2|down*", "n3|gpu:a100:2|idle*")
    with pytest.raises(ConfigError, match=r"wider than this Slurm: node node-1 .*n1 \(2 x a100\)"):
        match_nodes(CLUSTER, slurm)
