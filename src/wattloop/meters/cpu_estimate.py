"""CPU power from utilisation, clock and TDP: the last resort, always marked as estimated."""

import os
from collections.abc import Sequence
from typing import ClassVar

from wattloop.core.clock import Clock
from wattloop.core.errors import MeterUnavailable
from wattloop.core.files import CLOSE_ON_EXEC
from wattloop.core.records import Domain, DomainKind, Gap, Provenance, Scope, Signal
from wattloop.hardware.cpus import (
    Package,
    clock_mhz,
    core_activity,
    estimate_error,
    package_power_w,
    read_packages,
)
from wattloop.hardware.host import Host
from wattloop.meters.base import Context, Meter, Reading

MIN_INTERVAL_S = 0.05
"""/proc/stat counts in ticks of 10 ms: over less than this, utilisation is mostly rounding."""
CLOCK_INTERVAL_S = 0.5
STAT_BYTES = 131_072
CLOCK_CPUS = 8
"""Reading one clock costs some 15 us in the kernel, so only the busiest CPUs are asked."""


def detect(context: Context) -> Sequence["CpuEstimate"]:
    """Return the estimate wherever /proc/stat and /proc/cpuinfo can be read."""
    host = context.host
    packages = read_packages(host)
    ticks = _read_ticks(host)
    if not packages or isinstance(ticks, Gap) or not ticks:
        unreadable = "cpuinfo" if not packages else "stat"
        raise MeterUnavailable(
            "estimate",
            f"{host.procfs / unreadable} cannot be read",
            "mount /proc, or name another root with WATTLOOP_PROCFS_ROOT",
            parts=("cpu:0/package",),
        )
    tdp_w = context.settings.cpu_tdp_w
    if tdp_w is not None:
        packages = tuple(_with_tdp(package, tdp_w) for package in packages)
    return [CpuEstimate(host, context.clock, packages)]


class CpuEstimate(Meter):
    """A counter of its own joules: each read adds estimated power times the time since the last."""

    name: ClassVar[str] = "estimate"
    shared_signals: ClassVar[bool] = True

    def __init__(self, host: Host, clock: Clock, packages: Sequence[Package]) -> None:
        self._host = host
        self._clock = clock
        self._packages = tuple(packages)
        self._clock_known = not packages[0].virtual and (
            packages[0].base_mhz is not None and clock_mhz(host, packages[0].cpus[0]) is not None
        )
        self._domains = tuple(_domain(p, clock_known=self._clock_known) for p in packages)
        self._joules = [0.0] * len(packages)
        self._shown_j = [0.0] * len(packages)
        self._power_w: list[float] | None = None
        self._utilisation: float | None = None
        self._mhz: list[float | None] = [None] * len(packages)
        self._mhz_at_s = float("-inf")
        self._ticks: dict[int, tuple[int, int]] = {}
        self._at_s = clock.now_s()
        self._fault: Gap | None = None
        self._closed = False
        self._start()

    @property
    def signals(self) -> tuple[Signal, ...]:
        utilisation = Signal("cpu/utilisation", "fraction")
        return (utilisation, Signal("cpu/clock", "MHz")) if self._clock_known else (utilisation,)

    def read(self) -> Sequence[Reading]:
        """Joules of each package since this meter was made."""
        self._evaluate()
        if self._fault is not None:
            return [self._fault] * len(self._packages)
        ahead_s = self._clock.now_s() - self._at_s
        for i, joules in enumerate(self._joules):
            power_w = self._power_w[i] if self._power_w else 0.0
            # Extrapolation may run ahead of the next evaluation; a counter never falls.
            self._shown_j[i] = max(self._shown_j[i], joules + power_w * ahead_s)
        return list(self._shown_j)

    def read_signals(self) -> Sequence[Reading]:
        self._evaluate()
        if self._fault is not None:
            return [self._fault] * len(self.signals)
        pending = Gap(f"needs {MIN_INTERVAL_S:g} s of /proc/stat first")
        values: list[Reading] = [pending if self._utilisation is None else self._utilisation]
        if self._clock_known:
            known = [mhz for mhz in self._mhz if mhz is not None]
            values.append(sum(known) / len(known) if known else pending)
        return values

    def close(self) -> None:
        """Nothing is held open; later reads are gaps."""
        self._closed = True
        self._fault = Gap("the meter is closed")

    def _start(self) -> None:
        ticks = _read_ticks(self._host)
        self._at_s = self._clock.now_s()
        if isinstance(ticks, Gap):
            self._fault = ticks
            return
        self._ticks = ticks
        # Until the first interval is over nothing is known but the long-term mean since boot.
        busy = {cpu: (b / t if t else 0.0) for cpu, (b, t) in ticks.items()}
        self._power_w = [self._package_w(i, busy) for i in range(len(self._packages))]

    def _evaluate(self) -> None:
        """Add the energy since the last evaluation, if enough time has passed."""
        now_s = self._clock.now_s()
        elapsed_s = now_s - self._at_s
        if self._closed or elapsed_s < MIN_INTERVAL_S:
            return
        ticks = _read_ticks(self._host)
        if isinstance(ticks, Gap):
            # The joules of this time are added by the next good read.
            self._fault = ticks
            return
        self._fault = None
        busy = {cpu: _busy_share(self._ticks.get(cpu), now) for cpu, now in ticks.items()}
        if not any(now != self._ticks.get(cpu) for cpu, now in ticks.items()):
            return  # no tick has passed (virtual machines may pause); keep the last power
        if now_s - self._mhz_at_s >= CLOCK_INTERVAL_S:
            self._mhz_at_s = now_s
            self._mhz = [self._busy_clock_mhz(package, busy) for package in self._packages]
        self._power_w = [self._package_w(i, busy) for i in range(len(self._packages))]
        for i, power_w in enumerate(self._power_w):
            self._joules[i] += power_w * elapsed_s
        self._utilisation = sum(busy.values()) / len(busy)
        self._ticks = ticks
        self._at_s = now_s

    def _package_w(self, index: int, busy: dict[int, float]) -> float:
        package = self._packages[index]
        activity = core_activity(
            [[busy.get(cpu, 0.0) for cpu in core] for core in package.cores],
        )
        mhz = self._mhz[index]
        ratio = mhz / package.base_mhz if mhz and package.base_mhz else None
        return package.share * package_power_w(package.processor, activity, ratio)

    def _busy_clock_mhz(self, package: Package, busy: dict[int, float]) -> float | None:
        """Mean clock of the busiest CPUs, weighted by how busy they are."""
        if not self._clock_known:
            return None
        busiest = sorted(package.cpus, key=lambda cpu: -busy.get(cpu, 0.0))[:CLOCK_CPUS]
        weighted = total = 0.0
        for cpu in busiest:
            mhz = clock_mhz(self._host, cpu)
            if mhz is not None:
                weight = busy.get(cpu, 0.0) + 1e-3
                weighted += weight * mhz
                total += weight
        return weighted / total if total else None


def _read_ticks(host: Host) -> dict[int, tuple[int, int]] | Gap:
    """Busy and total ticks of each logical CPU since boot."""
    path = f"{host.procfs}/stat"
    try:
        fd = os.open(path, os.O_RDONLY | CLOSE_ON_EXEC)
        try:
            # The CPUs come first; the long table of interrupts behind them is not wanted.
            text = os.read(fd, STAT_BYTES)
        finally:
            os.close(fd)
    except OSError as error:
        return Gap(f"{path}: {error.strerror}")
    ticks = {}
    try:
        for line in text.split(b"\nintr", 1)[0].splitlines():
            label, *numbers = line.split()
            if label.startswith(b"cpu") and label[3:].isdigit():
                # user nice system idle iowait irq softirq steal; guests are within user.
                values = [int(n) for n in numbers[:8]]
                total = sum(values)
                stolen = values[7] if len(values) > 7 else 0
                ticks[int(label[3:])] = (total - values[3] - values[4] - stolen, total)
    except (ValueError, IndexError):
        return Gap(f"{path} is not in the kernel's form")
    return ticks


def _busy_share(before: tuple[int, int] | None, now: tuple[int, int]) -> float:
    if before is None or now[1] <= before[1]:
        return 0.0
    return min(1.0, max(0.0, (now[0] - before[0]) / (now[1] - before[1])))


def _with_tdp(package: Package, tdp_w: float) -> Package:
    processor = package.processor._replace(
        tdp_w=tdp_w,
        tdp_error=0.0,
        note=f"TDP {tdp_w:g} W from setting cpu_tdp_w",
    )
    return package._replace(processor=processor)


def _domain(package: Package, *, clock_known: bool) -> Domain:
    processor = package.processor
    relative, of_tdp = estimate_error(processor, clock_known=clock_known)
    tdp_w = processor.tdp_w * package.share
    note = processor.note
    if package.share < 1:
        note += f"; {len(package.cpus)} of the host's {processor.threads} threads are ours"
    return Domain(
        name=f"cpu:{package.number}/package",
        kind=DomainKind.COUNTER,
        scope=Scope.CPU,
        source="utilisation x clock x TDP" if clock_known else "utilisation x TDP",
        provenance=Provenance.ESTIMATED,
        resolution=1e-6,
        update_period_s=MIN_INTERVAL_S,
        known_error=relative,
        known_error_w=of_tdp * tdp_w,
        read_cost_s=1e-4,
        max_power_w=2 * tdp_w,
        tdp_w=tdp_w,
        tdp_note=note,
        device=processor.name,
        host_share=package.share,
    )
