"""Domains, signals, gaps and provenance; plausible limits; records as plain data and back."""

import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from functools import cache
from typing import Any, NamedTuple, TypeVar, Union

R = TypeVar("R")


class Provenance(StrEnum):
    """Origin of a reported quantity, strongest first."""

    MEASURED = "measured"
    """Read from a sensor of this machine."""
    MODELLED = "modelled"
    """Computed by a validated model from facts of this machine (DIMMs, capacity in use)."""
    ESTIMATED = "estimated"
    """A last resort, such as utilisation x TDP; its stated error is large."""
    REPLAYED = "replayed"
    """Read back from a recorded file."""
    SIMULATED = "simulated"
    """Produced by the virtual GPU: no hardware was involved."""

    @classmethod
    def weakest(cls, parts: Iterable["Provenance"]) -> "Provenance":
        """Return the provenance of a sum: that of its weakest part."""
        order = list(cls)
        return max(parts, key=order.index)


# Domains and readings. The fields are the contract between meters, which produce readings, and
# windows, which turn them into energy (`core.results`). Nothing here reads hardware or files.
SLOW_SENSOR_S = 0.02
"""A sensor that changes less often than this gains nothing from a read at an edge; where it counts,
a gauge of the same device gives it its shape."""


def picked(record: object, names: str) -> dict[str, Any]:
    """Return the named attributes (`"name kind scope"`) as plain data; enums as their values."""
    values = {name: getattr(record, name) for name in names.split()}
    return {name: v.value if isinstance(v, Enum) else v for name, v in values.items()}


class DomainKind(StrEnum):
    """Meaning of a domain's reading."""

    COUNTER = "counter"
    """Joules since some moment in the past; may wrap or be reset."""
    GAUGE = "gauge"
    """Watts now (or averaged over the last `averaging_s`)."""


class Scope(StrEnum):
    """The part of a node that a domain covers."""

    CPU = "cpu"
    GPU = "gpu"
    DRAM = "dram"
    NODE = "node"
    OTHER = "other"


class Domain(NamedTuple):
    """A domain whose energy can be read, and the properties of its sensor.

    Attributes:
        name: unique within a node: `cpu:0/package`, `gpu:3`, `dram`, `node`.
        kind: counter (joules) or gauge (watts).
        scope: the part of the node it covers.
        source: where readings come from, for people: `powercap intel-rapl:0`.
        provenance: measured, modelled, estimated, replayed or simulated.
        inside: name of the domain that already contains this one's energy, if any.
        resolution: smallest step of a reading, in joules (counter) or watts (gauge).
        update_period_s: how often the sensor itself changes.
        wrap_j: a counter returns to zero after this many joules.
        known_error: systematic relative error stated by the maker or found for the model;
            half-width, as a fraction.
        known_error_w: systematic absolute error in watts; half-width.
        averaging_s: a gauge that reports the mean of this many past seconds.
        read_cost_s: how long one read takes; windows read at their edges only what is cheap.
        max_power_w: no plausible reading lies above this; tells a wrap from a reset.
        tdp_w: thermal design power, or the enforced limit where the device has one.
        tdp_note: what `tdp_w` is ("TDP", "enforced power limit 300 W of 700 W").
        device: the maker's name of the device.
        host_share: part of the host's processors that this machine may use; below 1 in a virtual
            machine that has some of the host's threads.
        identity: names this very device in every process and container of the machine (a UUID);
            empty where `name` does.
        is_split: a card that MIG divides: a run has the part of its instances.
    """

    name: str
    kind: DomainKind
    scope: Scope
    source: str
    provenance: Provenance = Provenance.MEASURED
    inside: str | None = None
    resolution: float = 0.0
    update_period_s: float = 0.001
    wrap_j: float | None = None
    known_error: float = 0.0
    known_error_w: float = 0.0
    averaging_s: float = 0.0
    read_cost_s: float = 5e-6
    max_power_w: float | None = None
    tdp_w: float | None = None
    tdp_note: str = ""
    device: str = ""
    host_share: float = 1.0
    identity: str = ""
    is_split: bool = False


class Signal(NamedTuple):
    """A quantity other than energy that a meter can read: `gpu:0/utilisation`, `gpu:0/sm_clock`."""

    name: str
    unit: str
    """`fraction`, `MHz`, `degC`, `B` or `W`."""


class Gap(NamedTuple):
    """A reading that could not be taken.

    `lost` means that the device is not expected back (fallen off the bus, permission withdrawn):
    its energy from now on is not extrapolated. It is still read, and its first good reading ends
    the loss.
    """

    reason: str
    lost: bool = False


# Plausibility: limits of sensors, and the rise of a counter.

HIGHEST_W = {Scope.GPU: 4_000.0, Scope.CPU: 3_000.0, Scope.DRAM: 1_000.0}
"""Above what any one card or module, package, or memory of a package draws. The largest on sale:
2,700 W for a GB200 module (NVIDIA), 500 W for a server processor."""
HIGHEST_NODE_W = 100_000.0
"""Limit of a node, or of a part of unknown kind."""
WRAP_SLACK_S = 0.01


def highest_power_w(scope: Scope | str) -> float:
    """Return the highest plausible power of a domain, by its scope or by its name (`gpu:3`,
    `cpu:0/core`).
    """
    kind = scope.partition(":")[0].partition("/")[0]
    return next((power_w for one, power_w in HIGHEST_W.items() if one == kind), HIGHEST_NODE_W)


def counter_rise_j(rise_j: float, step_s: float, wrap_j: float | None) -> float | None:
    """Return the joules between two readings of a counter that differ by `rise_j`; None after a
    reset.

    A counter that fell has wrapped where that explains the fall with a plausible power.
    """
    if rise_j >= 0:
        return rise_j
    if wrap_j is None or not 0 <= rise_j + wrap_j <= HIGHEST_NODE_W * (step_s + WRAP_SLACK_S):
        return None
    return rise_j + wrap_j


# Records (named tuples, dataclasses) as plain data and back, by their type hints.


def to_plain(record: Any) -> dict[str, Any]:
    """Return a record as plain data: records become objects, tuples lists, enums their values."""
    return {name: _as_plain(getattr(record, name)) for name in _fields_of(record.__class__) or ()}


def _as_plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if _fields_of(value.__class__) is not None:
        return to_plain(value)
    if isinstance(value, Mapping):
        return {key: _as_plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_plain(one) for one in value]
    return value


def from_plain(kind: Callable[..., R], data: Mapping[str, Any]) -> R:
    """Build a record from what `to_plain` made of it; fields of later versions are left out.

    Raises:
        KeyError, TypeError, ValueError: it is not such data; `shape_fault` names the field.
    """
    convert = _converter(kind)
    assert convert is not None  # of a record
    found: R = convert(data)
    return found


@cache
def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """Return the function that makes plain data a value of this hint; None where it is one."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        # of the unions in records only `X | None` has a part to convert
        some = next(filter(None, map(_converter, inner)), None)
        return some and (lambda data: None if data is None else some(data))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        own = _converter(inner[1])
        return own and (lambda data: {key: own(one) for key, one in dict(data).items()})
    if isinstance(origin, type) and issubclass(origin, Sequence):
        item, make = _converter(inner[0]), tuple if origin is tuple else list
        return make if item is None else lambda data: make(map(item, data))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    known = _fields_of(hint)
    if known is None:
        return None
    parts = {name: _converter(part) for name, (part, _) in known.items()}

    def build(data: Mapping[str, Any]) -> Any:
        own = {name: data[name] for name in parts if name in data}
        for name, convert in parts.items():
            if convert is not None and name in own:
                own[name] = convert(own[name])
        return hint(**own)

    return build


# Validation of JSON data against the type hints of a record.

LARGEST_INT = 2**63
"""Neither a database nor a float can hold every integer that JSON can."""


def shape_fault(data: Any, hint: Any, where: str = "") -> str:
    """Return the first fault of `data` as JSON of `hint`, such as `domains.0.name: not text`; empty
    if valid.

    Records (named tuples, dataclasses) are objects with their fields; fields that they do not know
    are ignored.
    """
    origin = typing.get_origin(hint)
    if hint is Any:
        return ""
    if origin in (Union, types.UnionType):
        faults = [shape_fault(data, each, where) for each in typing.get_args(hint)]
        return "" if "" in faults else faults[0]
    if origin is not None:
        return _container_fault(data, origin, typing.get_args(hint), where)
    if _fields_of(hint) is not None:
        return _record_fault(data, hint, where)
    is_sound, expected = _plain(data, hint)
    return "" if is_sound else f"{where or 'it'}: not {expected}"


def _plain(data: Any, hint: Any) -> tuple[bool, str]:
    if hint is None or hint is type(None):
        return data is None, "null"
    if isinstance(hint, type) and issubclass(hint, Enum):
        known = [one.value for one in hint]
        return isinstance(data, str) and data in known, f"one of {', '.join(map(str, known))}"
    is_number = isinstance(data, int | float) and not isinstance(data, bool)
    is_number = is_number and (isinstance(data, float) or abs(data) < LARGEST_INT)
    if hint is float:
        return is_number, "a number"
    if hint is int:
        return is_number and isinstance(data, int), "a whole number"
    names = {str: "text", bool: "true or false"}
    return isinstance(data, hint), names.get(hint, f"a {getattr(hint, '__name__', hint)}")


def _container_fault(data: Any, origin: Any, inner: tuple[Any, ...], where: str) -> str:
    if issubclass(origin, Mapping):
        if not isinstance(data, Mapping):
            return f"{where or 'it'}: not an object"
        rows = data.items()
    else:
        if not isinstance(data, Sequence) or isinstance(data, str):
            return f"{where or 'it'}: not a list"
        rows = enumerate(data)  # type: ignore[assignment] # pairs of a place and a value, too
    hint = next((each for each in inner[::-1] if each is not Ellipsis), Any)
    faults = (shape_fault(value, hint, _below(where, key)) for key, value in rows)
    return next(filter(None, faults), "")


def _record_fault(data: Any, record: Any, where: str) -> str:
    if not isinstance(data, Mapping):
        return f"{where or 'it'}: not an object"
    known = _fields_of(record)
    assert known is not None  # the caller has checked
    for name, (hint, is_needed) in known.items():
        if name in data:
            fault = shape_fault(data[name], hint, _below(where, name))
            if fault:
                return fault
        elif is_needed:
            return f"{_below(where, name)}: missing"
    return ""


def _below(where: str, key: object) -> str:
    return f"{where}.{str(key)[:40]}" if where else str(key)[:40]


@cache
def _fields_of(record: Any) -> dict[str, tuple[Any, bool]] | None:
    """Return field -> its hint, and whether it has no default; None for what is not a record."""
    from dataclasses import fields, is_dataclass  # slow to import, and not needed to measure

    if not isinstance(record, type):
        return None
    if is_dataclass(record):
        lacking = [f.name for f in fields(record) if f.default is f.default_factory]
    elif issubclass(record, tuple) and hasattr(record, "_fields"):
        defaults = getattr(record, "_field_defaults", {})
        lacking = [name for name in record._fields if name not in defaults]
    else:
        return None
    hints = typing.get_type_hints(record)
    return {name: (hint, name in lacking) for name, hint in hints.items()}
