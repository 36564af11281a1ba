"""The levers of a machine, and lookup of levers by name or kind."""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from wattloop.control.lever import Lever, LeverState
from wattloop.core.errors import ConfigError


class FoundLevers(list[Lever]):
    """Levers, and the reasons why others are missing."""

    def __init__(self, levers: Iterable[Lever] = (), absent: Iterable[LeverState] = ()) -> None:
        super().__init__(levers)
        self.absent = tuple(absent)


@dataclass(slots=True)
class LeverInventory:
    """Levers of a machine, and the reason for each kind that is missing."""

    levers: list[Lever] = field(default_factory=list)
    absent: list[LeverState] = field(default_factory=list)

    def states(self) -> list[LeverState]:
        return [lever.state() for lever in self.levers] + self.absent


SIBLINGS = (
    frozenset(("cpu", leaf) for leaf in ("governor", "min_frequency", "max_frequency")),
    frozenset(
        ("cpu", leaf) for leaf in ("power_limit", "power_limit_long_term", "power_limit_short_term")
    ),
    frozenset(("gpu", leaf) for leaf in ("power_limit", "sm_clock", "memory_clock")),
)
"""Family and leaf of levers that come from one driver: without it all of them are missing."""

VIRTUAL = "WATTLOOP_VIRTUAL_GPUS=1 gives a virtual GPU to try things on"
NO_LEVER = (
    "no lever on this machine: it would need an NVIDIA or AMD GPU with its driver, RAPL "
    "power limits ('sudo modprobe intel_rapl_msr') or cpufreq; 'wattloop devices' says what is "
    f"missing. {VIRTUAL}"
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
    absent = levers.absent if isinstance(levers, FoundLevers) else ()
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
