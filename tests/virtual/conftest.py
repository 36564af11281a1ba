"""Eight cards of a node on a clock that tests move."""

import pytest

from wattloop.core.clock import VirtualClock
from wattloop.virtual.gpu import VirtualGpu
from wattloop.virtual.node import node_named
from wattloop.virtual.timeline import MemoryTimeline


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(start_s=1_000.0)


@pytest.fixture
def gpus(clock: VirtualClock) -> list[VirtualGpu]:
    timeline, card = MemoryTimeline(), node_named("node004").card
    return [VirtualGpu(index, card, timeline, clock) for index in range(8)]
