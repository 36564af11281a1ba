"""A node as Slurm shows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattloop.core.errors import SlurmError
from wattloop.schedule.slurm.gres import asked_gpus
from wattloop.schedule.slurm.json_fields import text_of, words_of

__all__ = ["SlurmNode", "nodes_from"]

AWAY = (
    "DOWN", "DRAIN", "DRAINED", "FAIL", "FAILING", "MAINTENANCE", "MAINT", "NOT_RESPONDING",
    "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "REBOOT", "REBOOT_ISSUED", "UNKNOWN", "FUTURE",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node.

    Attributes:
        gpu_type: empty where Slurm's configuration names none.
        is_up: takes jobs.
    """

    name: str
    gpu_type: str
    gpus: int
    partitions: tuple[str, ...]
    is_up: bool


def nodes_from(data: Mapping[str, Any]) -> list[SlurmNode]:
    """Every node of `sinfo --json`.

    Raises:
        SlurmError: there is no list of nodes in it.
    """
    listed = data.get("nodes")
    if not isinstance(listed, list):
        raise SlurmError("Slurm: 'sinfo --json' gave no list of nodes")
    return [_node(each) for each in listed if isinstance(each, Mapping) and text_of(each, "name")]


def _node(data: Mapping[str, Any]) -> SlurmNode:
    gpus = asked_gpus(text_of(data, "gres"))
    states = {word.upper() for word in (*words_of(data, "state"), *words_of(data, "state_flags"))}
    return SlurmNode(
        text_of(data, "name"),
        gpus.type_name,
        gpus.number,
        words_of(data, "partitions"),
        not states & set(AWAY),
    )
