"""What a run's journal says of its domains: the node's, as far as they are the run's."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from wattloop.core.records import Domain, DomainKind, Gap, Provenance, Signal
from wattloop.fleet.agent.shares import Layout
from wattloop.meters.base import Meter, Reading

__all__ = ["ShareMeter", "nobody_domain", "share_domain"]

EXACT_S = 1e-6
"""Rows of a share are computed for an instant: they have no age, unlike a sensor's readings."""


def share_domain(
    layout: Layout, domain: Domain, *, cpus: int, whole: bool, limit_w: float | None
) -> Domain:
    """A domain of the node as a job has it.

    Args:
        layout: the node's.
        domain: of the node.
        cpus: CPUs of the job.
        whole: the job has the node to itself.
        limit_w: power limit in force now, of a GPU that has one.
    """
    if not layout.is_shared(domain.name) or whole:
        return _share(domain, f"{domain.source}, all of it the job's", **_limits(domain, limit_w))
    tdp_w = None if domain.tdp_w is None else domain.tdp_w * cpus / max(cpus, layout.cpus)
    return _share(
        domain,
        f"{domain.source}; the job's share: power above idle by CPU time, idle power by "
        f"{cpus} of {layout.cpus} CPUs",
        provenance=Provenance.weakest((Provenance.MODELLED, domain.provenance)),
        tdp_w=tdp_w or None,
        tdp_note="" if tdp_w is None else f"TDP, for {cpus} of {layout.cpus} CPUs",
    )


def nobody_domain(layout: Layout, domain: Domain) -> Domain:
    """A domain of the node as far as no job used it."""
    provenance = domain.provenance
    if layout.is_shared(domain.name) or layout.is_node(domain.name):
        provenance = Provenance.weakest((Provenance.MODELLED, provenance))
    source = f"{domain.source}; what no job used"
    return _share(domain, source, provenance=provenance, tdp_w=None, tdp_note="")


def _limits(domain: Domain, limit_w: float | None) -> dict[str, object]:
    """The limit of now, which may be a cap set for this very job."""
    if limit_w is None or domain.tdp_w is None or abs(limit_w - domain.tdp_w) < 0.5:
        return {}
    default_w = max(limit_w, domain.tdp_w)
    note = f"enforced power limit {limit_w:g} W of {default_w:g} W default"
    return {"tdp_w": limit_w, "tdp_note": note if limit_w < default_w else ""}


def _share(domain: Domain, source: str, **changes: object) -> Domain:
    kept = domain._replace(
        kind=DomainKind.COUNTER,
        source=source,
        update_period_s=EXACT_S,
        averaging_s=0.0,
        wrap_j=None,
        read_cost_s=0.0,
        resolution=domain.resolution if domain.kind is DomainKind.COUNTER else 0.0,
    )
    return kept._replace(**changes)  # type: ignore[arg-type]  # names and types are Domain's own


class ShareMeter(Meter):
    """A meter whose readings are computed by the agent and handed to its feed."""

    name: ClassVar[str] = "agent"

    def __init__(self, domains: Sequence[Domain], signals: Mapping[str, str]) -> None:
        self._domains = tuple(domains)
        self._signals = tuple(Signal(name, unit) for name, unit in signals.items())

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The run's."""
        return self._domains

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Those of the run's GPUs."""
        return self._signals

    def read(self) -> Sequence[Reading]:
        """Nothing is read here."""
        return [Gap("computed by the agent")] * len(self._domains)
