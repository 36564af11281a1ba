"""Domains, signals, gaps and provenance as plain data."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


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
