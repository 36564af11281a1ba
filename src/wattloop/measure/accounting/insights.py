"""What the efficiencies of a run say, in plain words (insights of EnergyScopium)."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from wattloop.core.labels import below_peers
from wattloop.core.provenance import Provenance
from wattloop.core.records import Scope
from wattloop.measure.accounting.efficiency import HIGH, LOW, Efficiency, Label

__all__ = ["Insight", "Severity", "insights", "node_imbalance"]

UNDERLOAD_RATIO = 0.5
"""One kind of device is underused when its efficiency is below half of the other kind's.
Ours: EnergyScopium names the insight without a number. An idle CPU still draws 20 to 28% of its
TDP (thesis, table 3.13), so a ratio under 0.5 beside a busy GPU means little work on it.
"""


class Severity(StrEnum):
    """How much an insight asks for attention."""

    GOOD = "good"
    INFO = "info"
    WARNING = "warning"


class Insight(NamedTuple):
    """Something the numbers say, with its meaning in plain words."""

    code: str
    severity: Severity
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return self._asdict()


def insights(found: Sequence[Efficiency]) -> tuple[Insight, ...]:
    """Insights for one node, from what `efficiencies` returned."""
    by_name = {efficiency.name: efficiency for efficiency in found}
    said: list[Insight] = []
    if "node" in by_name:
        said += _of_level(by_name["node"])
    if "cpu" in by_name and "gpu" in by_name:
        said += _of_underload(by_name["cpu"], by_name["gpu"])
    gpus = {e.name: e.value for e in found if e.scope is Scope.GPU and e.name != "gpu"}
    for name, value, others in below_peers(gpus):
        said.append(
            Insight(
                "gpu_imbalance",
                Severity.WARNING,
                f"{name} worked at {value:.2f} of its limit, the other GPUs at {others:.2f}: work "
                "is spread unevenly, and the others may wait for it or it for them. If the job "
                "was not meant to use it, leave it out with `devices:` in wattloop.yaml.",
            )
        )
    return tuple(said)


def node_imbalance(efficiency_by_node: Mapping[str, float]) -> tuple[Insight, ...]:
    """Nodes of one job that are underused compared with the others."""
    return tuple(
        Insight(
            "node_imbalance",
            Severity.WARNING,
            f"node {name} worked at {value:.2f} of its limit, the others at {others:.2f}: it is "
            "underused compared with them, so they may wait for it, or it has less to do",
        )
        for name, value, others in below_peers(efficiency_by_node)
    )


def _of_level(node: Efficiency) -> list[Insight]:
    against = f" (against: {node.basis})" if node.capped else ""
    if node.provenance is Provenance.ESTIMATED:
        against += " (estimated from utilisation, so it repeats the utilisation)"
    if node.label is Label.LOW:
        return [
            Insight(
                "low_efficiency",
                Severity.WARNING,
                f"low: the devices drew {node.value:.0%} of what they may draw{against}, under "
                f"{LOW:.0%}. They were mostly waiting, for data, for each other or for nothing, "
                "and idle power was paid all the while",
            )
        ]
    if node.label is Label.HIGH:
        return [
            Insight(
                "high_efficiency",
                Severity.GOOD,
                f"high: the devices drew {node.value:.0%} of what they may draw{against}, over "
                f"{HIGH:.0%}. The hardware is well filled; less energy now needs less work, "
                "or a lower power cap",
            )
        ]
    return []


def _of_underload(cpu: Efficiency, gpu: Efficiency) -> list[Insight]:
    levels = f"CPU {cpu.value:.2f}, GPU {gpu.value:.2f} of their limits"
    if cpu.value < UNDERLOAD_RATIO * gpu.value:
        return [
            Insight(
                "cpu_underload",
                Severity.INFO,
                f"the CPU is underused compared with the GPU ({levels}): usual for training, but "
                "cores held idle by the job could be shared, or clocked down",
            )
        ]
    if gpu.value < UNDERLOAD_RATIO * cpu.value:
        return [
            Insight(
                "gpu_underload",
                Severity.WARNING,
                f"the GPU is underused compared with the CPU ({levels}): it likely waits for the "
                "CPU; look at data loading, or run this work without a GPU",
            )
        ]
    return []
