"""A node around virtual cards: its power, the energy of a job, and the cards that are shared."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from wattloop.core.clock import Clock
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_id
from wattloop.hardware.host import Host
from wattloop.virtual.cards import CARDS
from wattloop.virtual.gpu import IDLE, Activity, CardModel, OperatingPoint, VirtualGpu
from wattloop.virtual.job import TrainingJob
from wattloop.virtual.timeline import FileTimeline

#     P_node  = P_dc / eta(P_dc / P_rated),   P_dc = host + sum of GPUs + fans
#     P_fans  = fan_w (Q / Q_full)^3          air flow in proportion to heat, power to its cube
#     t(n)    = sum over phases of t_phase(n) x slowdown of the slowest card
#
# Q is the power that the heat sinks of all cards feel, idle ones included; `Q_full` is every card
# at its default limit.
GOLD = ((0.0, 0.80), (0.1, 0.84), (0.2, 0.88), (0.5, 0.92), (1.0, 0.88))
"""(load, efficiency) of an 80 PLUS Gold power supply at 230 V; below 20% load assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeModel:
    """Parameters of one node.

    Attributes:
        gpus: how many it holds; what a job leaves unused is idle.
        host_w: processors, memory, disks, board and fans at their lowest speed.
        fan_w: what fans draw more when every card runs at its default limit.
        supply_w: rated power of all power supplies together.
        efficiency: (load, efficiency) points of the supplies, linear in between.
    """

    name: str
    card: CardModel
    gpus: int
    host_w: float
    fan_w: float
    supply_w: float
    efficiency: tuple[tuple[float, float], ...] = GOLD
    job: TrainingJob
    source: str = ""

    def power_w(self, gpus_w: float, heat_w: float) -> float:
        """Return the power at the socket; fans follow `heat_w`, which the heat sinks feel."""
        full_w = self.gpus * self.card.default_limit_w
        dc_w = self.host_w + gpus_w + self.fan_w * (heat_w / full_w) ** 3
        return dc_w / _between(self.efficiency, dc_w / self.supply_w)


class CardLimits(NamedTuple):
    """Limits of every card in use; None leaves the card's own."""

    limit_w: float | None = None
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None


class NodeOutcome(NamedTuple):
    """What a job took: simulated seconds and joules."""

    time_s: float
    node_energy_j: float
    gpu_energy_j: float


def steady_outcome(
    node: NodeModel, job: TrainingJob, gpus: int, setting: CardLimits | None = None
) -> NodeOutcome:
    """Return time and energy of a long job on a warm node, without letting time pass."""
    if not 1 <= gpus <= node.gpus:
        raise ConfigError(f"{node.name} has {node.gpus} GPUs, not {gpus}; use 1 to {node.gpus}")
    card, setting = node.card, setting or CardLimits()
    limit_w = setting.limit_w or card.default_limit_w
    clock_mhz = setting.clock_mhz or card.max_clock_mhz
    idle_w = card.settle(IDLE, limit_w, clock_mhz).power_w
    time_s = 0.0
    phases_w: list[tuple[float, float]] = []
    for phase in job.phases(gpus):
        point = _settled(card, phase.activity, limit_w, clock_mhz, setting.memory_clock_mhz)
        duration_s = phase.duration_s * point.slowdown
        phases_w.append((duration_s, gpus * point.power_w + (node.gpus - gpus) * idle_w))
        time_s += duration_s
    gpus_j = sum(duration_s * power_w for duration_s, power_w in phases_w)
    heat_w = gpus_j / time_s  # steps are short against the heat sinks' time constant
    node_j = sum(duration_s * node.power_w(power_w, heat_w) for duration_s, power_w in phases_w)
    return NodeOutcome(time_s, node_j, gpus_j)


@lru_cache(maxsize=1_024)
def _settled(
    card: CardModel, activity: Activity, limit_w: float, clock_mhz: float, memory_mhz: float | None
) -> OperatingPoint:
    """Settling takes most of the time, and does not depend on the number of cards."""
    return card.settle(activity, limit_w, clock_mhz, memory_mhz)


def _between(points: Sequence[tuple[float, float]], x: float) -> float:
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]


XCEPTION = TrainingJob(
    name="xception",
    gpu_s=395.1,
    activity=Activity(1.0, 0.5, 1.0, overlap=0.0),
    comm_s=16.87,
    comm_growth=0.489,
    comm_activity=Activity(0.232, 1.0, 1.0),
    source=(
        "five epochs of Xception on 10,000 images with Horovod, Koszczal et al. (Euro-Par 2023 "
        "Workshops, doi 10.1007/978-3-031-48803-0_1); fitted by benchmarks/document_004.py"
    ),
)
NODES: dict[str, NodeModel] = {
    "node004": NodeModel(
        name="node004",
        card=CARDS["rtx6000"],
        gpus=8,
        host_w=474.6,
        fan_w=500.0,
        supply_w=4_000.0,
        job=XCEPTION,
        source=(
            "8 Quadro RTX 6000, 2 Xeon Silver 4210, four 1 kW Gold supplies of Koszczal et al. "
            "(Euro-Par 2023 Workshops, doi 10.1007/978-3-031-48803-0_1); host and fans fitted by "
            "benchmarks/document_004.py to the training times and largest energy gains they give"
        ),
    ),
}


def node_named(name: str) -> NodeModel:
    """The node called `name`, such as `node004`. Raises ConfigError: there is none."""
    node = NODES.get(name.lower())
    if node is None:
        raise ConfigError(f"no virtual node called '{name}'; known are {', '.join(NODES)}")
    return node


STATE_VARIABLE = "WATTLOOP_VIRTUAL_STATE"
MODEL_VARIABLE = "WATTLOOP_VIRTUAL_MODEL"


class VirtualMachine(NamedTuple):
    """Cards, the file that holds their state, and the node they sit in, if it is modelled."""

    gpus: tuple[VirtualGpu, ...]
    state_path: Path
    model_name: str
    node: NodeModel | None

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which another process finds the same cards."""
        return {STATE_VARIABLE: str(self.state_path), MODEL_VARIABLE: self.model_name}


def shared_machine(
    count: int,
    clock: Clock | None = None,
    environment: Mapping[str, str] | None = None,
    host: Host | None = None,
) -> VirtualMachine:
    """`count` cards that all processes of this user see, as they would real ones.

    They meet in the file named by `WATTLOOP_VIRTUAL_STATE`, or one per user and boot in the
    directory for temporary files. `WATTLOOP_VIRTUAL_MODEL` names a card (`h200` unless given), a
    node, or a file that describes a card (`*.json`, see `card_file`).
    """
    env = os.environ if environment is None else environment
    boot = (host or Host()).boot_id[:8]
    # The number changes with the layout of the file.
    default = Path(tempfile.gettempdir()) / f"wattloop-virtual-3-{user_id()}-{boot}.state"
    timeline = FileTimeline(Path(env.get(STATE_VARIABLE) or default))
    given = env.get(MODEL_VARIABLE) or "h200"
    name = given if given.endswith(".json") else given.lower()
    node = NODES.get(name)
    if name.endswith(".json"):
        from wattloop.virtual.cards import read_card  # few have a card of their own

        card: CardModel | None = read_card(Path(name))
    else:
        card = node.card if node else CARDS.get(name)
    if card is None:
        known = ", ".join([*CARDS, *NODES])
        raise ConfigError(
            f"{MODEL_VARIABLE}: no virtual GPU or node called '{name}'; known are {known}"
        )
    gpus = tuple(VirtualGpu(index, card, timeline, clock) for index in range(count))
    return VirtualMachine(gpus, timeline.path, name, node)


def shared_gpus(
    count: int,
    clock: Clock | None = None,
    environment: Mapping[str, str] | None = None,
    host: Host | None = None,
) -> list[VirtualGpu]:
    return list(shared_machine(count, clock, environment, host).gpus)
