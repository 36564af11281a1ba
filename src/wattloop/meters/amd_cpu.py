"""Energy of AMD processors from the hwmon driver `amd_energy`.

Newer kernels count the same registers in the powercap tree and in perf; this meter is for those
that have neither, and for cross-checking those that do.
"""

import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Scope
from wattloop.core.results import Missing
from wattloop.hardware.host import Host, NumberFile, find_chips
from wattloop.meters import perf, rapl
from wattloop.meters.base import Context, Meter, Reading

DRIVER = "amd_energy"
JOULES_PER_UNIT = 1e-6
WRAP_J = 2**48 * JOULES_PER_UNIT
"""The driver multiplies its 64-bit count of 2^-16 J by 10^6 before it divides by 2^16: the file
returns to zero after 2^48 uJ, which is 16 days at 200 W."""
MAX_POWER_W = 1_000.0
"""Twice what any socket of this maker is built for."""
REGISTER_PERIOD_S = 0.001
CACHED_PERIOD_S = 2.0
"""Drivers that let every user read return values up to 1 to 2 s old on purpose."""
REMEDY = "run 'sudo chmod a+r {path}', see docs/meters/amd-cpu.md"


def detect(context: Context) -> Sequence["AmdCpu"]:
    """Find the sockets of `amd_energy` that neither powercap nor perf counts already."""
    sockets = _find_sockets(context.host)
    counted = _counted(context) if sockets else frozenset()
    left = [socket for socket in sockets if socket.name not in counted]
    if sockets and not left:
        raise MeterUnavailable(
            "amd-cpu",
            "powercap or perf already counts the same registers; amd_energy is kept for "
            "cross-checking",
            "compare the two with 'wattloop devices --verify'",
        )
    return _open(context.host, left)


def detect_second_source(context: Context) -> Sequence["AmdCpu"]:
    """Find the sockets of `amd_energy`, whether or not another meter counts them too."""
    return _open(context.host, _find_sockets(context.host))


class AmdCpu(Meter):
    """Reads `energyN_input` of each socket."""

    name: ClassVar[str] = "amd-cpu"
    shared: ClassVar[bool] = True

    def __init__(self, sockets: Sequence["_Socket"], refused: Sequence[Missing] = ()) -> None:
        self._files = [NumberFile(socket.path) for socket in sockets]
        self._domains = tuple(_domain(socket) for socket in sockets)
        self._refused = tuple(refused)

    def read(self) -> Sequence[Reading]:
        values = [file.read() for file in self._files]
        return [v if isinstance(v, Gap) else v * JOULES_PER_UNIT for v in values]

    def close(self) -> None:
        for file in self._files:
            file.close()


class _Socket(NamedTuple):
    number: int
    path: Path
    refusal: str

    @property
    def name(self) -> str:
        return f"cpu:{self.number}/package"


def _open(host: Host, sockets: Sequence[_Socket]) -> Sequence[AmdCpu]:
    if not sockets:
        raise MeterUnavailable(
            "amd-cpu",
            f"no hwmon chip '{DRIVER}' with a socket under {host.sysfs / 'class/hwmon'}",
            "AMD processors need it only where powercap and perf show nothing: the module "
            "amd_energy, in Linux 5.8 to 5.12 and at github.com/amd/amd_energy",
        )
    refused = [
        Missing(
            socket.name,
            socket.refusal,
            REMEDY.format(path=socket.path) if "permission" in socket.refusal else "",
        )
        for socket in sockets
        if socket.refusal
    ]
    readable = [socket for socket in sockets if not socket.refusal]
    if not readable:
        raise MeterUnavailable(
            "amd-cpu", refused[0].reason, refused[0].remedy, tuple(m.name for m in refused)
        )
    return [AmdCpu(readable, refused)]


def _counted(context: Context) -> frozenset[str]:
    """Return domains that finer sources of the same joules read."""
    names = rapl.readable_names(context.host)
    try:
        meters = perf.detect(context)
    except MeterUnavailable:
        return names
    for meter in meters:
        names |= {domain.name for domain in meter.domains}
        meter.close()
    return names


def _find_sockets(host: Host) -> list[_Socket]:
    sockets = []
    for chip in find_chips(host):
        if chip.name != DRIVER:
            continue
        for number, path in chip.channels("energy*_input"):
            match = re.fullmatch(r"Esocket(\d+)", chip.text(f"energy{number}_label"))
            if match:
                sockets.append(_Socket(int(match.group(1)), path, NumberFile(path).refusal()))
    return sorted(sockets, key=lambda socket: socket.number)


def _domain(socket: _Socket) -> Domain:
    return Domain(
        name=socket.name,
        kind=DomainKind.COUNTER,
        scope=Scope.CPU,
        source=f"hwmon {DRIVER} Esocket{socket.number}",
        resolution=15.3e-6,
        update_period_s=_update_period_s(socket.path),
        wrap_j=WRAP_J,
        read_cost_s=10e-6,
        max_power_w=MAX_POWER_W,
    )


def _update_period_s(path: Path) -> float:
    try:
        public = path.stat().st_mode & stat.S_IROTH
    except OSError:
        public = 0
    return CACHED_PERIOD_S if public else REGISTER_PERIOD_S
