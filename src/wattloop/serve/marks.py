"""Marks of jobs: an efficiency label and insights as icons, each with its meaning in words."""

from typing import NamedTuple

__all__ = ["INSIGHTS", "LABELS", "Mark"]


class Mark(NamedTuple):
    """One icon.

    Attributes:
        name: what it is called.
        tone: `good`, `info` or `warning`.
        meaning: a sentence.
    """

    name: str
    tone: str
    meaning: str


LABELS = {
    "high": Mark("high", "good", "energy / (limit x time) of the devices is above 0.9"),
    "medium": Mark("medium", "info", "energy / (limit x time) is between 0.4 and 0.9"),
    "low": Mark("low", "warning", "energy / (limit x time) of the devices is below 0.4"),
}
INSIGHTS = {
    "high_efficiency": Mark("high energy efficiency", "good", "the hardware is well filled"),
    "low_efficiency": Mark("low energy efficiency", "warning", "the devices were mostly waiting"),
    "cpu_underload": Mark("CPU underload", "info", "the CPU is underused compared with the GPU"),
    "gpu_underload": Mark("GPU underload", "warning", "the GPU is underused compared with the CPU"),
    "gpu_imbalance": Mark(
        "GPU imbalance", "warning", "at least one GPU is underused compared with the others"
    ),
    "node_imbalance": Mark(
        "node imbalance", "warning", "at least one node is underused compared with the others"
    ),
}
