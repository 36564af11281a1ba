"""Registry of meters: the known ones, and those that can be used on this machine.

Meters are listed here by hand, best source first. Third parties add theirs through the
entry-point group `wattloop.meters`: an object `detect(context) -> Sequence[Meter]`.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from wattloop.core.errors import ConfigError, MeterUnavailable
from wattloop.core.plugins import entry_points, loaded
from wattloop.core.results import Missing
from wattloop.meters.base import Context, Meter

Detect = Callable[[Context], Sequence[Meter]]
METERS: dict[str, str] = {
    "replay": "wattloop.meters.replay:detect",
    "rapl": "wattloop.meters.rapl:detect",
    "amd-cpu": "wattloop.meters.amd_cpu:detect",
    "perf": "wattloop.meters.perf:detect",
    "apple": "wattloop.meters.apple:detect",
    "emi": "wattloop.meters.windows_emi:detect",
    "nvidia": "wattloop.meters.nvidia:detect",
    "amd-gpu": "wattloop.meters.amd_gpu:detect",
    "file-gauge": "wattloop.meters.gauge_files:detect",
    "intel-gpu": "wattloop.meters.level_zero:detect",
    "yokogawa": "wattloop.meters.yokogawa:detect",
    "redfish": "wattloop.meters.redfish:detect",
    "ipmi": "wattloop.meters.ipmi:detect",
    "dram": "wattloop.meters.dram:detect",
    "memory": "wattloop.meters.dram:detect_memory_use",
    "estimate": "wattloop.meters.cpu_estimate:detect",
}
"""Name -> `module:function` that detects, in order of preference for the same domain."""
SYSTEMS = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}
ONLY_ON = {
    **dict.fromkeys(("rapl", "amd-cpu", "perf", "amd-gpu", "ipmi", "dram", "memory"), "linux"),
    "file-gauge": "linux",
    "estimate": "linux",
    "apple": "darwin",
    "emi": "win32",
}
"""Meters that read the interfaces of one system."""
ASKED_FOR_BY = {
    "replay": "replay_file",
    "yokogawa": "visa_resource",
    "redfish": "redfish_url",
    "ipmi": "ipmi",
    "virtual": "virtual_gpus",
}
"""Meters that exist only where a setting names their source."""
ENTRY_POINT_GROUP = "wattloop.meters"
FAULT_REMEDY = "this is a fault of the meter: report it to its author, with this line"


class Inventory:
    """Meters of this machine, and missing ones with reasons."""

    def __init__(
        self,
        meters: list[Meter] | None = None,
        refusals: list[MeterUnavailable] | None = None,
    ) -> None:
        self.meters = [] if meters is None else meters
        self.refusals = [] if refusals is None else refusals
        self.names: list[str] = []
        """For each meter, the name under which it was detected."""

    def missing(self) -> list[Missing]:
        """Parts of the node that exist but that no meter reads."""
        offered = {domain.name for meter in self.meters for domain in meter.domains}
        missing: dict[str, Missing] = {}
        for meter in self.meters:
            for part in meter.refused:
                if not _covered(part.name, offered):
                    missing.setdefault(part.name, part)
        for refusal in self.refusals:
            for part_name in refusal.parts:
                if not _covered(part_name, offered):
                    who = "" if refusal.meter == part_name else f"{refusal.meter}: "
                    part = Missing(part_name, f"{who}{refusal.reason}", refusal.remedy)
                    missing.setdefault(part_name, part)
        return list(missing.values())

    def close(self) -> None:
        for meter in self.meters:
            with suppress(Exception):  # a broken plug-in must not cost the run its end
                meter.close()


def detect(context: Context, *, explain: bool = True) -> Inventory:
    """Try every meter the settings allow; refusals are recorded with reasons.

    Args:
        context: machine, settings and clock.
        explain: whether unrequested meters are loaded too, only to list them. That takes
            milliseconds, which a person who lists devices does not mind and a program does.
    """
    inventory = Inventory()
    wanted = context.settings.meters
    finders = _finders(context)
    unknown = set(wanted) - set(finders)
    if unknown:
        raise ConfigError(
            f"unknown meter {', '.join(sorted(unknown))}; known are {', '.join(finders)}"
        )
    for name, finder in finders.items():
        if wanted and name not in wanted:
            continue
        system = ONLY_ON.get(name, sys.platform)
        if system != sys.platform and not (system == "linux" and context.host.elsewhere):
            if not explain and name not in wanted:
                continue
            here = SYSTEMS.get(sys.platform, sys.platform)
            reason = f"reads interfaces of {SYSTEMS[system]}; this machine runs {here}"
            inventory.refusals.append(MeterUnavailable(name, reason))
            continue
        setting = ASKED_FOR_BY.get(name)
        if not explain and setting and not wanted and not getattr(context.settings, setting):
            continue
        found = detect_one(name, finder, context, inventory.refusals)
        inventory.meters.extend(found)
        inventory.names.extend([name] * len(found))
        if found and name == "replay":
            break
    return inventory


def detect_one(
    name: str, finder: Detect, context: Context, refusals: list[MeterUnavailable]
) -> Sequence[Meter]:
    """Detect meters of one source; a refusal, or an error of a third party's code, is recorded."""
    try:
        return finder(context)
    except MeterUnavailable as refusal:
        refusals.append(refusal)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - a broken plug-in must not stop the measuring
        reason = f"failed to start: {type(error).__name__}: {error}"
        refusals.append(MeterUnavailable(name, reason, FAULT_REMEDY))
    return ()


def meter_names(context: Context | None = None) -> list[str]:
    """Return names of all known meters, including third parties'."""
    return list(_finders(context or Context()))


def _finders(context: Context) -> dict[str, Detect]:
    plugins = {name: _lazy(target) for name, target in entry_points(ENTRY_POINT_GROUP)}
    # The virtual GPU, when asked for, goes before real ones of the same name.
    ordered: dict[str, Detect] = {}
    if context.settings.virtual_gpus and "virtual" in plugins:
        ordered["virtual"] = plugins.pop("virtual")
    for name, target in METERS.items():
        ordered[name] = _lazy(target)
    for name, finder in plugins.items():
        ordered.setdefault(name, finder)
    return ordered


def _lazy(target: str) -> Detect:
    def finder(context: Context) -> Sequence[Meter]:
        found: Sequence[Meter] = loaded(target)(context)
        return found

    return finder


def _covered(part: str, offered: set[str]) -> bool:
    family = part.partition(":")[0]
    if part in offered or family in offered:  # `dram`, modelled, stands for a refused `dram:0`
        return True
    return any(name.startswith((f"{part}:", f"{part}/")) for name in offered)
