import csv
import re
from pathlib import Path

import pytest

from wattloop.hardware import cpus
from wattloop.hardware.cpus import (
    Processor,
    core_activity,
    estimate_error,
    even_load,
    guess_processor,
    package_power_w,
    processor_named,
    read_packages,
)
from wattloop.hardware.host import Host


@pytest.mark.parametrize(
    ("name", "tdp_w"),
    [
        ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", 120),
        ("Intel(R) Xeon(R) CPU E5-2670 0 @ 2.60GHz", 115),
        ("Intel(R) Xeon(R) CPU E3-1240 V2 @ 3.40GHz", 69),
        ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", 150),
        ("Intel(R) Xeon(R) Platinum 8480+", 350),
        ("AMD EPYC 7742 64-Core Processor", 225),
        ("AMD Ryzen Threadripper 1950X 16-Core Processor", 180),
        ("AMD Ryzen 7 5700G with Radeon Graphics", 65),
        ("AMD Ryzen 7 7840U w/ Radeon 780M Graphics", 28),
        ("11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz", 28),
        ("Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz", 95),
        ("AMD Ryzen 7 PRO 4750U with Radeon Graphics", 15),
    ],
)
def test_names_as_the_kernel_prints_them_are_found(name: str, tdp_w: float) -> None:
    """Promise: marks, clocks and graphics in a name do not hide its TDP."""
    processor = processor_named(name)
    assert processor is not None
    assert processor.tdp_w == tdp_w


def test_an_unknown_name_is_a_guess_with_a_wide_error() -> None:
    """Promise: a guessed TDP is marked, so that it cannot pass for a published one."""
    assert processor_named("Intel(R) Xeon(R) Processor @ 2.80GHz") is None
    guess = guess_processor("Mystery CPU", cores=8, threads=16, virtual=False)
    assert guess.tdp_error >= 0.4
    assert "guessed" in guess.note


def test_a_virtual_machine_gets_its_share_of_the_likely_host(tmp_path) -> None:
    """Promise: a 2-vCPU machine is not charged a whole socket, and the note says so."""
    block = (
        "processor : {n}\nvendor_id : GenuineIntel\ncpu family : 6\nmodel : 106\n"
        "model name : Intel(R) Xeon(R) Processor @ 2.80GHz\nphysical id : 0\ncore id : {n}\n"
        "flags : fpu hypervisor\n\n"
    )
    (tmp_path / "cpuinfo").write_text(block.format(n=0) + block.format(n=1))
    (package,) = read_packages(Host(procfs=tmp_path, sysfs=tmp_path))
    assert package.virtual
    assert package.share == 2 / 64
    assert "likely host" in package.processor.note


def test_two_sockets_are_two_packages_with_their_threads_grouped_by_core(tmp_path) -> None:
    """Promise: sockets are distinct physical ids, siblings share a core."""
    lines = [
        f"processor : {n}\nmodel name : AMD EPYC 7742 64-Core Processor\n"
        f"physical id : {n // 4}\ncore id : {n % 2}\nflags : fpu\n"
        for n in range(8)
    ]
    (tmp_path / "cpuinfo").write_text("\n".join(lines))
    packages = read_packages(Host(procfs=tmp_path, sysfs=tmp_path))
    assert [p.number for p in packages] == [0, 1]
    assert packages[1].cores == ((4, 6), (5, 7))
    assert packages[0].share == 1


@pytest.mark.parametrize(
    ("name", "kind", "limit"),
    [
        ("Ryzen 9 5950X", "client", 1.35),
        ("Core i7-8700K", "client", 1.25),
        ("Xeon Gold 6148", "server", 1.2),
    ],
)
def test_power_rises_with_activity_and_clock_up_to_the_makers_limit(name, kind, limit) -> None:
    """Promise: the estimate is monotone and never above the package limit."""
    part = Processor(name=name, cores=16, threads=32, tdp_w=180, base_mhz=3_400, kind=kind)
    powers = [package_power_w(part, a / 10, 1.0) for a in range(11)]
    assert powers == sorted(powers)
    assert 0 < powers[0] < 0.35 * 180
    assert 0.98 * limit * 180 < package_power_w(part, 1.0, 3.0) <= limit * 180
    assert package_power_w(part, 0.4, 0.5) < package_power_w(part, 0.4, 1.0)


def test_a_server_of_amd_stays_below_its_tdp_at_boosted_clocks() -> None:
    """Promise: its published curves are of boosted clocks, which are not counted a second time."""
    part = Processor(
        name="EPYC 7742", cores=64, threads=128, tdp_w=225, base_mhz=2_250, kind="server"
    )
    assert package_power_w(part, 1.0, 1.5) == package_power_w(part, 1.0, 1.0) < 0.8 * 225
    assert package_power_w(part, 1.0, 0.5) < 0.7 * package_power_w(part, 1.0, 1.0)


@pytest.mark.parametrize("smt", [False, True])
def test_even_load_is_the_inverse_of_activity(smt) -> None:
    """Promise: an evenly spread load is read off the published curve at that load."""
    for load in (0.0, 0.1, 0.37, 0.5, 0.9, 1.0):
        activity = core_activity([[load, load]] if smt else [[load]])
        assert even_load(activity, smt=smt) == pytest.approx(load)


def test_sockets_of_arm_are_distinguished_by_sysfs(tmp_path) -> None:
    """Promise: two sockets are two packages, also where /proc/cpuinfo does not number them."""
    blocks = [f"processor : {n}\nCPU implementer : 0x41\nCPU part : 0xd0c\n" for n in range(4)]
    (tmp_path / "cpuinfo").write_text("\n".join(blocks))
    for n in range(4):
        folder = tmp_path / f"devices/system/cpu/cpu{n}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{n // 2}\n")
    packages = read_packages(Host(sysfs=tmp_path, procfs=tmp_path))
    assert [package.cpus for package in packages] == [(0, 1), (2, 3)]
    (tmp_path / "devices/system/cpu/cpu3/topology/physical_package_id").write_text("-1\n")
    assert read_packages(Host(sysfs=tmp_path, procfs=tmp_path))[0].cpus == (0, 1, 3)


def test_the_first_busy_core_costs_more_than_the_next() -> None:
    """Promise: the power of parts that wake with the first core (ring, mesh, fabric) is counted
    once.
    """
    part = Processor(name="Core", cores=4, threads=4, tdp_w=80, base_mhz=3_400, kind="client")
    watts = [package_power_w(part, busy / 4, 1.0) for busy in range(3)]
    assert watts[1] - watts[0] > 1.3 * (watts[2] - watts[1])


def test_a_guessed_tdp_widens_the_stated_error_and_an_unread_clock_too() -> None:
    """Promise: less knowledge means a wider error, and independent errors add in squares."""
    known = Processor(name="x", cores=4, threads=8, tdp_w=80, base_mhz=3_000, kind="client")
    relative, of_tdp = estimate_error(known, clock_known=True)
    guessed, same = estimate_error(known._replace(tdp_error=0.5), clock_known=True)
    assert (guessed**2, same) == (pytest.approx(relative**2 + 0.25), of_tdp)
    assert estimate_error(known, clock_known=False)[0] > relative


def test_a_second_thread_on_a_busy_core_adds_less_than_a_first_on_an_idle_one() -> None:
    """Promise: hyper-threads are not counted as cores."""
    one = core_activity([[1, 0], [0, 0]])
    assert core_activity([[1, 1], [0, 0]]) - one < core_activity([[1, 0], [1, 0]]) - one
    assert core_activity([[1, 1], [1, 1]]) == pytest.approx(1.0)
    assert core_activity([[0.5], [0.5]]) == pytest.approx(0.5)


def test_the_stated_error_of_a_guess_covers_nine_in_ten_known_parts() -> None:
    """Guessed from their core count alone, nine in ten server and desktop parts lie within it."""
    table = Path(cpus.__file__).with_name("cpu_tdp.csv")
    with table.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    for kind, name in (("server", "Xeon"), ("client", "something")):
        within = []
        for row in rows:
            # Laptop parts are identified by the last letters of their names, not guessed.
            laptop = re.search(r"\d[A-Z]?(U|P|H|HQ|HS|HX|Y|G\d)$", row["model"])
            if row["kind"] != kind or laptop:
                continue
            guess = cpus.guess_processor(
                name, cores=int(row["cores"]), threads=int(row["threads"]), virtual=False
            )
            within.append(abs(float(row["tdp_w"]) - guess.tdp_w) <= guess.tdp_error * guess.tdp_w)
        assert sum(within) / len(within) >= 0.9
