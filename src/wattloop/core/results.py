"""Energies of a window and their errors, the end of a run, labels of efficiency, as plain data."""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from wattloop.core.records import Provenance, Scope


# The fields are the contract between windows, which compute energy, and the store, which saves it.
class Missing(NamedTuple):
    """A part of the node whose energy is not in the total, and why.

    Attributes:
        name: of the part, such as `gpu:1` or `dram`.
        reason: why it could not be read.
        remedy: what the user can do about it; empty where nothing is known to help.
    """

    name: str
    reason: str
    remedy: str = ""


class DomainEnergy(NamedTuple):
    """Energy of one domain over one window.

    Attributes:
        energy_j: joules, or None when nothing could be read.
        uncertainty_j: half-width of the interval that holds the true value of what the sensor
            reports (resolution, update period, interpolation, gaps). Systematic sensor error is
            added for modelled and estimated domains; for measured ones it is `known_error`.
        covered: share of the window's time for which readings exist, 0 to 1.
        in_total: whether the window's total contains this domain (overlapping ones are left out).
        known_error: systematic error of the source, as a share of the energy.
        known_error_w: systematic error of the source in watts.
        tdp_w: its thermal design power, or the limit it is under; `tdp_note` says which.
        device: what it is, such as the name of a GPU.
        host_share: as in `Domain`; below 1 where a virtual machine has a part of the processor.
    """

    name: str
    scope: Scope
    energy_j: float | None
    uncertainty_j: float
    provenance: Provenance
    source: str
    covered: float = 1.0
    in_total: bool = True
    known_error: float = 0.0
    tdp_w: float | None = None
    tdp_note: str = ""
    device: str = ""
    host_share: float = 1.0
    known_error_w: float = 0.0


class WindowResult(NamedTuple):
    """Result of one window: an energy per domain, missing parts, and warnings.

    Attributes:
        name: as the program calls it.
        window_id, parent_id: its number within the run, and that of the window around it.
        begin_s, end_s: seconds on the machine's monotonic clock.
        domains: energy of each, overlapping ones included; `counted` are those of the total.
        missing: parts of the node that were expected and not read.
        warnings: for people, such as that it was too short for a sensor.
        metrics: numbers that the program gave with it.
    """

    name: str
    window_id: int
    parent_id: int | None
    begin_s: float
    end_s: float
    domains: tuple[DomainEnergy, ...] = ()
    missing: tuple[Missing, ...] = ()
    warnings: tuple[str, ...] = ()
    metrics: Mapping[str, float] = {}

    @property
    def duration_s(self) -> float:
        """Length of the window in seconds."""
        return self.end_s - self.begin_s

    @property
    def counted(self) -> tuple[DomainEnergy, ...]:
        """The non-overlapping domains that make up the total."""
        return tuple(d for d in self.domains if d.in_total and d.energy_j is not None)

    @property
    def energy_j(self) -> float | None:
        """Joules of everything that could be read, each device once; None when nothing could."""
        return _sum_j(self.counted)

    @property
    def uncertainty_j(self) -> float:
        """Half-width for `energy_j`; sensors are independent, so parts add in quadrature."""
        return float(sum(d.uncertainty_j**2 for d in self.counted) ** 0.5)

    @property
    def power_w(self) -> float | None:
        """Mean power over the window."""
        energy_j = self.energy_j
        return None if energy_j is None or self.duration_s <= 0 else energy_j / self.duration_s

    @property
    def complete(self) -> bool:
        """True if every known part of the node was read for the whole window."""
        return not self.missing and bool(self.counted)

    @property
    def provenance(self) -> Provenance | None:
        """Provenance of the total: that of its weakest part."""
        counted = self.counted
        return Provenance.weakest(d.provenance for d in counted) if counted else None

    @property
    def cpu_energy_j(self) -> float | None:
        """Joules of the CPU packages."""
        return self.scope_energy_j(Scope.CPU)

    @property
    def gpu_energy_j(self) -> float | None:
        return self.scope_energy_j(Scope.GPU)

    @property
    def dram_energy_j(self) -> float | None:
        return self.scope_energy_j(Scope.DRAM)

    def _repr_html_(self) -> str:
        return result_html(self)

    def scope_energy_j(self, scope: Scope) -> float | None:
        """Return joules of one scope, without overlapping domains; None when it was not read."""
        return _sum_j(self.scope_domains(scope))

    def scope_domains(self, scope: Scope) -> tuple[DomainEnergy, ...]:
        """Return the domains of one scope that were read and do not overlap."""
        parts = [d for d in self.domains if d.scope is scope and d.energy_j is not None]
        names = non_overlapping((d.name, inside_name(d.name)) for d in parts)
        return tuple(d for d in parts if d.name in names)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "duration_s": self.duration_s,
            "energy_j": self.energy_j,
            "uncertainty_j": self.uncertainty_j,
            "complete": self.complete,
            "domains": [domain_energy_to_dict(d) for d in self.domains],
            "missing": [m._asdict() for m in self.missing],
            "warnings": list(self.warnings),
            "metrics": dict(self.metrics),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "WindowResult":
        """Convert back from `to_dict`; fields of later versions are left out."""
        parts: dict[str, Any] = {
            "domains": tuple(domain_energy_from_dict(d) for d in data["domains"]),
            "missing": tuple(Missing(**m) for m in data["missing"]),
            "warnings": tuple(data["warnings"]),
            "metrics": dict(data.get("metrics", {})),
        }
        return cls(**{f: parts[f] if f in parts else data[f] for f in cls._fields})


class RunStatus(StrEnum):
    """Status of an ended run."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    """The program ended with an exit code other than 0, or raised."""
    KILLED = "killed"
    """A signal ended the program while Wattloop was measuring it."""
    DIED = "died"
    """The measuring process died first; recovered from its journal."""


def domain_energy_to_dict(energy: DomainEnergy) -> dict[str, Any]:
    data = energy._asdict()
    data |= {"scope": energy.scope.value, "provenance": energy.provenance.value}
    # Versions before these fields refuse records that have them, so most records do not.
    for name in ("host_share", "known_error_w"):
        if data[name] == DomainEnergy._field_defaults[name]:
            del data[name]
    return data


def domain_energy_from_dict(data: dict[str, Any]) -> DomainEnergy:
    """Convert back from `domain_energy_to_dict`; fields of later versions are left out."""
    return DomainEnergy(
        **{
            **{name: data[name] for name in DomainEnergy._fields if name in data},
            "scope": Scope(data["scope"]),
            "provenance": Provenance(data["provenance"]),
        }
    )


def non_overlapping(domains: Iterable[tuple[str, str | None]]) -> set[str]:
    """Return the names of (name, inside) pairs that may be added without counting a joule twice.

    A domain is left out when one that contains it is present. `psys` is the exception: makers
    disagree on what it covers, so it counts only where no package can be read.
    """
    inside_of = dict(domains)
    if any(name.endswith("/package") for name in inside_of):
        inside_of.pop("psys", None)
    return {name for name, container in inside_of.items() if container not in inside_of}


def inside_name(name: str) -> str | None:
    """Return the containing domain: `cpu:0/core` lies inside `cpu:0/package`; other names have
    none.
    """
    head, _, leaf = name.rpartition("/")
    return f"{head}/package" if head and leaf != "package" else None


def _sum_j(parts: Iterable[DomainEnergy] | Sequence[DomainEnergy]) -> float | None:
    values = [part.energy_j for part in parts if part.energy_j is not None]
    return sum(values) if values else None


class EnergyProperties(ABC):
    """Properties that delegate to the result."""

    __slots__ = ()

    @property
    @abstractmethod
    def result(self) -> WindowResult:
        """Energies, times, what is missing; so far, while it is open."""

    @property
    def energy_j(self) -> float | None:
        """Joules of everything that could be read, each device once; None when nothing could."""
        return self.result.energy_j

    @property
    def uncertainty_j(self) -> float:
        """Half-width of the 95% interval of `energy_j`."""
        return self.result.uncertainty_j

    @property
    def duration_s(self) -> float:
        """Seconds from beginning to end (or to now)."""
        return self.result.duration_s

    @property
    def power_w(self) -> float | None:
        return self.result.power_w

    def _repr_html_(self) -> str:
        return result_html(self.result)


def result_html(result: WindowResult, lines: Sequence[str] = ()) -> str:
    """Return a result as a small table for a notebook.

    It takes fonts and colours of the page, so that it suits light and dark ones, and loads nothing.

    Args:
        result: the energies.
        lines: text to show below the table.
    """
    from html import escape  # not needed to measure

    from wattloop.core.units import format_duration, format_energy, format_power

    def energy(joules: float | None) -> str:
        return "not known" if joules is None else format_energy(joules)

    def row(name: str, joules: float | None, off_j: float, how: str) -> tuple[str, ...]:
        known = joules is not None and result.duration_s > 0
        power = format_power((joules or 0.0) / result.duration_s) if known else ""
        return name, energy(joules), f"± {format_energy(off_j)}" if known else "", power, how

    domains = [
        row(
            d.name + ("" if d.in_total else " (within another)"),
            d.energy_j,
            d.uncertainty_j,
            d.provenance.value,
        )
        for d in result.domains
    ]
    domains += [(m.name, "not known", "", "", m.reason) for m in result.missing]
    head = f"<b>{escape(result.name)}</b>: {escape(energy(result.energy_j))}"
    if result.energy_j is not None:
        head += escape(f" ± {format_energy(result.uncertainty_j)}")
    head += escape(f" in {format_duration(result.duration_s)}")
    head += "" if result.complete else ", incomplete"
    titles = ("domain", "energy", "uncertainty", "mean power", "how")
    left = ' style="text-align:left"'
    body = "".join(
        f"<tr>{''.join(f'<td{left}>{escape(cell)}</td>' for cell in cells)}</tr>"
        for cells in domains
    )
    heads = "".join(f'<th scope="col"{left}>{title}</th>' for title in titles)
    below = "".join(f"<div>{escape(line)}</div>" for line in (*lines, *result.warnings))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wattloop-result"><div>{head}</div>{table if domains else ""}{below}</div>'


LOW = 0.4
"""Below this a code is of low energy efficiency (EnergyScopium, legend of its dashboard)."""
HIGH = 0.9
"""Above this it is of high energy efficiency (same)."""
IMBALANCE_RATIO = 0.75
"""A device or node is out of balance below three quarters of the median of its peers. Our
choice."""


class Label(StrEnum):
    """Efficiency in one word."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


def label_of(efficiency: float) -> Label:
    """Return `low` below 0.4, `high` above 0.9, `medium` between."""
    if efficiency < LOW:
        return Label.LOW
    return Label.HIGH if efficiency > HIGH else Label.MEDIUM


def below_peers(values: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Return (name, value, median of the others) of those clearly below the others."""
    below = []
    for name, value in values.items():
        others = [v for other, v in values.items() if other != name]
        if others and value < IMBALANCE_RATIO * _median(others):
            below.append((name, value, _median(others)))
    return below


def _median(values: Sequence[float]) -> float:
    # The module `statistics` takes 10 ms to import.
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


# Model errors that cancel between runs: those of one model on one machine.
#
# A modelled or estimated energy has a random error of its own (resolution, gaps) and the error of
# its model, stated as a share r of the energy and as a power b:
#
#     E_true = (1 + r) E + b T
#
# On one machine r and b are unknown but the same in every run, so a ratio of two runs hardly
# depends on them. With E = sum of E_d over domains, to first order:
#
#     d(E2 / E1) = sum of  (E2 / E1) (E_d2 / E2 - E_d1 / E1)  r_d      shares that move
#                + sum of  (T1 / E1) (T2 / T1 - E2 / E1)      b_d      powers that differ
#
# Two runs of one domain at the same power have no error left but their random ones.

MODELS = (Provenance.MODELLED, Provenance.ESTIMATED)


class ModelError(NamedTuple):
    """Error of one model: `relative` to the energy, and a constant `power_w`; half-widths."""

    energy_j: float
    relative: float
    power_w: float

    def of_j(self, duration_s: float) -> float:
        return self.relative * abs(self.energy_j) + self.power_w * duration_s


class EnergyError(NamedTuple):
    """The error of an energy, split into a random part and the parts of its models.

    `models` are by identity: two runs share a model when its key is in both.
    """

    energy_j: float
    duration_s: float
    random_j: float
    models: Mapping[str, ModelError] = {}

    def plus(self, other: "EnergyError") -> "EnergyError":
        """Return the error of both energies together, one after the other on one machine."""
        models = dict(self.models)
        for key, model in other.models.items():
            before = models.get(key, model._replace(energy_j=0.0))
            models[key] = model._replace(energy_j=before.energy_j + model.energy_j)
        return EnergyError(
            self.energy_j + other.energy_j,
            self.duration_s + other.duration_s,
            math.hypot(self.random_j, other.random_j),
            models,
        )

    def scaled(self, energy_j: float, duration_s: float) -> "EnergyError":
        """Return the error of the part that has this energy; random errors stay."""
        part = energy_j / self.energy_j if self.energy_j else 0.0
        models = {k: m._replace(energy_j=m.energy_j * part) for k, m in self.models.items()}
        return EnergyError(energy_j, duration_s, self.random_j, models)

    def to_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "models": {key: list(m) for key, m in self.models.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "EnergyError":
        """Inverse of `to_dict`."""
        models = {key: ModelError(*model) for key, model in data["models"].items()}
        return cls(data["energy_j"], data["duration_s"], data["random_j"], models)

    def without(self, shared: Iterable[str]) -> float:
        """Return the half-width in joules of all but the named models."""
        kept = set(self.models) - set(shared)
        return math.hypot(self.random_j, *(self.models[k].of_j(self.duration_s) for k in kept))


def energy_error(
    domains: Iterable[DomainEnergy], duration_s: float, machine: str = ""
) -> EnergyError:
    """Return the error of the sum of some domains of one window."""
    energy_j, squares, models = 0.0, 0.0, {}
    for domain in domains:
        part_j = domain.energy_j or 0.0
        energy_j += part_j
        random_j = domain.uncertainty_j
        if domain.provenance in MODELS:
            model = ModelError(part_j, domain.known_error, domain.known_error_w)
            random_j = max(0.0, random_j - model.of_j(duration_s))
            models[_identity(domain, machine)] = model
        squares += random_j**2
    return EnergyError(energy_j, duration_s, math.sqrt(squares), models)


def ratio_error(first: EnergyError, second: EnergyError) -> float:
    """Return the half-width of second / first that the models of both leave, without other errors.

    Raises:
        ZeroDivisionError: the first energy is 0.
    """
    ratio = second.energy_j / first.energy_j
    left = []
    for key in first.models.keys() & second.models.keys():
        one, other = first.models[key], second.models[key]
        # E_d2 / E1 - (E2 / E1) (E_d1 / E1): the same, without a division by E2, which may be 0
        moved = other.energy_j / first.energy_j - ratio * one.energy_j / first.energy_j
        left.append(moved * one.relative)
        slower = (second.duration_s - ratio * first.duration_s) / first.energy_j
        left.append(slower * one.power_w)
    return math.hypot(*left)


def _identity(domain: DomainEnergy, machine: str) -> str:
    """Return the identity of a model: another TDP or stated error is another model."""
    parts = (machine, domain.name, domain.source, domain.device, domain.tdp_w)
    return "|".join(map(str, (*parts, domain.known_error, domain.known_error_w)))


_DEGREES = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 60, math.inf)
_STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.860, 1.812, 1.753, 1.725, 1.697, 1.671)


def student_95(degrees: float) -> float:
    """Return the 95% quantile of Student's t, from its table, between in 1 / degrees."""
    values = (*_STUDENT, 1.645)
    for (d0, t0), (d1, t1) in itertools.pairwise(zip(_DEGREES, values, strict=True)):
        if degrees <= d1:
            inverse = 1 / max(degrees, d0)
            share = (1 / d0 - inverse) / (1 / d0 - 1 / d1)
            return t0 + share * (t1 - t0)
    return values[-1]
