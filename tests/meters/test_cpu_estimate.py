from pathlib import Path

import pytest

from wattloop.core.clock import VirtualClock
from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Gap, Provenance
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.meters.base import Context
from wattloop.meters.cpu_estimate import detect
from wattloop.testing.meter_contract import check_meter


class Machine:
    """Two idle cores of a known part; `run` advances time at a given utilisation."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = VirtualClock(start_s=100.0)
        self.ticks = [[1_000, 9_000], [1_000, 9_000]]
        blocks = [
            "\n".join(
                (
                    f"processor : {n}",
                    "model name : Intel(R) Core(TM) i7-7600U CPU @ 2.80GHz",
                    "physical id : 0",
                    f"core id : {n}",
                    "flags : fpu",
                )
            )
            for n in range(2)
        ]
        (root / "cpuinfo").write_text("\n\n".join(blocks) + "\n")
        self.write()

    def write(self) -> None:
        lines = [
            f"cpu{n} {busy} 0 0 {idle} 0 0 0 0 0 0" for n, (busy, idle) in enumerate(self.ticks)
        ]
        (self.root / "stat").write_text("\n".join(["cpu 0 0 0 0", *lines, "intr 5 5"]) + "\n")

    def run(self, duration_s: float, utilisation: float) -> None:
        for cpu in self.ticks:
            busy = round(100 * duration_s * utilisation)
            cpu[0] += busy
            cpu[1] += round(100 * duration_s) - busy
        self.clock.advance(duration_s)
        self.write()

    def set_mhz(self, mhz: int) -> None:
        for n in range(2):
            folder = self.root / f"devices/system/cpu/cpu{n}/cpufreq"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "scaling_cur_freq").write_text(f"{mhz * 1000}\n")

    def context(self, **settings: object) -> Context:
        return Context(Host(sysfs=self.root, procfs=self.root), Settings(**settings), self.clock)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_busy_second_costs_more_than_an_idle_one_and_is_marked_estimated(machine) -> None:
    """Promise: energy follows utilisation, and is marked as an estimate, not a measurement."""
    (meter,) = detect(machine.context())
    assert meter.domains[0].provenance is Provenance.ESTIMATED
    start = meter.read()[0]
    machine.run(1.0, 0.0)
    idle_j = meter.read()[0] - start
    machine.run(1.0, 1.0)
    busy_j = meter.read()[0] - start - idle_j
    assert 0 < idle_j < 0.3 * 15
    assert 0.7 * 15 < busy_j <= 15
    assert meter.read_signals()[0] == 1.0


def test_the_counter_never_falls_when_extrapolation_ran_ahead(machine) -> None:
    """Promise: a drop in load after an extrapolated read does not look like a counter reset."""
    (meter,) = detect(machine.context())
    machine.run(1.0, 1.0)
    values = [meter.read()[0]]
    for _ in range(20):
        machine.run(0.04, 0.0)
        values.append(meter.read()[0])
    assert values == sorted(values)


def test_a_lower_clock_costs_less(machine) -> None:
    """Promise: a governor that halves the clock lowers the estimate."""

    def busy_second_j() -> float:
        (meter,) = detect(machine.context())
        machine.run(1.0, 0.5)
        before = meter.read()[0]
        machine.run(1.0, 0.5)
        return meter.read()[0] - before

    machine.set_mhz(2_800)
    fast_j = busy_second_j()
    machine.set_mhz(1_400)
    assert busy_second_j() < 0.7 * fast_j


def test_the_users_tdp_takes_precedence(machine) -> None:
    """Promise: cpu_tdp_w overrides the table and the note says so."""
    (meter,) = detect(machine.context(cpu_tdp_w=40.0))
    assert meter.domains[0].tdp_w == 40.0
    assert "cpu_tdp_w" in meter.domains[0].tdp_note


def test_an_unreadable_stat_is_a_gap_and_its_time_is_counted_afterwards(machine) -> None:
    """Promise: a passing fault is neither zero nor a loss of energy."""
    (meter,) = detect(machine.context())
    machine.run(1.0, 1.0)
    before = meter.read()[0]
    (machine.root / "stat").unlink()
    machine.clock.advance(1.0)
    assert isinstance(meter.read()[0], Gap)
    machine.run(1.0, 1.0)
    assert meter.read()[0] - before > 1.9 * 0.7 * 15


def test_each_socket_is_a_package_with_its_own_load(tmp_path) -> None:
    """Promise: two sockets are two domains, TDPs add, and the idle one is not charged for load."""
    block = (
        "processor : {n}\nmodel name : Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz\n"
        "physical id : {socket}\ncore id : {core}\nflags : fpu\n\n"
    )
    cpus = [(n, n // 2, n % 2) for n in range(4)]
    (tmp_path / "cpuinfo").write_text(
        "".join(block.format(n=n, socket=socket, core=core) for n, socket, core in cpus)
    )

    def write_stat(busy: int) -> None:
        lines = [
            f"cpu{n} {busy if socket == 0 else 0} 0 0 {1_000 if socket else 1_000 - busy} 0 0 0 0"
            for n, socket, _ in cpus
        ]
        (tmp_path / "stat").write_text("\n".join(lines) + "\nintr 1\n")

    write_stat(0)
    clock = VirtualClock(start_s=100.0)
    (meter,) = detect(Context(Host(sysfs=tmp_path, procfs=tmp_path), Settings(), clock))
    assert [d.name for d in meter.domains] == ["cpu:0/package", "cpu:1/package"]
    assert sum(d.tdp_w for d in meter.domains) == 240
    (tmp_path / "stat").write_text(
        "cpu0 1000 0 0 1000 0 0 0 0\ncpu1 1000 0 0 1000 0 0 0 0\n"
        "cpu2 0 0 0 2000 0 0 0 0\ncpu3 0 0 0 2000 0 0 0 0\nintr 1\n"
    )
    clock.advance(10.0)
    busy_j, idle_j = meter.read()
    assert busy_j > 0.5 * 120 * 10
    assert idle_j < 0.15 * 120 * 10


def test_contract() -> None:
    """Promise: on this machine's own /proc it keeps the contract of every meter."""
    check_meter(lambda: detect(Context())[0], pause_s=0.02)


def test_without_proc_it_is_unavailable_with_a_remedy(tmp_path) -> None:
    """Promise: without /proc there are no invented numbers."""
    with pytest.raises(MeterUnavailable, match="WATTLOOP_PROCFS_ROOT"):
        detect(Context(Host(procfs=tmp_path, sysfs=tmp_path)))
