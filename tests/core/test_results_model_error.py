"""Promises of model errors: the common part of two runs' errors cancels in their ratio."""

import random

import pytest

from wattloop.core.results import EnergyError, ModelError, ratio_error


def _pair(seed: int) -> tuple[EnergyError, EnergyError]:
    rng = random.Random(seed)

    def energy(duration_s: float) -> EnergyError:
        cpu_j, dram_j = (rng.uniform(40, 90) * duration_s for _ in range(2))
        models = {"cpu": ModelError(cpu_j, 0.3, 4.0), "dram": ModelError(dram_j, 0.2, 0.0)}
        return EnergyError(cpu_j + dram_j, duration_s, 1.0, models)

    return energy(rng.uniform(10, 100)), energy(rng.uniform(10, 100))


@pytest.mark.parametrize("seed", range(20))
def test_the_formula_is_the_derivative(seed: int) -> None:
    """A small error in any model moves the ratio of true energies as stated."""
    first, second = _pair(seed)
    tiny = 1e-6

    def true_j(error: EnergyError, key: str, relative: float, power_w: float) -> float:
        model = error.models[key]
        return error.energy_j + relative * model.energy_j + power_w * error.duration_s

    moved = []
    for key in first.models:
        for relative, power_w in ((tiny, 0.0), (0.0, tiny)):
            ratio = true_j(second, key, relative, power_w) / true_j(first, key, relative, power_w)
            slope = (ratio - second.energy_j / first.energy_j) / tiny
            moved.append(slope * (first.models[key][1] if relative else first.models[key][2]))
    assert ratio_error(first, second) == pytest.approx(
        sum(part**2 for part in moved) ** 0.5, rel=1e-3
    )


def test_segments_add_up_and_survive_the_store() -> None:
    """Energies of a model add up, and survive conversion to plain data and back."""
    first, second = _pair(1)
    both = first.plus(second)
    assert both.energy_j == pytest.approx(first.energy_j + second.energy_j)
    assert both.models["cpu"].energy_j == pytest.approx(
        first.models["cpu"].energy_j + second.models["cpu"].energy_j
    )
    assert EnergyError.from_dict(both.to_dict()) == both
    half = both.scaled(both.energy_j / 2, both.duration_s / 2)
    assert ratio_error(both, half) == pytest.approx(0.0, abs=1e-12)
