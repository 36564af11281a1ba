"""Power that a GPU draws with a context open and nothing to do, known or assumed."""

from typing import NamedTuple

from wattloop.hardware.gpus import Gpu

__all__ = ["StaticPower", "static_power"]

HBM_SHARE = 0.15
"""Of the factory limit, median of those known: P100 0.13, V100 0.15 and 0.19, A100 0.14 and 0.20,
H100 0.17, H200 0.11."""
GDDR_SHARE = 0.30
"""The same with GDDR, whose interface draws more and stays on: Quadro RTX 6000 0.23, P4 and L40S
0.29, A40 0.30, T4 and L4 0.39."""


class StaticPower(NamedTuple):
    """Watts, and where they come from."""

    watts: float
    source: str


def static_power(gpu: Gpu) -> StaticPower:
    """`idle_w` of the table where somebody published it, else a share of the factory limit."""
    if gpu.idle_w is not None:
        return StaticPower(gpu.idle_w, gpu.source("idle_w"))
    share = GDDR_SHARE if gpu.memory_type.startswith("gddr") else HBM_SHARE
    memory = gpu.memory_type.upper() or "HBM"
    return StaticPower(
        share * gpu.tdp_w,
        f"assumed: {100 * share:.0f}% of {gpu.tdp_w:g} W, as known GPUs with {memory} draw",
    )
