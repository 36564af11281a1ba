"""Efficiency of a device, E / (TDP x T), its label, and the insights drawn from it."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from wattloop.core.records import Provenance, Scope
from wattloop.core.results import (
    HIGH,
    LOW,
    DomainEnergy,
    Label,
    WindowResult,
    below_peers,
    label_of,
)

__all__ = [
    "HIGH",
    "LOW",
    "Efficiency",
    "Insight",
    "Label",
    "Severity",
    "efficiencies",
    "insights",
    "label_of",
    "node_imbalance",
]


# efficiency = energy consumed / (TDP x runtime)        (EnergyScopium)
#
# Under a power cap the limit is the enforced one, and `basis` names it. docs/accounting.md explains
# the label.
PLAIN_BASIS = "TDP"


class Efficiency(NamedTuple):
    """Energy over TDP x time of one device, or of all devices of a scope.

    Attributes:
        name: `gpu:0`, `cpu:1/package`, or the scope (`cpu`, `gpu`, `node`) for all its devices.
        tdp_w: the limit it is judged by; a sum for several devices.
        basis: what that limit is: `TDP`, or the enforced power limit.
        provenance: of the energy; an estimate from utilisation x TDP judges only utilisation.
        without: devices of the scope left out because their limit or energy is not known.
    """

    name: str
    scope: Scope
    value: float
    power_w: float
    tdp_w: float
    basis: str
    provenance: Provenance
    without: tuple[str, ...] = ()

    @property
    def label(self) -> Label:
        """The value in one word."""
        return label_of(self.value)

    @property
    def capped(self) -> bool:
        """True if the limit was set below the device's own maximum."""
        return "enforced" in self.basis

    def to_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "label": self.label, "without": list(self.without)}


def efficiencies(result: WindowResult, cpu_tdp_w: float | None = None) -> tuple[Efficiency, ...]:
    """Return efficiencies of every CPU package and GPU, then of `cpu`, `gpu` and `node` over all
    their devices.

    Args:
        result: the window.
        cpu_tdp_w: TDP of one CPU package, for those whose domain does not carry it.
    """
    if result.duration_s <= 0:
        return ()
    devices: list[Efficiency] = []
    without: dict[Scope, list[str]] = {Scope.CPU: [], Scope.GPU: []}
    for domain in _devices(result.domains):
        device = _of_device(domain, result.duration_s, cpu_tdp_w)
        if device is None:
            without[domain.scope].append(domain.name)
        else:
            devices.append(device)
    together = []
    for name, scopes in (
        ("cpu", (Scope.CPU,)),
        ("gpu", (Scope.GPU,)),
        ("node", (Scope.CPU, Scope.GPU)),
    ):
        parts = [d for d in devices if d.scope in scopes]
        left_out = [left for scope in scopes for left in without[scope]]
        if parts:
            together.append(_together(name, parts, left_out))
    return (*devices, *together)


def _devices(domains: Iterable[DomainEnergy]) -> list[DomainEnergy]:
    """Return whole CPU packages and GPUs; cores and uncore have no limit of their own."""
    return [
        domain
        for domain in domains
        if domain.scope in (Scope.CPU, Scope.GPU)
        and ("/" not in domain.name or domain.name.endswith("/package"))
    ]


def _of_device(
    domain: DomainEnergy, duration_s: float, cpu_tdp_w: float | None
) -> Efficiency | None:
    tdp_w, basis = domain.tdp_w, domain.tdp_note or PLAIN_BASIS
    if tdp_w is None and domain.scope is Scope.CPU and cpu_tdp_w is not None:
        tdp_w, basis = cpu_tdp_w, "TDP as set by cpu_tdp_w"
    covered_s = duration_s * domain.covered
    if tdp_w is None or tdp_w <= 0 or domain.energy_j is None or covered_s <= 0:
        return None
    power_w = domain.energy_j / covered_s
    return Efficiency(
        name=domain.name,
        scope=domain.scope,
        value=power_w / tdp_w,
        power_w=power_w,
        tdp_w=tdp_w,
        basis=basis,
        provenance=domain.provenance,
    )


def _together(name: str, parts: Sequence[Efficiency], without: Sequence[str]) -> Efficiency:
    power_w = sum(part.power_w for part in parts)
    tdp_w = sum(part.tdp_w for part in parts)
    return Efficiency(
        name=name,
        scope=Scope(name),
        value=power_w / tdp_w,
        power_w=power_w,
        tdp_w=tdp_w,
        basis="; ".join(dict.fromkeys(part.basis for part in parts)),
        provenance=Provenance.weakest(part.provenance for part in parts),
        without=tuple(without),
    )


UNDERLOAD_RATIO = 0.5


"""One kind of device is underused when its efficiency is below half of the other kind's.
Ours: EnergyScopium names the insight without a number. An idle CPU still draws 20 to 28% of its
TDP (thesis, table 3.13), so a ratio under 0.5 next to a busy GPU means little work on it.
"""


class Severity(StrEnum):
    """Urgency of an insight."""

    GOOD = "good"
    INFO = "info"
    WARNING = "warning"


class Insight(NamedTuple):
    """A finding from the numbers, with its meaning in plain words."""

    code: str
    severity: Severity
    text: str


def insights(found: Sequence[Efficiency]) -> tuple[Insight, ...]:
    """Return insights for one node, from the result of `efficiencies`."""
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
    """Return nodes of one job that are underused compared with the others."""
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
