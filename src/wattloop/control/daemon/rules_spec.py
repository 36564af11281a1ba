"""The rules file as YAML: which fields it has, and what may stand in them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from wattloop.control.daemon.ranges import Amount, Range, amount, range_of

__all__ = ["RuleSpec", "RulesSpec", "SocketSpec"]

ALL_GPUS = "gpu:*/power_limit"
"""What a cap is for when it is written without a lever."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, strict=True)


class SocketSpec(_Strict):
    """Where clients connect, and who may open it."""

    path: str = ""
    mode: int = 0o660
    group: str | int | None = None

    @field_validator("mode", mode="before")
    @classmethod
    def _octal(cls, value: Any) -> Any:
        """YAML reads 0660 as an octal number, and 660 as six hundred and sixty."""
        if isinstance(value, str):
            try:
                value = int(value, 8)
            except ValueError:
                value = -1
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 0o777:
            raise ValueError("write it in octal with a zero before it, such as 0660")
        return value


class RuleSpec(_Strict):
    """One rule."""

    users: list[str] = []
    groups: list[str] = []
    uids: list[int] = []
    everyone: bool = False
    levers: dict[str, Range] = {}
    low_power: bool = False
    trusted: bool = False
    only_own_gpus: bool = False

    @field_validator("levers", mode="before")
    @classmethod
    def _ranges(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(
                "write 'lever: range' lines, such as gpu:*/power_limit: 100 W to 400 W"
            )
        return {str(_pattern(name)): _said(name, range_of, text) for name, text in value.items()}


class LimitsSpec(_Strict):
    """What one client, one user and all together may take."""

    connections: int = Field(128, ge=1, le=4_096)
    connections_per_user: int = Field(16, ge=1, le=4_096)
    requests_per_s: float = Field(50.0, gt=0, le=1e6, strict=False)
    burst: float = Field(400.0, ge=1, le=1e6, strict=False)
    line_s: float = Field(5.0, gt=0, le=3_600, strict=False)
    idle_s: float = Field(60.0, gt=0, le=1e6, strict=False)


class RulesSpec(_Strict):
    """The whole file."""

    version: Literal[1] = 1
    socket: SocketSpec = SocketSpec()
    log: str = "/var/log/wattloop/control.jsonl"
    jobs_file: str | None = None
    default_cap: dict[str, Amount] = {}
    low_power: dict[str, Amount] = {}
    limits: LimitsSpec = Field(default_factory=lambda: LimitsSpec.model_validate({}))
    rules: list[RuleSpec] = []

    @field_validator("default_cap", "low_power", mode="before")
    @classmethod
    def _caps(cls, value: Any) -> Any:
        lines = value if isinstance(value, dict) else {ALL_GPUS: value}
        return {str(_pattern(name)): _said(name, _cap, text) for name, text in lines.items()}


def _pattern(name: Any) -> str:
    if not isinstance(name, str) or "/" not in name or not name.isprintable():
        raise ValueError(f"{name!r} is no lever; write it as gpu:*/power_limit or cpu/governor")
    return name


def _cap(text: Any) -> Amount:
    found = amount(text)
    if found.number <= 0 or (found.unit == "%" and found.number > 100):
        raise ValueError(f"{text} is no cap: a share is above 0% and at most 100%, or -10%")
    return found


def _said(name: str, parse: Any, text: Any) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
