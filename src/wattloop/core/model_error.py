"""Model errors that cancel between runs: those of one model on one machine.

A modelled or estimated energy has a random error of its own (resolution, gaps) and the error of its
model, stated as a share r of the energy and as a power b:

    E_true = (1 + r) E + b T

On one machine r and b are unknown but the same in every run, so a ratio of two runs hardly depends
on them. With E = sum of E_d over domains, to first order:

    d(E2 / E1) = sum of  (E2 / E1) (E_d2 / E2 - E_d1 / E1)  r_d      shares that move
               + sum of  (T1 / E1) (T2 / T1 - E2 / E1)      b_d      powers that differ

Two runs of one domain at the same power have no error left but their random ones.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from wattloop.core.records import Provenance
from wattloop.core.results import DomainEnergy

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
