"""One point of a sweep with its repeats, and the points it is compared with."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattloop.analyze.intervals import Estimate, estimate
from wattloop.analyze.metrics import Point as Cost
from wattloop.characterize.gains import Compared, Gain, gain_of
from wattloop.characterize.repeats import Repeated

__all__ = ["Group", "GroupKey", "PointResult", "gpu_count", "largest_groups"]

GroupKey = tuple[str, str, int | None]


@dataclass(frozen=True, slots=True)
class PointResult:
    """One point: its repeats, and what they say; `defaults` are the levers' default levels."""

    facts: Mapping[str, Any]
    repeated: Repeated
    keys: tuple[str, ...]
    defaults: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """`170 W`; of several levers those that are not at their default, with their names."""
        levels = self.facts["levels"]
        if len(levels) < 2:
            return next(iter(levels.values()), "default")
        moved = {n: label for n, label in levels.items() if label != self.defaults.get(n)}
        return ", ".join(f"{n.rpartition('/')[2]} {label}" for n, label in moved.items()) or (
            "default"
        )

    @property
    def name(self) -> str:
        """Workload, GPUs and levels, for messages."""
        words = " ".join(filter(None, (self.facts["workload"], self.facts["library"])))
        return ", ".join(filter(None, (words, gpu_count(self.facts["gpus"]), self.label)))

    @property
    def is_default(self) -> bool:
        """Whether every lever stands at its default."""
        return bool(self.facts["is_default"])

    @property
    def group(self) -> GroupKey:
        """Points that are compared with each other."""
        return self.facts["workload"], self.facts["library"], self.facts["gpus"]

    @property
    def time_s(self) -> Estimate | None:
        """Mean time."""
        return self.repeated.time_s

    def energy_j(self, scope: str) -> Estimate | None:
        """Mean energy of one scope."""
        return _estimate(o.energy_j(scope) for o in self.repeated.used)

    def average_w(self, scope: str) -> Estimate | None:
        """Mean of the repeats' average power."""
        return _estimate(o.scopes[scope].average_w for o in self.repeated.used if scope in o.scopes)

    def peak_w(self, scope: str) -> Estimate | None:
        """Mean of the repeats' highest power."""
        return _estimate(o.scopes[scope].peak_w for o in self.repeated.used if scope in o.scopes)

    def temperature_c(self) -> float | None:
        """The highest temperature in any repeat."""
        found = [t for o in self.repeated.used if (t := o.temperature_c()) is not None]
        return max(found) if found else None

    def costs(self, scope: str) -> list[Cost]:
        """Time and energy of every repeat that is used."""
        found = ((o.time_s, o.energy_j(scope)) for o in self.repeated.used)
        return [Cost(t, e) for t, e in found if t is not None and e is not None]

    @property
    def run_id(self) -> str | None:
        """A typical run: the one whose time is nearest the mean."""
        time_s = self.time_s
        used = [o for o in self.repeated.used if o.run_id and o.time_s is not None]
        if time_s is None or not used:
            return None
        return min(used, key=lambda o: abs((o.time_s or 0.0) - time_s.mean)).run_id

    def provenance(self, scope: str) -> str | None:
        """Of the energy."""
        kinds = {o.scopes[scope].provenance for o in self.repeated.used if scope in o.scopes}
        return ", ".join(sorted(kinds)) or None


@dataclass(frozen=True, slots=True)
class Group:
    """Points of one workload on as many GPUs, and the default among them."""

    key: GroupKey
    scope: str
    points: tuple[PointResult, ...]

    @property
    def label(self) -> str:
        """`gemm jax, 8 GPUs`; empty for the only one."""
        workload, library, gpus = self.key
        parts = " ".join(filter(None, (workload, library)))
        return ", ".join(filter(None, (parts, gpu_count(gpus))))

    @property
    def reference(self) -> PointResult | None:
        """The default, when it was measured."""
        found = [p for p in self.points if p.is_default and p.costs(self.scope)]
        return found[0] if found else None

    def gain(self, point: PointResult, compared: Compared) -> Gain | None:
        """What a point gains over the default; None when either was not measured."""
        reference = self.reference
        costs = point.costs(self.scope)
        if reference is None or not costs:
            return None
        return gain_of(costs, reference.costs(self.scope), compared, same=point is reference)

    def best(self, compared: Compared) -> tuple[PointResult, Gain] | None:
        """The point that gains most, which may be the default."""
        gains = [(p, g) for p in self.points if (g := self.gain(p, compared)) is not None]
        return max(gains, key=lambda pair: pair[1].value_pct) if gains else None


def gpu_count(gpus: int | None) -> str:
    """`8 GPUs`; empty when it was not varied."""
    return "" if gpus is None else f"{gpus} GPU{'s' if gpus != 1 else ''}"


def largest_groups(groups: Sequence[Group]) -> list[Group]:
    """Of each workload the one with most GPUs, where capping pays most."""
    best: dict[tuple[str, str], Group] = {}
    for group in groups:
        known = best.get(group.key[:2])
        if known is None or (group.key[2] or 0) > (known.key[2] or 0):
            best[group.key[:2]] = group
    return list(best.values())


def _estimate(values: Iterable[float | None]) -> Estimate | None:
    return estimate([value for value in values if value is not None])
