"""CPU and DRAM energy from the kernel's powercap tree (Intel RAPL; AMD since Linux 5.8)."""

from collections.abc import Sequence
from typing import ClassVar

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap
from wattloop.core.results import Missing
from wattloop.hardware.host import Host, NumberFile
from wattloop.hardware.powercap import POWERCAP, Zone, find_zones, without_mirrors
from wattloop.meters.base import Context, Meter, Reading

JOULES_PER_UNIT = 1e-6
UPDATE_PERIOD_S = 0.001
"""Intel documents about 1 ms between updates of the energy status registers."""
BURST = 2.0
"""No package draws more than this many times its highest power limit, not even for 1 ms."""
READ_PERMISSION_REMEDY = (
    "since CVE-2020-8694 only root may read it: run 'sudo chmod a+r {path}' "
    "(a udev rule keeps it after a reboot, see docs/meters/rapl.md)"
)


def detect(context: Context) -> Sequence["Rapl"]:
    """Find the powercap zones that can be read."""
    zones = find_zones(context.host)
    if not zones:
        raise MeterUnavailable(
            "rapl",
            f"no energy zone under {context.host.sysfs / POWERCAP}",
            "load it with 'sudo modprobe intel_rapl_msr'; virtual machines and most ARM "
            "machines have none",
            parts=("cpu",),
        )
    readable = [zone for zone in zones if not zone.refusal]
    if not readable:
        raise MeterUnavailable(
            "rapl", zones[0].refusal, _remedy(zones[0]), parts=tuple(zone.name for zone in zones)
        )
    readable = without_mirrors(readable, context.clock.sleep)
    return [Rapl(readable, refused=[zone for zone in zones if zone.refusal])]


def readable_names(host: Host) -> frozenset[str]:
    """Return names of the domains that `detect` would offer; other meters then leave them out."""
    return frozenset(zone.name for zone in find_zones(host) if not zone.refusal)


class Rapl(Meter):
    """Meter of `energy_uj` files that are kept open."""

    name: ClassVar[str] = "rapl"
    shared: ClassVar[bool] = True

    def __init__(self, zones: Sequence[Zone], refused: Sequence[Zone] = ()) -> None:
        self._files = [NumberFile(zone.path) for zone in zones]
        self._domains = tuple(_domain(zone) for zone in zones)
        self._refused = tuple(Missing(zone.name, zone.refusal, _remedy(zone)) for zone in refused)

    def read(self) -> Sequence[Reading]:
        return [_joules(file.read()) for file in self._files]

    def sample(self) -> list[bytes | float | Gap]:
        return [file.sample() for file in self._files]

    def decoded(self, sampled: list[bytes | float | Gap]) -> Sequence[Reading]:
        files = self._files
        return [_joules(files[i].decoded(text)) for i, text in enumerate(sampled)]

    def close(self) -> None:
        for file in self._files:
            file.close()


def _joules(microjoules: float | Gap) -> Reading:
    return microjoules if isinstance(microjoules, Gap) else microjoules * JOULES_PER_UNIT


def _remedy(zone: Zone) -> str:
    denied = zone.refusal.endswith("permission denied")
    return READ_PERMISSION_REMEDY.format(path=zone.path) if denied else ""


def _domain(zone: Zone) -> Domain:
    tdp_w, tdp_note = _design_power(zone)
    return Domain(
        name=zone.name,
        kind=DomainKind.COUNTER,
        scope=zone.scope,
        source=" = ".join((f"powercap {zone.directory.name}", *zone.mirrors)),
        inside=zone.inside,
        # The register counts in units of 2^-14 J (61 uJ) or 15.3 uJ; the file shows microjoules.
        resolution=61e-6,
        update_period_s=UPDATE_PERIOD_S,
        wrap_j=zone.range_uj * JOULES_PER_UNIT if zone.range_uj else None,
        read_cost_s=2e-6,
        max_power_w=zone.highest_limit_w * BURST if zone.highest_limit_w else None,
        tdp_w=tdp_w,
        tdp_note=tdp_note,
    )


def _design_power(zone: Zone) -> tuple[float | None, str]:
    """Return the design power of a zone, or the lower limit that is enforced on it."""
    maximum_w, limit_w = zone.long_term_w
    if maximum_w is None:
        return None, ""
    if limit_w is not None and limit_w < maximum_w:
        return limit_w, f"enforced RAPL limit {limit_w:g} W of {maximum_w:g} W"
    return maximum_w, "RAPL maximum power (TDP)"
