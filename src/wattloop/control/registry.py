"""Registry of levers: those of the machine, of third parties, and of the virtual GPU.

Third parties add theirs through the entry-point group `wattloop.levers`: an object `detect(context)
-> Iterable[Lever]`.
"""

from collections.abc import Collection, Iterable, Iterator

from wattloop.control.daemon.client import daemon_levers
from wattloop.control.inventory import FoundLevers, LeverInventory, lever_named, levers_named
from wattloop.control.lever import Lever, LeverState
from wattloop.core.config_file import load_settings
from wattloop.core.errors import ConfigError, MeterUnavailable
from wattloop.core.plugins import entry_points, loaded
from wattloop.core.settings import SENSORS, Settings
from wattloop.hardware.host import Host
from wattloop.meters.base import Context

__all__ = ["LeverInventory", "find_levers", "inventory", "lever_named", "levers_named"]

ENTRY_POINT_GROUP = "wattloop.levers"

LEVERS: dict[str, str] = {
    "rapl": "wattloop.control.rapl:detect",
    "cpu": "wattloop.control.cpufreq:detect",
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


def find_levers(
    where: Context | Host | None = None, settings: Settings | None = None
) -> list[Lever]:
    """Find every lever of the machine, then those of third parties and of the virtual GPU."""
    found = inventory(where, settings)
    return FoundLevers(found.levers, found.absent)


def inventory(
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
                found.absent.append(_refused(kind, refusal.reason, refusal.remedy))
                continue
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a broken plug-in must not stop the others
            reason = f"{kind} failed to start: {type(error).__name__}: {error}"
            found.absent.append(_refused(kind, reason, "report it to the author of the lever"))
            continue
        if not levers and kind in ABSENT:
            name, reason, remedy = ABSENT[kind]
            reason = reason.format(sysfs=context.host.sysfs)
            found.absent.append(
                LeverState(name=name, available=False, reason=reason, remedy=remedy)
            )
        for lever in levers:
            if lever.name not in names:  # the first one wins, as among meters
                names.add(lever.name)
                found.levers.append(lever)
    return daemon_levers(found, context.host) if remote and kinds is None else found


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


def _refused(kind: str, reason: str, remedy: str) -> LeverState:
    name = ABSENT[kind][0] if kind in ABSENT else kind
    return LeverState(name=name, available=False, reason=reason, remedy=remedy)
