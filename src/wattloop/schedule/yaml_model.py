"""Base model of cluster and scenario files, and parsing of their powers, times and shares."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from wattloop.core.errors import ConfigError
from wattloop.core.units import Dimension, quantity
from wattloop.core.yaml_spec import YamlWithLines, format_errors, validation_errors


class StrictModel(BaseModel):
    """Base model that rejects unknown fields and non-finite numbers."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False
    )

    @classmethod
    def read(cls, data: Mapping[str, Any], source: YamlWithLines | None, name: str) -> Self:
        """Validate plain data.

        Raises:
            ConfigError: `FILE:LINE: field: what is wrong and what is allowed`, one line per fault.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            faults = validation_errors(error, cls)
            raise ConfigError(format_errors(faults, source, otherwise=name)) from None


def watts(value: Any) -> Any:
    """Parse `4500`, `4500 W` or `4.5 kW` as watts; other types are returned unchanged."""
    return _scaled(value, Dimension.POWER, "a power; write watts, '4500 W' or '4.5 kW'")


def bytes_per_second(value: Any) -> Any:
    """Parse `25e9`, `25 GB/s`, `200 Gb/s` or `200 Gbit/s` as bytes per second."""
    return _scaled(value, Dimension.BANDWIDTH, "a bandwidth; write '25 GB/s' or '200 Gbit/s'")


def seconds(value: Any) -> Any:
    """Parse `90`, `90 s`, `1.5 min`, `2 h` or `30 d` as seconds."""
    return _scaled(value, Dimension.TIME, "a time; write seconds, '10 min', '2 h' or '30 d'")


def number(value: Any) -> Any:
    """Parse `1e-3`, which YAML reads as a text, and `10%` as numbers."""
    return _scaled(value, Dimension.SHARE, "a number")


def not_negative(value: Any, what: str) -> float:
    """Return the value as a finite number of 0 or more.

    Raises:
        ValueError: with `what` to write.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"write {what}, not {value!r}")
    return float(value)


def one_or_many(value: Any) -> Any:
    """Accept one value in place of a list of them."""
    return value if isinstance(value, list) else [value]


def name_or_fields(value: Any) -> Any:
    if not isinstance(value, str | dict):
        raise ValueError(f"write a name, or 'key: value' lines, not {value!r}")
    return value


def _scaled(value: Any, dimension: Dimension, what: str) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"'{str(value).lower()}' is not {what}")
    return quantity(value, dimension, what=what).value if isinstance(value, str) else value


Watts = Annotated[float, BeforeValidator(watts), Field(ge=0)]


Seconds = Annotated[float, BeforeValidator(seconds), Field(ge=0)]


PositiveSeconds = Annotated[float, BeforeValidator(seconds), Field(gt=0)]


BytesPerSecond = Annotated[float, BeforeValidator(bytes_per_second), Field(gt=0)]


Share = Annotated[float, BeforeValidator(number), Field(ge=0, le=1)]


Count = Annotated[int, Field(ge=1, strict=True)]


Positive = Annotated[float, Field(gt=0)]


NameOrFields = Annotated[str | dict[str, Any], BeforeValidator(name_or_fields)]
