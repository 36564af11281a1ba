"""What stays the same from round to round."""

from collections.abc import Sequence
from dataclasses import dataclass

from wattloop.schedule.described.fleet_oracle import FleetOracle
from wattloop.schedule.slurm.believed import Believed
from wattloop.schedule.slurm.known_nodes import KnownNodes
from wattloop.schedule.slurm.node_record import SlurmNode
from wattloop.schedule.steps import Steps

__all__ = ["Site", "shared_partitions"]


@dataclass(frozen=True, slots=True)
class Site:
    """A part of a Slurm cluster, and what is known of it.

    Attributes:
        known: nodes, and the cluster they make.
        managed: partitions whose jobs are ours to place.
        shared: other partitions that have some of the nodes; their jobs are let through.
        believed: what is believed of jobs.
        oracle: time and power of kinds.
        budget_w: most the nodes may draw, over seconds since 1970.
    """

    known: KnownNodes
    managed: tuple[str, ...]
    shared: tuple[str, ...]
    believed: Believed
    oracle: FleetOracle
    budget_w: Steps


def shared_partitions(
    nodes: Sequence[SlurmNode], known: KnownNodes, managed: Sequence[str]
) -> tuple[str, ...]:
    """Partitions that are not managed and have some of the nodes."""
    found = {name for node in nodes if node.name in known.numbers for name in node.partitions}
    return tuple(sorted(found - set(managed)))
