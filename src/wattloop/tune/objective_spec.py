"""The objective of a search as people write it: a word, a mapping, or a list for a front."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from wattloop.accounting.carbon import find_intensity
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.hardware.lined_yaml import nearest
from wattloop.tune.objective import NEED_QUALITY, OBJECTIVES, Objective
from wattloop.tune.parameter_spec import Strict

__all__ = ["ObjectiveSpec"]

NO_TARIFF = (
    "objective cost: no price of electricity; give price_per_kwh, or set tariff.per_kwh in "
    "wattloop.yaml or WATTLOOP_TARIFF"
)


class ObjectiveSpec(Strict):
    """What to make small among trainings that are good enough.

    `k` is of EDS, `alpha` and `beta` of SM2. Prices and carbon intensity are those of the
    settings unless they are given.
    """

    name: list[str] = Field(default_factory=lambda: ["energy"])
    k: Annotated[float, Field(gt=1)] = 2.0
    alpha: Annotated[float | None, Field(ge=0, le=1)] = None
    beta: Annotated[float | None, Field(ge=0, le=1)] = None
    price_per_kwh: Annotated[float | None, Field(ge=0)] = None
    price_per_hour: Annotated[float | None, Field(ge=0)] = None
    carbon_g_per_kwh: Annotated[float | None, Field(ge=0)] = None

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if isinstance(value, Objective):
            return {"name": list(value.names), "k": value.k, **value.options}
        if isinstance(value, str | list | tuple):
            value = {"name": value}
        if not isinstance(value, Mapping):
            raise ValueError("write a name such as energy, or a list of names")
        names = value.get("name", ["energy"])
        return {**value, "name": [names] if isinstance(names, str) else list(names)}

    @field_validator("name")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        if not names:
            raise ValueError("no objective; give one, such as energy")
        for name in names:
            if name not in OBJECTIVES:
                raise ValueError(f"unknown objective '{name}'; {nearest(name, list(OBJECTIVES))}")
        if len(set(names)) < len(names):
            raise ValueError(f"{', '.join(names)}: one is given twice")
        return names

    @property
    def needs_quality(self) -> str:
        """The first of its names that means nothing without a metric; empty for none."""
        return next((name for name in self.name if name in NEED_QUALITY), "")

    def objective(self, settings: Settings | None = None, *, maximize: bool = True) -> Objective:
        """The objective itself.

        Raises:
            ConfigError: a price or carbon intensity is needed and nobody states it.
        """
        return Objective(
            names=tuple(self.name),
            maximize_quality=maximize,
            k=self.k,
            options=self._options(settings or Settings()),
        )

    def _options(self, settings: Settings) -> dict[str, float]:
        given = {
            "alpha": self.alpha,
            "beta": self.beta,
            "price_per_kwh": self.price_per_kwh,
            "price_per_hour": self.price_per_hour,
            "carbon_g_per_kwh": self.carbon_g_per_kwh,
        }
        options = {name: value for name, value in given.items() if value is not None}
        if "cost" in self.name and "price_per_kwh" not in options:
            if settings.tariff_per_kwh is None:
                raise ConfigError(NO_TARIFF)
            options["price_per_kwh"] = settings.tariff_per_kwh
        if "carbon" in self.name and "carbon_g_per_kwh" not in options:
            search = find_intensity(settings)
            if search.found is None:
                raise ConfigError(f"objective carbon: give carbon_g_per_kwh; or {search.reason}")
            options["carbon_g_per_kwh"] = search.found.g_co2e_per_kwh
        return options
