"""Specification of a sweep, validated with errors that name line and field."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from wattloop.accounting.energy_delay import METRICS
from wattloop.core.errors import ConfigError
from wattloop.core.units import Values, command_words, counts, expanded, seconds
from wattloop.core.yaml_spec import YamlWithLines, nearest

Words = Annotated[list[str], BeforeValidator(command_words)]
Seconds = BeforeValidator(seconds)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Repeats(_Strict):
    """Number of runs of each point.

    After `least` runs a point is left alone once the half-widths of its mean energy and time are
    below `target_pct` per cent; without a target it is run `most` times.
    """

    least: Annotated[int, Field(ge=1, alias="min")] = 3
    most: Annotated[int, Field(ge=1, alias="max")] = 3
    target_pct: Annotated[float | None, Field(gt=0, le=100, alias="target")] = None

    @model_validator(mode="before")
    @classmethod
    def _plain_number(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"min": value, "max": value}
        if isinstance(value, Mapping):
            value = dict(value)
            if isinstance(value.get("target"), str):
                value["target"] = value["target"].removesuffix("%").strip()
            if "max" not in value and "min" in value:
                value["max"] = value["min"]
            if "min" not in value and isinstance(value.get("max"), int):
                value["min"] = min(3, value["max"])
            return value
        raise ValueError("write a number, or min, max and target such as 1%")

    @model_validator(mode="after")
    def _in_order(self) -> "Repeats":
        if self.least > self.most:
            raise ValueError(f"min is {self.least}, above max, which is {self.most}")
        return self


class CoolDown(_Strict):
    """Pause between two runs.

    Wait `pause` seconds, then until every device is at most `within` degrees above the
    temperature it had before the sweep, for at most `limit` seconds.
    """

    within_c: Annotated[float | None, Field(gt=0, alias="within")] = None
    limit_s: Annotated[float, Field(ge=0, alias="limit"), Seconds] = 120.0
    pause_s: Annotated[float, Field(ge=0, alias="pause"), Seconds] = 0.0


class SweepWorkload(_Strict):
    """One command of several, for tables by kernel and library."""

    command: Words = Field(min_length=1)
    library: str = ""

    @model_validator(mode="before")
    @classmethod
    def _plain_command(cls, value: Any) -> Any:
        return {"command": value} if isinstance(value, str | list) else value


class SweepSpec(_Strict):
    """One sweep. The field names are those of the YAML file."""

    name: str = ""
    command: Words = Field(default_factory=list)
    workloads: dict[str, SweepWorkload] = Field(default_factory=dict)
    levers: dict[str, Annotated[Values, BeforeValidator(expanded)]] = Field(default_factory=dict)
    combine: Literal["grid", "each"] = "grid"
    gpus: Annotated[list[Annotated[int, Field(ge=1, le=1024)]], BeforeValidator(counts)] = Field(
        default_factory=list
    )
    repeats: Repeats = Repeats()
    warmup: int = Field(1, ge=0, le=100)
    cooldown: CoolDown = CoolDown()
    order: Literal["random", "listed"] = "random"
    seed: int = 0
    timeout_s: Annotated[float | None, Field(gt=0, alias="timeout"), Seconds] = None
    window: str = ""
    scope: Literal["gpu", "cpu", "dram", "node"] | None = None
    metric: str = "edp"
    k: float = Field(2.0, gt=1)

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str) -> str:
        if value not in METRICS:
            raise ValueError(f"unknown metric '{value}'; {nearest(value, list(METRICS))}")
        return value

    def to_dict(self) -> dict[str, Any]:
        """Plain data, from which `SweepSpec(**data)` makes the same again."""
        return self.model_dump(mode="json", by_alias=True)


def parse_sweep_spec(data: Mapping[str, Any], source: YamlWithLines | None = None) -> SweepSpec:
    """Validate a specification. Raises ConfigError with `FILE:LINE: field: what is wrong`."""
    try:
        return SweepSpec(**{str(key): value for key, value in data.items()})
    except ValidationError as error:
        faults = error.errors()
        if source is not None:
            faults.sort(key=lambda fault: source.line(fault["loc"]))
        raise ConfigError("\n".join(_said(fault, source) for fault in faults)) from None


MODELS: dict[str, type[BaseModel]] = {
    "repeats": Repeats,
    "cooldown": CoolDown,
    "workloads": SweepWorkload,
}


def _said(fault: Any, source: YamlWithLines | None) -> str:
    place = fault["loc"]
    where = "sweep" if source is None else source.where(place)
    field = ".".join(str(part) for part in place)
    if fault["type"] == "extra_forbidden":
        model = SweepSpec if len(place) == 1 else MODELS.get(str(place[0]), SweepSpec)
        known = [info.alias or name for name, info in model.model_fields.items()]
        return f"{where}: unknown field '{field}'; {nearest(str(place[-1]), known)}"
    message = str(fault["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    given = fault.get("input")
    shown = f", not {given!r}" if isinstance(given, str | int | float | bool) else ""
    return f"{where}: {field}: {message}{shown if fault['type'] != 'value_error' else ''}"
