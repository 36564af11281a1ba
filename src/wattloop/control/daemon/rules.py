"""The operator's rules: which user may set which lever within which range; and their file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from wattloop.control.daemon.job_gpus import gpus_of, read_job_gpus
from wattloop.control.daemon.protocol import DEFAULT_SOCKET, Peer, PermissionDenied
from wattloop.control.daemon.trusted_file import read_trusted
from wattloop.control.lever import Lever, LeverState, Setting, format_setting, full_value
from wattloop.control.registry import find_levers
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_name
from wattloop.core.units import Dimension, number_and_unit, quantity
from wattloop.core.yaml_spec import (
    Fault,
    YamlWithLines,
    format_errors,
    load_yaml,
    validation_errors,
)


# Ranges of values as an operator writes them: `100 W to 400 W`, `50% to 100%`, `600 to 1980 MHz`.
#
# A bound may be left out (`to 400 W`, `100 W to`), and `any` is the whole range of the device. For
# a lever that is a choice, the names. A cap is `70%`, `350 W`, or `-10%`: below the device's
# default.
@dataclass(frozen=True, slots=True)
class LeverAmount:
    """An amount in watts or MHz, or a share of the device's factory value."""

    number: float
    unit: str

    def on(self, state: LeverState) -> float:
        """Convert to the unit of this device. Raises ValueError: other unit, or no maximum."""
        if self.unit != "%":
            if self.unit != state.unit:
                raise ValueError(f"{state.name} is in {state.unit}, not in {self.unit}")
            return self.number
        whole = full_value(state)
        if whole is None:
            raise ValueError(f"{state.name}: the device states no maximum to take {self} of")
        return whole * self.number / 100

    def __str__(self) -> str:
        return f"{self.number:g}%" if self.unit == "%" else f"{self.number:g} {self.unit}"


@dataclass(frozen=True, slots=True)
class Range:
    """A range of allowed values; without bounds and choices, all that the device accepts."""

    low: LeverAmount | None = None
    high: LeverAmount | None = None
    choices: tuple[str, ...] = ()

    def limits(self, state: LeverState) -> tuple[float | None, float | None]:
        """Return lowest and highest value within the device's own limits. Raises ValueError."""
        low = state.low if self.low is None else max(self.low.on(state), state.low or 0.0)
        high = self.high.on(state) if self.high is not None else state.high
        if high is not None and state.high is not None:
            high = min(high, state.high)
        return low, high

    def refusal(self, state: LeverState, value: Setting) -> str:
        """Return the reason why a value may not be set; empty when it may."""
        if isinstance(value, str) or state.unit == "name":
            if not self.choices or value in self.choices:
                return ""
            return f"{format_setting(value)!r} is not among {', '.join(self.choices)}"
        try:
            low, high = self.limits(state)
        except ValueError as error:
            return str(error)
        if value is None:  # not locked: any clock up to the device's highest
            free = self.high is None or (state.high is not None and high == state.high)
            return "" if free else f"leaving it to the device would pass {self.high}"
        # shares are rarely round numbers, and a device rounds
        slack = 1e-6 * abs(value) + 1e-3
        if (low is not None and value < low - slack) or (high is not None and value > high + slack):
            return f"{format_setting(value, state.unit)} is outside {self.text(state)}"
        return ""

    def text(self, state: LeverState | None = None) -> str:
        """Format for people; with a device, in its own unit."""
        if self.choices:
            return ", ".join(self.choices)
        if state is None:
            low, high = self.low or "", self.high or ""
            return f"{low} to {high}".strip() if low or high else "any"
        try:
            lowest, highest = self.limits(state)
        except ValueError as error:
            return str(error)
        return (
            f"{format_setting(lowest) if lowest else 0} to {format_setting(highest)} {state.unit}"
        )


ANY = Range()


def parse_range(text: object) -> Range:
    """Parse a range of the rules. Raises ValueError with the syntax."""
    if isinstance(text, list):
        if not text or not all(isinstance(name, str) for name in text):
            raise ValueError("write the names that may be set, such as [powersave, performance]")
        return Range(choices=tuple(text))
    if not isinstance(text, str):
        raise ValueError(HOW)
    words = text.strip()
    if words == "any":
        return ANY
    low_text, separator, high_text = words.partition("to")
    if not separator or not (low_text.strip() or high_text.strip()):
        raise ValueError(HOW)
    high = parse_amount(high_text) if high_text.strip() else None
    low = parse_amount(low_text, high.unit if high else "") if low_text.strip() else None
    if low and high and "%" not in (low.unit, high.unit) and low.unit != high.unit:
        raise ValueError(f"{low} to {high} is not a range; {HOW}")
    if low and high and low.unit == high.unit and low.number > high.number:
        raise ValueError(f"{low} to {high} is not a range; {HOW}")
    if (low and low.number < 0) or (high and high.number <= 0):
        raise ValueError(f"a bound is above zero; {HOW}")
    return Range(low, high)


def parse_amount(text: object, unit: str = "") -> LeverAmount:
    """Parse `350 W`, `70%`, or `-10%` (below the default). Raises ValueError with the syntax."""
    words = str(text).strip()[:40]
    what = "an amount; write it as 250 W, 1400 MHz or 70%"
    if isinstance(text, bool):
        raise ValueError(f"{words!r} is not {what}")
    found = number_and_unit(words)
    if found is not None and not found[1]:
        words = f"{words} {unit}".strip()
    stated = quantity(words, Dimension.SHARE, Dimension.POWER, Dimension.FREQUENCY, what=what)
    if not stated.unit:
        raise ValueError(f"{words!r} lacks its unit; write 250 W, 1400 MHz or 70%")
    if stated.dimension is Dimension.SHARE:
        percent = round(100 * stated.value, 9)
        return LeverAmount(percent + 100 if words.startswith("-") else percent, "%")
    if stated.dimension is Dimension.POWER:
        return LeverAmount(stated.value, "W")
    return LeverAmount(stated.value / 1e6, "MHz")


HOW = "write a range as '100 W to 400 W', '50% to 100%' or '600 MHz to 1980 MHz', or 'any'"


# Everything that no rule allows is forbidden. A user may do what any rule that names them allows.
class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, strict=True)


class ClientLimits(_Strict):
    """Limits of the daemon's resources for one client, one user and all together."""

    connections: int = Field(128, ge=1, le=4_096)
    connections_per_user: int = Field(16, ge=1, le=4_096)
    requests_per_s: float = Field(50.0, gt=0, le=1e6, strict=False)
    burst: float = Field(400.0, ge=1, le=1e6, strict=False)
    line_s: float = Field(5.0, gt=0, le=3_600, strict=False)
    """Timeout for the rest of a line, and for reading a reply."""
    idle_s: float = Field(60.0, gt=0, le=1e6, strict=False)
    """Idle timeout of a client without a lease."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Permissions of some users.

    Attributes:
        low_power: may ask for the operator's low-power mode, for its levers within their ranges;
            without levers for all that have one.
        trusted: may set levers in the name of jobs (a node agent).
        only_own_gpus: of the GPUs, only those of the user's own jobs.
    """

    line: int
    levers: Mapping[str, Range]
    everyone: bool = False
    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()
    low_power: bool = False
    trusted: bool = False
    only_own_gpus: bool = False

    def names(self, peer: Peer) -> bool:
        return self.everyone or peer.uid in self.uids or not self.gids.isdisjoint(peer.gids)

    def range_for(self, lever: str) -> Range | None:
        """Return the range of the first matching pattern; None without one."""
        return next((own for pattern, own in self.levers.items() if matches(pattern, lever)), None)


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules of the file."""

    path: Path
    rules: tuple[Rule, ...] = ()
    socket: Path = DEFAULT_SOCKET
    socket_mode: int = 0o660
    socket_gid: int | None = None
    log: Path = Path("/var/log/wattloop/control.jsonl")
    jobs_file: Path | None = None
    default_caps: Mapping[str, LeverAmount] = field(default_factory=dict)
    low_power: Mapping[str, LeverAmount] = field(default_factory=dict)
    limits: ClientLimits = field(default_factory=lambda: ClientLimits.model_validate({}))

    def of(self, peer: Peer) -> list[Rule]:
        return [rule for rule in self.rules if rule.names(peer)]

    def trusts(self, peer: Peer) -> bool:
        """Return True if this user may set levers in the name of jobs."""
        return any(rule.trusted for rule in self.of(peer))

    @property
    def trusted_uids(self) -> frozenset[int]:
        return frozenset().union(*(rule.uids for rule in self.rules if rule.trusted))

    @property
    def trusted_gids(self) -> frozenset[int]:
        return frozenset().union(*(rule.gids for rule in self.rules if rule.trusted))

    def range_for(self, peer: Peer, state: LeverState) -> Range:
        """Return the widest range of a lever for this user. Raises PermissionDenied without any."""
        ranges = [r for rule in self._open(peer, state.name) if (r := rule.range_for(state.name))]
        if not ranges:
            raise PermissionDenied(f"{state.name}: no rule of {self.path} lets {peer.user} set it")

        def reach(one: Range) -> float:
            try:
                low, high = one.limits(state)
            except ValueError:
                return -1.0
            return (high or 0.0) - (low or 0.0) + len(one.choices)

        return max(ranges, key=reach)

    def check(self, peer: Peer, state: LeverState, value: Setting) -> None:
        """Raise PermissionDenied unless a rule lets this user set this value."""
        self.range_for(peer, state)
        refusals = [
            own.refusal(state, value)
            for rule in self._open(peer, state.name)
            if (own := rule.range_for(state.name))
        ]
        if all(refusals):
            raise PermissionDenied(
                f"{state.name}: {refusals[0]}, which is what {self.path} lets {peer.user} set"
            )

    def low_power_for(self, peer: Peer, state: LeverState) -> float:
        """Return the operator's low-power value of a lever, inside a rule that gives it to this
        user.

        A rule with levers gives it for those, and within their ranges: a value outside of a range
        becomes its nearest bound. A rule without levers gives it for every lever that has one.

        Raises:
            PermissionDenied: none is set, or it is not for this user.
            ValueError: it is not a value of this lever.
        """
        lever = state.name
        found = next((a for p, a in self.low_power.items() if matches(p, lever)), None)
        if found is None:
            raise PermissionDenied(f"{lever}: {self.path} has no low_power mode for it")
        wanted = found.on(state)
        inside = []
        for rule in self._open(peer, lever):
            own = rule.range_for(lever) if rule.levers else Range()
            if rule.low_power and own is not None:
                low, high = own.limits(state)
                inside.append(max(min(wanted, wanted if high is None else high), low or 0.0))
        if not inside:
            raise PermissionDenied(f"{lever}: no rule of {self.path} gives {peer.user} low_power")
        return min(inside)

    def default_cap_for(self, lever: str) -> LeverAmount | None:
        return next((a for p, a in self.default_caps.items() if matches(p, lever)), None)

    def _open(self, peer: Peer, lever: str) -> list[Rule]:
        """Return rules for this user and GPU. Raises PermissionDenied for GPUs of others."""
        named = self.of(peer)
        gpu = re.match(r"gpu:(\d+)/", lever)
        if gpu is None or not any(rule.only_own_gpus for rule in named):
            return named
        own = self._own_gpus(peer)
        rules = [rule for rule in named if not rule.only_own_gpus or int(gpu.group(1)) in own]
        if named and not rules:
            theirs = ", ".join(f"gpu:{n}" for n in sorted(own)) or "none"
            raise PermissionDenied(
                f"{lever}: {peer.user} may set only GPUs of their own jobs here: {theirs}"
            )
        return rules

    def _own_gpus(self, peer: Peer) -> set[int]:
        if self.jobs_file is None:
            return set()
        try:
            return gpus_of(read_job_gpus(self.jobs_file), peer.uid)
        except ConfigError as error:
            raise PermissionDenied(f"whose GPU it is cannot be told: {error}") from None


def matches(pattern: str, lever: str) -> bool:
    """Match `gpu:*/power_limit`, `cpu/governor`, or `gpu/power_limit` for all GPUs."""
    if fnmatchcase(lever, pattern):
        return True
    family, _, leaf = pattern.partition("/")
    device, _, own = lever.partition("/")
    return ":" not in family and device.partition(":")[0] == family and own == leaf


def describe_rules(rules: Rules) -> list[str]:
    """Describe the rules that apply on this machine, and those that do not, one line each."""
    levers = find_levers(remote=False)
    lines = [f"{rules.path}: {len(rules.rules)} rule(s), {len(levers)} lever(s) on this machine"]
    for lever in levers:
        cap = rules.default_cap_for(lever.name)
        if cap is not None:
            lines.append(f"default: {lever.name} at most {_amount(lever, cap.on)} ({cap})")
        low_power = next((a for p, a in rules.low_power.items() if matches(p, lever.name)), None)
        if low_power is not None:
            lines.append(f"low_power: {lever.name} at {_amount(lever, low_power.on)} ({low_power})")
    for rule in rules.rules:
        lines += _rule(rules, rule, levers)
    patterns = [*rules.default_caps, *rules.low_power]
    patterns += [pattern for rule in rules.rules for pattern in rule.levers]
    for pattern in dict.fromkeys(patterns):
        if not any(matches(pattern, lever.name) for lever in levers):
            lines.append(f"warning: {pattern} fits no lever of this machine")
    return lines


def _rule(rules: Rules, rule: Rule, levers: list[Lever]) -> list[str]:
    who = ["everyone who may open the socket"] if rule.everyone else []
    who += [user_name(uid) for uid in sorted(rule.uids)]
    who += [f"group {gid}" for gid in sorted(rule.gids)]
    marks = [
        word
        for word, holds in (
            ("acts for jobs", rule.trusted),
            ("low_power", rule.low_power),
            ("only GPUs of own jobs", rule.only_own_gpus),
        )
        if holds
    ]
    head = f"line {rule.line}: {', '.join(who)}" + (f" ({'; '.join(marks)})" if marks else "")
    lines = [head]
    for lever in levers:
        own = rule.range_for(lever.name)
        if own is not None:
            lines.append(f"  {lever.name}: {_range(lever, own)}")
    patterns = [pattern for pattern in rules.low_power if rule.low_power and rule.levers]
    for pattern in patterns:
        if any(matches(pattern, x.name) and rule.range_for(x.name) is None for x in levers):
            lines.append(f"  warning: low_power of {pattern} is outside its levers, so not given")
    return lines


def _range(lever: Lever, own: Range) -> str:
    state = lever.state()
    text = own.text(state if state.unit != "name" else None)
    return text if state.available else f"{text}, but it cannot be set: {state.reason}"


def _amount(lever: Lever, of: object) -> str:
    assert callable(of)
    state = lever.state()
    try:
        return format_setting(of(state), state.unit)
    except ValueError as error:
        return f"nothing: {error}"


ALL_GPUS = "gpu:*/power_limit"
"""The lever of a cap that is written without one."""


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


class RulesSpec(_Strict):
    """The whole file."""

    version: Literal[1] = 1
    socket: SocketSpec = SocketSpec()
    log: str = "/var/log/wattloop/control.jsonl"
    jobs_file: str | None = None
    default_cap: dict[str, LeverAmount] = {}
    low_power: dict[str, LeverAmount] = {}
    limits: ClientLimits = Field(default_factory=lambda: ClientLimits.model_validate({}))
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
    rules = tuple(
        _rule_rules_file(rule, number, source, faults) for number, rule in enumerate(spec.rules)
    )
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
        limits=spec.limits,
    )


def _rule_rules_file(
    spec: RuleSpec, number: int, source: YamlWithLines, faults: list[Fault]
) -> Rule:
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
            import pwd

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
        import grp

        return name if isinstance(name, int) else grp.getgrnam(name).gr_gid
    except KeyError:
        faults.append((place, f"unknown group {name!r}"))
        return None
