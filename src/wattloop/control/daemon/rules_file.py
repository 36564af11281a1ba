"""Read the operator's rules: a file that only root can have written, with faults by line."""

import grp
import pwd
from pathlib import Path

from pydantic import ValidationError

from wattloop.control.daemon.protocol import DEFAULT_SOCKET
from wattloop.control.daemon.rules import Limits, Rule, Rules
from wattloop.control.daemon.rules_spec import RuleSpec, RulesSpec
from wattloop.control.daemon.trusted_file import read_trusted
from wattloop.core.errors import ConfigError
from wattloop.hardware.lined_yaml import LinedData, lined
from wattloop.hardware.yaml_faults import Fault, faults_of, said

__all__ = ["DEFAULT_RULES", "read_rules"]

DEFAULT_RULES = Path("/etc/wattloop/control.yaml")


def read_rules(path: Path = DEFAULT_RULES) -> Rules:
    """The rules of a file.

    Raises:
        ConfigError: somebody else could have written it, or `FILE:LINE: field: what is wrong`.
    """
    path = path.absolute()
    try:
        text = read_trusted(path)
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there are no rules there; write them as in docs/control-daemon.md, or name "
            "the file with --rules"
        ) from None
    source = lined(text, str(path))
    try:
        spec = RulesSpec.model_validate(source.data)
    except ValidationError as error:
        faults = faults_of(error, RulesSpec)
        raise ConfigError(said(faults, source, otherwise=str(path))) from None
    return _rules(path, spec, source)


def _rules(path: Path, spec: RulesSpec, source: LinedData) -> Rules:
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
        raise ConfigError(said(faults, source, otherwise=str(path)))
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
        limits=Limits(**spec.limits.model_dump()),
    )


def _rule(spec: RuleSpec, number: int, source: LinedData, faults: list[Fault]) -> Rule:
    place = ("rules", number)
    if not (spec.users or spec.groups or spec.uids or spec.everyone):
        faults.append((place, "it names nobody; give users, groups, uids or everyone: true"))
    if not (spec.levers or spec.low_power):
        faults.append((place, "it allows nothing; give levers, or low_power: true"))
    uids = {uid for uid in spec.uids if uid >= 0}
    if len(uids) < len(set(spec.uids)):
        faults.append(((*place, "uids"), "a uid is not negative"))
    for position, user in enumerate(spec.users):
        try:
            uids.add(pwd.getpwnam(user).pw_uid)
        except KeyError:
            faults.append(((*place, "users", position), f"there is no user {user!r} here"))
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
        faults.append((place, f"there is no group {name!r} here"))
        return None
