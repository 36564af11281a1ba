"""Read the rules file: YAML that only root can have written, with errors by line."""

import grp
import pwd
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from wattloop.control.daemon.protocol import DEFAULT_SOCKET
from wattloop.control.daemon.rules import (
    ClientLimits,
    LeverAmount,
    Range,
    Rule,
    Rules,
    parse_amount,
    parse_range,
)
from wattloop.control.daemon.trusted_file import read_trusted
from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import (
    Fault,
    YamlWithLines,
    format_errors,
    load_yaml,
    validation_errors,
)

ALL_GPUS = "gpu:*/power_limit"
"""The lever of a cap that is written without one."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, strict=True)


class SocketSpec(_Strict):
    """The socket: its path, mode and group."""

    path: str = ""
    mode: int = 0o660
    group: str | int | None = None

    @field_validator("mode", mode="before")
    @classmethod
    def _octal(cls, value: Any) -> Any:
        """Convert a mode: YAML reads 0660 as an octal number, and 660 as six hundred and sixty."""
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
        return {str(_pattern(name)): _said(name, parse_range, text) for name, text in value.items()}


class LimitsSpec(_Strict):
    """Limits of the daemon's resources."""

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
    default_cap: dict[str, LeverAmount] = {}
    low_power: dict[str, LeverAmount] = {}
    limits: LimitsSpec = Field(default_factory=lambda: LimitsSpec.model_validate({}))
    rules: list[RuleSpec] = []

    @field_validator("default_cap", "low_power", mode="before")
    @classmethod
    def _caps(cls, value: Any) -> Any:
        lines = value if isinstance(value, dict) else {ALL_GPUS: value}
        return {str(_pattern(name)): _said(name, _cap, text) for name, text in lines.items()}


def _pattern(name: Any) -> str:
    if not isinstance(name, str) or "/" not in name or not name.isprintable():
        raise ValueError(f"{name!r} is not a lever; write it as gpu:*/power_limit or cpu/governor")
    return name


def _cap(text: Any) -> LeverAmount:
    found = parse_amount(text)
    if found.number <= 0 or (found.unit == "%" and found.number > 100):
        raise ValueError(f"{text} is not a cap: a share is above 0% and at most 100%, or -10%")
    return found


def _said(name: str, parse: Any, text: Any) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


DEFAULT_RULES = Path("/etc/wattloop/control.yaml")


def read_rules(path: Path = DEFAULT_RULES) -> Rules:
    """Read a rules file. Raises ConfigError: not trusted, or `FILE:LINE: field: what is wrong`."""
    path = path.absolute()
    try:
        text = read_trusted(path)
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there are no rules there; write them as in docs/control-daemon.md, or name "
            "the file with --rules"
        ) from None
    source = load_yaml(text, str(path))
    try:
        spec = RulesSpec.model_validate(source.data)
    except ValidationError as error:
        faults = validation_errors(error, RulesSpec)
        raise ConfigError(format_errors(faults, source, otherwise=str(path))) from None
    return _rules(path, spec, source)


def _rules(path: Path, spec: RulesSpec, source: YamlWithLines) -> Rules:
    faults: list[Fault] = []
    gid = None
    if spec.socket.group is not None:
        gid = _gid(spec.socket.group, ("socket", "group"), faults)
    rules = tuple(_rule(rule, number, source, faults) for number, rule in enumerate(spec.rules))
    if any(rule.only_own_gpus for rule in rules) and spec.jobs_file is None:
        faults.append((("rules",), "only_own_gpus needs jobs_file: who has which GPU"))
    for name in ("log", "jobs_file"):
        place = getattr(spec, name)
        if place is not None and not Path(place).is_absolute():
            faults.append(((name,), "write the whole path, beginning with /"))
    if spec.socket.path and not Path(spec.socket.path).is_absolute():
        faults.append((("socket", "path"), "write the whole path, beginning with /"))
    if faults:
        raise ConfigError(format_errors(faults, source, otherwise=str(path)))
    return Rules(
        path=path,
        rules=rules,
        socket=Path(spec.socket.path) if spec.socket.path else DEFAULT_SOCKET,
        socket_mode=spec.socket.mode,
        socket_gid=gid,
        log=Path(spec.log),
        jobs_file=Path(spec.jobs_file) if spec.jobs_file else None,
        default_caps=dict(spec.default_cap),
        low_power=dict(spec.low_power),
        limits=ClientLimits(**spec.limits.model_dump()),
    )


def _rule(spec: RuleSpec, number: int, source: YamlWithLines, faults: list[Fault]) -> Rule:
    place = ("rules", number)
    if not (spec.users or spec.groups or spec.uids or spec.everyone):
        faults.append((place, "it names no user; give users, groups, uids or everyone: true"))
    if not (spec.levers or spec.low_power):
        faults.append((place, "it allows nothing; give levers, or low_power: true"))
    uids = {uid for uid in spec.uids if uid >= 0}
    if len(uids) < len(set(spec.uids)):
        faults.append(((*place, "uids"), "a uid is not negative"))
    for position, user in enumerate(spec.users):
        try:
            uids.add(pwd.getpwnam(user).pw_uid)
        except KeyError:
            faults.append(((*place, "users", position), f"unknown user {user!r}"))
    gids = [_gid(name, (*place, "groups", n), faults) for n, name in enumerate(spec.groups)]
    return Rule(
        line=source.line(place),
        levers=dict(spec.levers),
        everyone=spec.everyone,
        uids=frozenset(uids),
        gids=frozenset(gid for gid in gids if gid is not None),
        low_power=spec.low_power,
        trusted=spec.trusted,
        only_own_gpus=spec.only_own_gpus,
    )


def _gid(name: str | int, place: tuple[str | int, ...], faults: list[Fault]) -> int | None:
    try:
        return name if isinstance(name, int) else grp.getgrnam(name).gr_gid
    except KeyError:
        faults.append((place, f"unknown group {name!r}"))
        return None
