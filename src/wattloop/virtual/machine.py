"""The virtual cards and their node, shared by all processes of a user."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from wattloop.core.clock import Clock
from wattloop.core.errors import ConfigError
from wattloop.hardware.host import Host
from wattloop.virtual.cards import CARDS
from wattloop.virtual.gpu import VirtualGpu
from wattloop.virtual.node import NODES, NodeModel
from wattloop.virtual.physics import CardModel
from wattloop.virtual.timeline import FileTimeline

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
    default = Path(tempfile.gettempdir()) / f"wattloop-virtual-2-{os.getuid()}-{boot}.state"
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
