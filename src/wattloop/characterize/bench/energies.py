"""Joules of a measured stretch by scope, with idling taken off."""

import math
from collections.abc import Mapping, Sequence

from wattloop.accounting.idle import ApplicationDomain, IdleLine, application_energy
from wattloop.characterize.bench.result import ScopeEnergy
from wattloop.core.provenance import Provenance
from wattloop.core.records import Scope
from wattloop.core.results import DomainEnergy, WindowResult

__all__ = ["scope_energies"]

SCOPES = (Scope.GPU, Scope.CPU, Scope.DRAM, Scope.NODE)


def scope_energies(
    window: WindowResult, lines: Mapping[str, IdleLine], gpu: int | None
) -> dict[str, ScopeEnergy]:
    """A scope that was not read is absent. Of several GPUs only the one at work counts."""
    application = {d.name: d for d in application_energy(window, lines).domains}
    found = {}
    for scope in SCOPES:
        parts = window.scope_domains(scope)
        if scope is Scope.GPU and gpu is not None:
            parts = tuple(d for d in parts if d.name.split("/")[0] == f"gpu:{gpu}")
        if parts:
            found[scope.value] = _summed(parts, [application[d.name] for d in parts])
    return found


def _summed(parts: Sequence[DomainEnergy], application: Sequence[ApplicationDomain]) -> ScopeEnergy:
    known = [d.energy_j for d in application if d.energy_j is not None]
    complete = len(known) == len(parts)
    return ScopeEnergy(
        energy_j=sum(d.energy_j for d in parts if d.energy_j is not None),
        uncertainty_j=math.hypot(*(d.uncertainty_j for d in parts)),
        provenance=Provenance.weakest(d.provenance for d in parts).value,
        domains=tuple(d.name for d in parts),
        application_j=sum(known) if complete else None,
        application_uncertainty_j=math.hypot(*(d.uncertainty_j for d in application)),
    )
