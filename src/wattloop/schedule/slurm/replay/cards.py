"""Virtual GPUs for the nodes of a replay, with the power of the scenario's GPUs."""

from collections.abc import Mapping
from pathlib import Path

from wattloop.schedule.cluster.cluster import Cluster, GpuType
from wattloop.virtual.cards import write_card
from wattloop.virtual.gpu import VirtualGpu
from wattloop.virtual.machine import MODEL_VARIABLE, STATE_VARIABLE, shared_machine

__all__ = ["cards_of", "node_environment", "write_cards"]


def write_cards(cluster: Cluster, folder: Path) -> None:
    """A file per GPU type: idle power and limits as the scenario has them."""
    (folder / "virtual").mkdir(parents=True, exist_ok=True)
    for each in cluster.types:
        _write(each, _file(folder, each.name))


def node_environment(folder: Path, node: str, type_name: str) -> dict[str, str]:
    """Variables with which any process finds the virtual GPUs of a node: jobs, meters, agents."""
    return {
        STATE_VARIABLE: str(folder / "virtual" / f"{node}.state"),
        MODEL_VARIABLE: str(_file(folder, type_name)),
    }


def cards_of(
    cluster: Cluster, folder: Path, names: Mapping[int, str]
) -> dict[str, tuple[VirtualGpu, ...]]:
    """The virtual GPUs of every node, by the name that Slurm has for it."""
    found = {}
    for number, node in names.items():
        group = cluster.node_groups[number]
        environment = node_environment(folder, node, group.type_name)
        found[node] = shared_machine(group.gpus_per_node, environment=environment).gpus
    return found


def _file(folder: Path, type_name: str) -> Path:
    return folder / "virtual" / f"{type_name}.json"


def _write(kind: GpuType, path: Path) -> None:
    # All power above idle is arithmetic at the highest clock, so that any power up to the limit
    # is a share of the time busy; and it follows at once, as jobs are short.
    write_card(
        path,
        "h200",
        name=f"virtual {kind.name}",
        idle_w=kind.idle_w,
        compute_w=kind.tdp_w - kind.idle_w,
        memory_w=0.0,
        memory_idle_w=0.0,
        default_limit_w=kind.tdp_w,
        min_limit_w=kind.gpu.cap_min_w,
        ramp_s=0.005,
        source="power of the replayed scenario's GPU type",
    )
