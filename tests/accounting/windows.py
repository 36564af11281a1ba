"""Windows for the tests of accounting, built from (name, joules) with usual defaults."""

from typing import Any

from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, Missing, WindowResult


def domain(name: str, energy_j: float | None, **over: Any) -> DomainEnergy:
    head = name.split(":", maxsplit=1)[0].split("/", maxsplit=1)[0]
    values: dict[str, Any] = {
        "scope": Scope(head) if head in list(Scope) else Scope.NODE,
        "uncertainty_j": 0.0,
        "provenance": Provenance.MEASURED,
        "source": f"sensor of {name}",
        **over,
    }
    return DomainEnergy(name=name, energy_j=energy_j, **values)


def window(
    duration_s: float, *domains: DomainEnergy, missing: tuple[str, ...] = ()
) -> WindowResult:
    return WindowResult(
        name="run",
        window_id=1,
        parent_id=None,
        begin_s=100.0,
        end_s=100.0 + duration_s,
        domains=domains,
        missing=tuple(Missing(name, "not readable") for name in missing),
    )
