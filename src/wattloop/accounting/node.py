"""Energy of the whole node: measured domains, and board, disks, network card and power supply."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, EnergyError, ModelError, WindowResult, energy_error
from wattloop.core.settings import Settings
from wattloop.core.units import format_power


class ChassisFact(NamedTuple):
    """A value and its source. The half-width is our estimate of how far machines differ."""

    value: float
    half_width: float
    source: str


EIGHTY_PLUS: dict[str, dict[float, float]] = {
    "bronze": {0.2: 0.81, 0.5: 0.85, 1.0: 0.81},
    "silver": {0.2: 0.85, 0.5: 0.89, 1.0: 0.85},
    "gold": {0.2: 0.88, 0.5: 0.92, 1.0: 0.88},
    "platinum": {0.2: 0.90, 0.5: 0.94, 1.0: 0.91},
    "titanium": {0.1: 0.90, 0.2: 0.94, 0.5: 0.96, 1.0: 0.91},
}
"""Least efficiency by share of rated load; 80 PLUS programme, 230 V internal redundant."""
PSU_EFFICIENCY = ChassisFact(
    0.92,
    0.04,
    "80 PLUS, 230 V redundant: from Gold at 20% load (0.88) to Titanium at 50% (0.96)",
)
_FAN_2007 = (
    "Fan, Weber, Barroso, Power Provisioning for a Warehouse-sized Computer, 2007, table 1: peak "
    "power of components, 213 W in all"
)
BOARD_W = ChassisFact(25.0, 15.0, _FAN_2007)
DISK_W = ChassisFact(12.0, 9.0, _FAN_2007)
ADAPTER_W = ChassisFact(25.0, 15.0, _FAN_2007 + " (one of its two PCI slots: a network card)")
FAN_SHARE = ChassisFact(
    0.10,
    0.05,
    "of the power to be cooled: 10 W of 213 W (5%) in Fan et al. 2007, 10 to 15% in dense 1U "
    "servers (eWeek, How to Optimize the Energy Efficiency of Your Server)",
)


# Energy of the whole node: measured, or modelled as P_node = (P_measured + P_other) / eta_psu.
#
# P_other is the power of parts without a sensor: board, disk, adapter card, and fans in proportion
# to the power they cool. The defaults and their ranges are in `wattloop.accounting.node`.
WHOLE = 0.99
"""A node with a smaller covered share is not used as a whole."""
UNKNOWN_SHARE = (
    "the run's part of board, disks and network card is unknown: nothing tells its processes' work "
    "on the processors from that of others; --share device states the whole machine"
)


class NodeEnergy(NamedTuple):
    """Joules the node drew from its socket, and their origin.

    Attributes:
        energy_j: joules, or None with `reason` when there is nothing to start from.
        uncertainty_j: half-width; for the model, from the published ranges of its constants.
        complete: False when a part of the node was missing from what the model started from.
        assumptions: the model in words.
        error: the uncertainty taken apart, for a comparison with other windows of this node.
    """

    energy_j: float | None
    uncertainty_j: float = 0.0
    provenance: Provenance | None = None
    complete: bool = True
    assumptions: tuple[str, ...] = ()
    reason: str = ""
    error: EnergyError | None = None

    def to_dict(self) -> dict[str, Any]:
        data = self._asdict()
        del data["error"]
        return data


def node_energy(result: WindowResult, settings: Settings) -> NodeEnergy:
    """Return the measured energy of the whole node, else the model over its measured parts."""
    measured = _measured_node(result)
    if measured:
        sources = " and ".join(domain.source for domain in measured)
        return NodeEnergy(
            energy_j=sum(domain.energy_j or 0.0 for domain in measured),
            uncertainty_j=math.hypot(*(domain.uncertainty_j for domain in measured)),
            provenance=Provenance.weakest(domain.provenance for domain in measured),
            complete=all(domain.covered >= WHOLE for domain in measured),
            assumptions=(f"node energy read from {sources}; nothing added",),
            error=energy_error(measured, result.duration_s),
        )
    energy_j = result.energy_j
    if energy_j is None or result.provenance is None:
        return NodeEnergy(energy_j=None, complete=False, reason="no part of the node was measured")
    share = settings.node_share
    if share is None:
        return NodeEnergy(energy_j=None, complete=False, reason=UNKNOWN_SHARE)
    return _modelled(result, energy_j, result.provenance, settings, share)


def _measured_node(result: WindowResult) -> list[DomainEnergy]:
    """Return one domain, or several that make up the node together: modules, or two batteries."""
    # psys stops at the board (and makers disagree where), so it is not the node's energy.
    return [d for d in result.counted if d.scope is Scope.NODE and d.name != "psys"]


def _modelled(
    result: WindowResult, energy_j: float, provenance: Provenance, settings: Settings, share: float
) -> NodeEnergy:
    duration_s = result.duration_s
    power_w = energy_j / duration_s if duration_s > 0 else 0.0
    other_w = _other_w(power_w, settings.node_overhead_w, share, _host_share(result.domains))
    eta = _efficiency(settings.psu_efficiency)
    node_j = (energy_j + other_w.value * duration_s) / eta.value
    # Independent unknowns: sensors, the other parts, the power supply.
    uncertainty_j = math.hypot(
        result.uncertainty_j / eta.value,
        other_w.half_width * duration_s / eta.value,
        node_j * eta.half_width / eta.value,
    )
    assumptions = [
        "node = (measured + other parts) / efficiency of the power supply",
        f"other parts {format_power(other_w.value)} ± {format_power(other_w.half_width)}: "
        f"{other_w.source}",
        f"power supply {eta.value:.2f} ± {eta.half_width:.2f}: {eta.source}",
    ]
    if result.missing:
        names = ", ".join(m.name for m in result.missing)
        assumptions.append(f"too low: without {names}, which could not be read")
    return NodeEnergy(
        energy_j=node_j,
        uncertainty_j=uncertainty_j,
        provenance=Provenance.weakest((Provenance.MODELLED, provenance)),
        complete=not result.missing,
        assumptions=tuple(assumptions),
        error=_error(result, node_j, other_w, eta),
    )


def _error(
    result: WindowResult, node_j: float, other_w: ChassisFact, eta: ChassisFact
) -> EnergyError:
    """Return the error: models of this node err alike in every window."""
    parts = energy_error(result.counted, result.duration_s)
    models = {
        key: ModelError(model.energy_j / eta.value, model.relative, model.power_w / eta.value)
        for key, model in parts.models.items()
    }
    models["other parts"] = ModelError(0.0, 0.0, other_w.half_width / eta.value)
    models["power supply"] = ModelError(node_j, eta.half_width / eta.value, 0.0)
    return EnergyError(node_j, result.duration_s, parts.random_j / eta.value, models)


def _host_share(domains: Sequence[DomainEnergy]) -> float:
    """Return the part of the host that this machine has: 1 unless it is a virtual one.

    A host's board, disks and network card serve all its guests, so a guest is charged for them as
    it is for the processors.
    """
    shares = [d.host_share for d in domains if d.scope is Scope.CPU and d.name.endswith("/package")]
    return sum(shares) / len(shares) if shares else 1.0


def _other_w(
    power_w: float, stated_w: float | None, share: float, host_share: float
) -> ChassisFact:
    """Return the power of board, disks and network card: one per host, shared by guests and jobs.

    What the user states is of this machine, so only a job's share of it applies.
    """
    if stated_w is not None:
        return ChassisFact(share * stated_w, 0.0, f"{_part(share)}your setting node_overhead_w")
    fixed = (BOARD_W, DISK_W, ADAPTER_W)
    share *= host_share
    guest = "" if host_share == 1 else ", the part of the host's threads that is ours"
    return ChassisFact(
        share * sum(part.value for part in fixed) + FAN_SHARE.value * power_w,
        math.hypot(*(share * part.half_width for part in fixed), FAN_SHARE.half_width * power_w),
        f"{_part(share)}board {BOARD_W.value:g} W, disk {DISK_W.value:g} W, network card "
        f"{ADAPTER_W.value:g} W{guest}; fans {FAN_SHARE.value:.0%} of what they cool "
        "(docs/accounting.md)",
    )


def _part(share: float) -> str:
    return "" if share == 1 else f"{share:.2g} of " if share < 0.01 else f"{share:.0%} of "


def _efficiency(stated: float | None) -> ChassisFact:
    if stated is not None:
        return ChassisFact(stated, 0.0, "your setting psu_efficiency")
    return PSU_EFFICIENCY


# Energy of the facility: E_facility = E_node x PUE, with the PUE that the user states.
class FacilityEnergy(NamedTuple):
    """Joules with cooling and distribution. The PUE is stated, so it adds no uncertainty."""

    energy_j: float | None
    uncertainty_j: float
    pue: float
    provenance: Provenance | None
    assumption: str


def facility_energy(node: NodeEnergy, pue: float, pue_source: str = "default") -> FacilityEnergy:
    """Return node energy times PUE; None stays None."""
    return FacilityEnergy(
        energy_j=None if node.energy_j is None else node.energy_j * pue,
        uncertainty_j=node.uncertainty_j * pue,
        pue=pue,
        provenance=node.provenance,
        assumption="PUE 1: cooling and distribution of the room are not counted; set pue"
        if pue == 1.0 and pue_source == "default"
        else f"PUE {pue:g} ({pue_source})",
    )
