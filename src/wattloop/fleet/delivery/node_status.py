"""Status of a node: power, limits, jobs."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.files import atomic_write_json
from wattloop.core.records import HIGHEST_NODE_W, highest_power_w

MOST_DOMAINS, MOST_JOBS, MOST_FAULTS = 256, 1_024, 32


LONGEST_TEXT, LONGEST_WORD = 200, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """Status of a node.

    Attributes:
        power_w: watts by domain, of domains that do not overlap: they add up to the node.
        limit_w: power limit in force by domain, where one is known.
        provenance: of the power: `measured`, `modelled`, `simulated`, ...
        jobs: identifiers of the jobs that run on it.
        faults: messages for its operator, a line each.
        read_wall_s: when the power was read, on the node's own clock; None when not known.
        version: of the agent.
    """

    power_w: Mapping[str, float] = field(default_factory=dict)
    limit_w: Mapping[str, float] = field(default_factory=dict)
    provenance: str = ""
    jobs: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    read_wall_s: float | None = None
    version: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, data: Any) -> "NodeStatus":
        """Parse the status that a node sent; the content is not trusted.

        Raises:
            ConfigError: it makes no sense; the message names the field.
        """
        if not isinstance(data, Mapping):
            raise ConfigError("a status is an object")
        moment = data.get("read_wall_s")
        power_w = _watts(data, "power_w")
        beyond = [name for name, value in power_w.items() if value > highest_power_w(name)]
        refused = [f"{name}: {power_w.pop(name):g} W cannot be; left out" for name in beyond]
        return cls(
            power_w=power_w,
            limit_w=_watts(data, "limit_w"),
            provenance=_word(data, "provenance"),
            jobs=_texts(data, "jobs", MOST_JOBS),
            faults=(*_texts(data, "faults", MOST_FAULTS), *refused)[:MOST_FAULTS],
            read_wall_s=None if moment is None else _number(moment, "read_wall_s"),
            version=_word(data, "version"),
        )


def write_status(path: Path, status: NodeStatus) -> None:
    """Write the status atomically for a sender in another process."""
    atomic_write_json(path, status.to_dict())


def status_from_file(path: Path) -> NodeStatus | None:
    """Return the status of `write_status`; None when it is missing or unreadable."""
    try:
        return NodeStatus.parse(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, ConfigError):
        return None


def _watts(data: Mapping[str, Any], name: str) -> dict[str, float]:
    given = data.get(name)
    if given is None:
        return {}
    if not isinstance(given, Mapping) or len(given) > MOST_DOMAINS:
        raise ConfigError(f"{name}: an object of at most {MOST_DOMAINS} domains with their watts")
    found = {}
    for key, value in given.items():
        power_w = _number(value, f"{name} of {_text(key)}")
        if not 0 <= power_w <= HIGHEST_NODE_W:
            raise ConfigError(f"{name} of {_text(key)}: {power_w:g} W cannot be")
        found[_text(key)] = power_w
    return found


def _number(value: Any, name: str) -> float:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number of more digits than a double has room for
        pass
    raise ConfigError(f"{name}: {_text(value)} is not a number")


def _texts(data: Mapping[str, Any], name: str, most: int) -> tuple[str, ...]:
    given = data.get(name)
    if given is None:
        return ()
    is_list = isinstance(given, list | tuple) and len(given) <= most
    if not is_list or not all(isinstance(one, str) for one in given):
        raise ConfigError(f"{name}: a list of at most {most} texts")
    return tuple(_text(one) for one in given)


def _word(data: Mapping[str, Any], name: str) -> str:
    given = data.get(name)
    if given is not None and not isinstance(given, str):
        raise ConfigError(f"{name}: a text")
    return _text(given or "")[:LONGEST_WORD]


def _text(value: Any) -> str:
    """Shorten a text and remove line breaks."""
    text = str(value)[:LONGEST_TEXT]
    if text.isascii() and text.isprintable():
        return text
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shown.encode("utf-8", "replace").decode()
