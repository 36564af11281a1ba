"""Registry of levers: those of the machine, of third parties, and of the virtual GPU, by name.

Third parties add theirs through the entry-point group `wattloop.levers`: an object `detect(context)
-> Iterable[Lever]`.
"""

import difflib
import os
import re
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from wattloop.control.daemon.protocol import DEFAULT_SOCKET, SOCKET_VARIABLE
from wattloop.control.lever import Lever, LeverState
from wattloop.core.errors import ConfigError, MeterUnavailable, WattloopError
from wattloop.core.plugins import entry_points, loaded
from wattloop.core.settings import SENSORS, Settings, load_settings
from wattloop.hardware.host import Host
from wattloop.meters.base import Context
from wattloop.meters.registry import SYSTEMS

ENTRY_POINT_GROUP = "wattloop.levers"

LEVERS: dict[str, str] = {
    "rapl": "wattloop.control.cpu:detect_power_limits",
    "cpu": "wattloop.control.cpu:detect_policies",
    "nvidia": "wattloop.control.nvidia:detect",
    "amd": "wattloop.control.amd:detect",
}
"""Kind of device (its name up to the first colon) -> detector of its levers."""

ABSENT: dict[str, tuple[str, str, str]] = {
    "rapl": (
        "cpu/power_limit",
        "no power limit under {sysfs}/class/powercap",
        "load it with 'sudo modprobe intel_rapl_msr'; virtual machines have none",
    ),
    "cpu": (
        "cpu/governor",
        "no cpufreq under {sysfs}/devices/system/cpu",
        "enable frequency scaling in the firmware; virtual machines have none",
    ),
    "nvidia": ("gpu/power_limit", "no NVIDIA GPU that NVML can see", ""),
    "amd": ("gpu/power_limit", "no AMD GPU under {sysfs}/class/drm", ""),
}
"""Kind -> the lever a user would look for, why it is missing, and the remedy."""


class LeverInventory(list[Lever]):
    """Levers of a machine, and in `absent` the reason for each kind that is missing."""

    def __init__(self, levers: Iterable[Lever] = (), absent: Iterable[LeverState] = ()) -> None:
        super().__init__(levers)
        self.absent = list(absent)

    def states(self) -> list[LeverState]:
        return [lever.state() for lever in self] + self.absent


def find_levers(
    where: Context | Host | None = None,
    settings: Settings | None = None,
    kinds: Collection[str] | None = None,
    *,
    remote: bool = True,
) -> LeverInventory:
    """Return levers and missing ones, of some `kinds` of devices; `remote`: the daemon's too."""
    context = _context(where, settings)
    found = LeverInventory()
    names: set[str] = set()
    for kind, target in _finders(kinds):
        try:
            levers = list(loaded(target)(context))
        except MeterUnavailable as refusal:
            # without any sign of a card the only message is that none is installed
            levers = []
            if refusal.parts or kind not in ABSENT:
                found.absent.append(_absent(kind, refusal.reason, refusal.remedy))
                continue
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a broken plug-in must not stop the others
            reason = f"{kind} failed to start: {type(error).__name__}: {error}"
            found.absent.append(_absent(kind, reason, "report it to the author of the lever"))
            continue
        if not levers and kind in ABSENT:
            _, reason, remedy = ABSENT[kind]
            reason = reason.format(sysfs=context.host.sysfs)
            if sys.platform != "linux" and kind != "nvidia":
                reason, remedy = (
                    f"{SYSTEMS.get(sys.platform, sys.platform)} has no way to set it",
                    "",
                )
            found.absent.append(_absent(kind, reason, remedy))
        for lever in levers:
            if lever.name not in names:  # the first one wins, as among meters
                names.add(lever.name)
                found.append(lever)
    return daemon_levers(found, context.host) if remote and kinds is None else found


def daemon_levers(found: LeverInventory, host: Host) -> LeverInventory:
    """Return `found` with the daemon's levers for those that this user may not set, or it manages.

    Without a socket this does nothing. `WATTLOOP_CONTROL_SOCKET=` (empty) switches it off.
    """
    path = _socket(host)
    if path is None:
        return found
    from wattloop.control.daemon.client import RemoteLever, connect

    try:
        client = connect(path)
        offers = client.levers()
    except WattloopError as error:
        reason = LeverState(name="daemon", available=False, reason=str(error))
        return LeverInventory(found, [*found.absent, reason])
    own = {(lever.device, _leaf(lever.name)): lever for lever in found}
    levers: dict[str, Lever] = {lever.name: lever for lever in found}
    for offer in offers:
        local = own.get((offer["device"], _leaf(offer["name"])))
        remote = RemoteLever(client, offer, local.name if local else "")
        if not offer["available"]:
            continue
        ours = local is not None and local.state().available and not remote.managed
        if not ours and (local is not None or remote.name not in levers):
            levers[remote.name] = remote
    there = {(name.partition("/")[0].partition(":")[0], _leaf(name)) for name in levers}
    absent = [
        line
        for line in found.absent
        if (line.name.partition("/")[0], _leaf(line.name)) not in there
    ]
    return LeverInventory(levers.values(), absent)


def _socket(host: Host) -> Path | None:
    """Return the socket to use; the default one belongs to this machine, not to a file tree."""
    named = os.environ.get(SOCKET_VARIABLE)
    if named is not None:
        return Path(named) if named else None
    try:
        there = stat.S_ISSOCK(DEFAULT_SOCKET.lstat().st_mode)
    except OSError:
        return None
    return DEFAULT_SOCKET if there and host.sysfs == Path("/sys") else None


def _leaf(name: str) -> str:
    return name.rpartition("/")[2]


def _context(where: Context | Host | None, settings: Settings | None) -> Context:
    if isinstance(where, Context):
        return where if settings is None else where._replace(settings=settings)
    if where is not None:
        return Context(where, settings or Settings())
    return Context(Host.from_environment(), settings or load_settings(needs=SENSORS))


def _finders(kinds: Collection[str] | None) -> Iterator[tuple[str, str]]:
    finders: Iterable[tuple[str, str]] = (*LEVERS.items(), *entry_points(ENTRY_POINT_GROUP))
    seen: set[str] = set()
    for kind, target in finders:
        if kind not in seen and (kinds is None or kind in kinds):
            seen.add(kind)
            yield kind, target


def _absent(kind: str, reason: str, remedy: str) -> LeverState:
    name = ABSENT[kind][0] if kind in ABSENT else kind
    return LeverState(name=name, available=False, reason=reason, remedy=remedy)


# Lookup of levers by name or kind.

SIBLINGS = (
    frozenset(("cpu", leaf) for leaf in ("governor", "min_frequency", "max_frequency")),
    frozenset(
        ("cpu", leaf) for leaf in ("power_limit", "power_limit_long_term", "power_limit_short_term")
    ),
    frozenset(("gpu", leaf) for leaf in ("power_limit", "sm_clock", "memory_clock")),
)
"""Family and leaf of levers that come from one driver: without it all of them are missing."""

VIRTUAL = "WATTLOOP_VIRTUAL_GPUS=1 gives a virtual GPU to try things on"
NEEDED = (
    "an NVIDIA or AMD GPU with its driver, RAPL power limits ('sudo modprobe intel_rapl_msr') or "
    "cpufreq"
    if sys.platform == "linux"
    else "an NVIDIA GPU with its driver, on Windows, or Linux"
)
NO_LEVER = (
    f"no lever on this machine: it would need {NEEDED}; 'wattloop devices' says what is missing. "
    f"{VIRTUAL}"
)


def lever_named(levers: Sequence[Lever], name: str) -> Lever:
    """Return the lever `gpu:0/power_limit`. Raises ConfigError if no or several levers match."""
    found = levers_named(levers, name)
    if len(found) > 1:
        names = ", ".join(lever.name for lever in found)
        raise ConfigError(f"{name} means several levers here ({names}); name one")
    return found[0]


def levers_named(levers: Sequence[Lever], name: str) -> list[Lever]:
    """Return the levers of `gpu:0/power_limit`, `gpu:0,3/power_limit` or `gpu/power_limit`."""
    by_name = {lever.name: lever for lever in levers}
    if name in by_name:
        return [by_name[name]]
    if (why := _why_absent(levers, name)) is not None:
        raise ConfigError(why)
    if not levers:
        raise ConfigError(f"{name}: {NO_LEVER}")
    match = re.fullmatch(r"([a-z]+)(?::(\d+(?:,\d+)*))?/(.+)", name)
    if match is None:
        raise _unknown(name, by_name)
    family, numbers, leaf = match.groups()
    if numbers is None:
        group = [lever for lever in levers if _is(lever.name, family, leaf)]
        if not group:
            raise _unknown(name, by_name)
        return group
    return [
        _numbered(by_name, name, f"{family}:{int(number)}", leaf)
        for number in dict.fromkeys(numbers.split(","))
    ]


def _numbered(by_name: dict[str, Lever], name: str, device: str, leaf: str) -> Lever:
    lever = by_name.get(f"{device}/{leaf}")
    if lever is not None:
        return lever
    family = device.partition(":")[0]
    present = list(
        dict.fromkeys(n.partition("/")[0] for n in by_name if n.startswith(f"{family}:"))
    )
    if device not in present:
        there = (
            f"there are {', '.join(present)}" if present else f"there is no {family} with levers"
        )
        raise ConfigError(f"{name}: there is no {device} here; {there}")
    raise _unknown(name, by_name)


def _why_absent(levers: Sequence[Lever], name: str) -> str | None:
    """Return why a whole kind of levers is missing; None when some exist or it is unknown."""
    family, _, leaf = re.sub(r":[\d,]+", "", name).partition("/")
    siblings = next((kind for kind in SIBLINGS if (family, leaf) in kind), frozenset())
    if any(_is(lever.name, *sibling) for lever in levers for sibling in siblings):
        return None
    absent = levers.absent if isinstance(levers, LeverInventory) else ()
    reasons = [
        f"{state.reason}; {state.remedy}" if state.remedy else state.reason
        for state in absent
        if tuple(state.name.split("/")) in siblings
    ]
    if family == "gpu" and reasons:
        reasons.append(VIRTUAL)
    return f"{name} cannot be set here: {'; '.join(reasons)}" if reasons else None


def _is(name: str, family: str, leaf: str) -> bool:
    device, _, own_leaf = name.partition("/")
    return device.partition(":")[0] == family and own_leaf == leaf


def _unknown(name: str, by_name: dict[str, Lever]) -> ConfigError:
    kinds = dict.fromkeys(re.sub(r":\d+", "", known) for known in by_name)
    near = difflib.get_close_matches(name, [*by_name, *kinds], n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else ""
    known = f"there are: {', '.join(by_name)}"
    return ConfigError(f"unknown lever {name!r}; " + "; ".join(filter(None, (hint, known))))
