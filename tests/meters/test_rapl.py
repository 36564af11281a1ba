"""Promises of RAPL: every zone is found once and read right, and unreadable ones are named."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.support.power_curves import SquareWave
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import Layout, PowercapTree, TreeZone, Writing

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, Gap, Scope
from wattloop.hardware.host import Host
from wattloop.meters import rapl
from wattloop.meters.base import Context


def open_meter(root: Path) -> rapl.Rapl:
    (meter,) = rapl.detect(Context(host=Host(sysfs=root)))
    return meter


def by_name(meter: rapl.Rapl) -> dict[str, Domain]:
    return {domain.name: domain for domain in meter.domains}


def readings(meter: rapl.Rapl) -> dict[str, object]:
    return {d.name: value for d, value in zip(meter.domains, meter.read(), strict=True)}


@pytest.mark.parametrize("layout", list(Layout))
def test_finds_each_zone_once_in_every_layout(tmp_path: Path, layout: Layout) -> None:
    """Two sockets with their parts and psys, each counted once, however the tree is laid out."""
    tree = PowercapTree(tmp_path, layout)
    for socket in (0, 1):
        package = tree.add_package(socket, energy_uj=(socket + 1) * 1_000_000)
        tree.add_child(package, "core", energy_uj=10)
        tree.add_child(package, "uncore", energy_uj=20)
        tree.add_child(package, "dram", energy_uj=(socket + 1) * 500_000)
    tree.add_zone("psys", energy_uj=9_000_000)
    meter = open_meter(tmp_path)
    domains = by_name(meter)
    assert sorted(domains) == [
        "cpu:0/core", "cpu:0/package", "cpu:0/uncore",
        "cpu:1/core", "cpu:1/package", "cpu:1/uncore",
        "dram:0", "dram:1", "psys",
    ]  # fmt: skip
    assert len(meter.domains) == len(domains)
    values = readings(meter)
    assert values["cpu:1/package"] == pytest.approx(2.0)
    assert values["dram:1"] == pytest.approx(1.0)
    assert values["psys"] == pytest.approx(9.0)
    assert domains["cpu:1/core"].inside == "cpu:1/package"
    assert domains["dram:1"].inside is None
    assert domains["dram:1"].scope is Scope.DRAM
    assert domains["psys"].scope is Scope.NODE
    assert meter.refused == ()


def test_dies_of_one_package_stay_apart(tmp_path: Path) -> None:
    """Two dies of a package are two domains, each with its own parts."""
    tree = PowercapTree(tmp_path)
    for die in (0, 1):
        package = tree.add_package(0, die=die, energy_uj=(die + 1) * 1_000_000)
        tree.add_child(package, "dram")
        tree.add_child(package, "core")
    domains = by_name(open_meter(tmp_path))
    assert {"cpu:0/die:0/package", "cpu:0/die:1/package"} <= set(domains)
    assert {"dram:0/die:0", "dram:0/die:1"} <= set(domains)
    assert domains["cpu:0/die:1/core"].inside == "cpu:0/die:1/package"


def test_dies_that_mirror_one_counter_are_read_once(tmp_path: Path) -> None:
    """Two dies that show the socket's one counter are one domain; their parts stay inside it."""
    tree = PowercapTree(tmp_path)
    first, second = (tree.add_package(0, die=die, energy_uj=5_000_000) for die in (0, 1))
    tree.add_child(second, "core", energy_uj=7)
    other_socket = tree.add_package(1, die=0, energy_uj=5_000_000)
    _mirror(second, first)
    with Driver({first: SquareWave(50, 90, 0.5), other_socket: SquareWave(20, 30, 0.5)}):
        domains = by_name(open_meter(tmp_path))
    assert set(domains) == {"cpu:0/die:0/package", "cpu:0/die:1/core", "cpu:1/die:0/package"}
    assert domains["cpu:0/die:0/package"].source == "powercap intel-rapl:0 = intel-rapl:1"
    assert domains["cpu:0/die:1/core"].inside == "cpu:0/die:0/package"


@pytest.mark.parametrize("energy_uj", [0, 4_000_000])
def test_equal_counters_that_do_not_move_are_not_mirrors(tmp_path: Path, energy_uj: int) -> None:
    """Equal values prove nothing: two zeros after a boot, or two numbers that differ later."""
    tree = PowercapTree(tmp_path)
    first, second = (tree.add_package(0, die=die, energy_uj=energy_uj) for die in (0, 1))
    assert len(by_name(open_meter(tmp_path))) == 2
    with Driver({first: SquareWave(50, 90, 0.5), second: SquareWave(20, 30, 0.5)}):
        assert len(by_name(open_meter(tmp_path))) == 2


def _mirror(zone: TreeZone, original: TreeZone) -> None:
    """Let a zone show another zone's counter."""
    zone.energy_file.unlink()
    zone.energy_file.symlink_to(original.energy_file)


def test_package_number_comes_from_its_label(tmp_path: Path) -> None:
    """Zone numbers need not be socket numbers: package-1 may be intel-rapl:0."""
    tree = PowercapTree(tmp_path)
    tree.add_child(tree.add_package(1, energy_uj=1_000_000), "core")
    tree.add_package(0, energy_uj=5_000_000)
    values = readings(open_meter(tmp_path))
    assert values["cpu:1/package"] == pytest.approx(1.0)
    assert values["cpu:0/package"] == pytest.approx(5.0)
    assert "cpu:1/core" in values


def test_mmio_duplicate_is_not_counted_twice(tmp_path: Path) -> None:
    """intel-rapl and intel-rapl-mmio count the same joules; the register's own zone wins."""
    tree = PowercapTree(tmp_path)
    tree.add_package(0, energy_uj=7_000_000, control="intel-rapl-mmio")
    tree.add_package(0, energy_uj=3_000_000)
    meter = open_meter(tmp_path)
    assert readings(meter) == {"cpu:0/package": pytest.approx(3.0)}
    assert meter.domains[0].source == "powercap intel-rapl:0"


def test_mmio_replaces_an_unreadable_zone(tmp_path: Path) -> None:
    """The second source of the same joules is used where the first is unreadable."""
    tree = PowercapTree(tmp_path)
    _spoil(tree.add_package(0))
    tree.add_package(0, energy_uj=7_000_000, control="intel-rapl-mmio")
    meter = open_meter(tmp_path)
    assert readings(meter) == {"cpu:0/package": pytest.approx(7.0)}
    assert meter.refused == ()


def test_amd_offers_package_and_core_through_the_same_tree(tmp_path: Path) -> None:
    """AMD processors have package-0 with core, no constraints, and hence no TDP."""
    tree = PowercapTree(tmp_path)
    tree.add_child(tree.add_package(0, range_uj=65_532_610_987), "core")
    domains = by_name(open_meter(tmp_path))
    assert sorted(domains) == ["cpu:0/core", "cpu:0/package"]
    assert domains["cpu:0/package"].tdp_w is None
    assert domains["cpu:0/package"].wrap_j == pytest.approx(65_532.610987)


def test_zones_of_other_control_types_are_ignored(tmp_path: Path) -> None:
    """A dtpm zone limits power and counts no energy: it is neither read nor reported missing."""
    PowercapTree(tmp_path).add_package(0)
    other = tmp_path / "class" / "powercap" / "dtpm:0"
    other.mkdir()
    (other / "name").write_text("cpu\n")
    (other / "power_uw").write_text("1000\n")
    meter = open_meter(tmp_path)
    assert [d.name for d in meter.domains] == ["cpu:0/package"]
    assert meter.refused == ()


def test_tdp_is_the_maximum_power_of_the_long_term_constraint(tmp_path: Path) -> None:
    """TDP and plausible power come from the constraints; the burst limit is not the TDP."""
    tree = PowercapTree(tmp_path)
    package = tree.add_package(0, max_power_w=135, limit_w=135)
    tree.add_constraint(package, 1, "short_term", 270, 162)
    (domain,) = open_meter(tmp_path).domains
    assert domain.tdp_w == pytest.approx(135)
    assert domain.tdp_note == "RAPL maximum power (TDP)"
    assert domain.max_power_w is not None and domain.max_power_w >= 270


def test_enforced_limit_below_the_maximum_is_the_tdp(tmp_path: Path) -> None:
    """Under a power cap efficiency is judged against the cap, and the note says so."""
    PowercapTree(tmp_path).add_package(0, max_power_w=135, limit_w=100)
    (domain,) = open_meter(tmp_path).domains
    assert domain.tdp_w == pytest.approx(100)
    assert domain.tdp_note == "enforced RAPL limit 100 W of 135 W"


def test_limit_that_is_not_enabled_is_not_enforced(tmp_path: Path) -> None:
    """A limit that is written but switched off caps nothing."""
    PowercapTree(tmp_path).add_package(0, max_power_w=135, limit_w=100, enabled=False)
    assert open_meter(tmp_path).domains[0].tdp_w == pytest.approx(135)


@pytest.mark.parametrize("maximum_w", [0, None])
def test_unknown_maximum_power_gives_no_tdp(tmp_path: Path, maximum_w: float | None) -> None:
    """Boards write 0 or 4095 W for "unknown", which gives no TDP."""
    PowercapTree(tmp_path).add_package(0, max_power_w=maximum_w, limit_w=4095)
    assert open_meter(tmp_path).domains[0].tdp_w is None


@pytest.mark.parametrize("fault", ["directory", "removed", "no name"])
def test_half_unreadable_tree_names_what_it_refuses(tmp_path: Path, fault: str) -> None:
    """Readable zones are read, and each of the others is reported."""
    tree = PowercapTree(tmp_path)
    package = tree.add_package(0, energy_uj=1_000_000)
    dram = tree.add_child(package, "dram")
    if fault == "no name":
        (dram.directory / "name").unlink()
    else:
        _spoil(dram, with_directory=fault == "directory")
    meter = open_meter(tmp_path)
    assert readings(meter) == {"cpu:0/package": pytest.approx(1.0)}
    (missing,) = meter.refused
    assert missing.name == ("intel-rapl:0:0" if fault == "no name" else "dram:0")
    assert str(dram.directory.name) in missing.reason


def test_permission_denied_gives_the_remedy(tmp_path: Path) -> None:
    """As an ordinary user with half of the files closed: one is read, one refused with its
    chmod.
    """
    tree = PowercapTree(tmp_path)
    package = tree.add_package(0, energy_uj=1_000_000)
    dram = tree.add_child(package, "dram")
    dram.energy_file.chmod(0o400)
    answer = _as_ordinary_user(tmp_path, "print(json.dumps(describe()))")
    assert answer["values"] == {"cpu:0/package": 1.0}
    ((name, reason, remedy),) = answer["refused"]
    assert name == "dram:0"
    assert "permission denied" in reason
    assert f"sudo chmod a+r {tmp_path}" in remedy


def test_closed_directory_is_refused_not_a_crash(tmp_path: Path) -> None:
    """A zone with a closed directory is still reported."""
    tree = PowercapTree(tmp_path, Layout.FLAT)
    package = tree.add_package(0, energy_uj=1_000_000)
    tree.add_child(package, "dram").directory.chmod(0o700)
    answer = _as_ordinary_user(tmp_path, "print(json.dumps(describe()))")
    assert answer["values"] == {"cpu:0/package": 1.0}
    assert len(answer["refused"]) == 1


def test_nothing_readable_is_unavailable_with_remedy(tmp_path: Path) -> None:
    """With every file closed detection fails, and names the parts and the command."""
    tree = PowercapTree(tmp_path)
    tree.add_child(tree.add_package(0), "dram").energy_file.chmod(0o400)
    (tmp_path / "class/powercap/intel-rapl:0/energy_uj").chmod(0o400)
    answer = _as_ordinary_user(tmp_path, "print(json.dumps(unavailable()))")
    assert answer["parts"] == ["cpu:0/package", "dram:0"]
    assert "permission denied" in answer["reason"]
    assert "sudo chmod a+r" in answer["remedy"]


def test_permission_withdrawn_mid_run(tmp_path: Path) -> None:
    """An open file is still read; reopened, it is lost with a reason, not zero."""
    zone = PowercapTree(tmp_path).add_package(0, energy_uj=1_000_000)
    program = """
meter = open_meter()
values = [meter.read()[0]]
pipe_in(); values.append(meter.read()[0])
pipe_in(); values.append(meter.read()[0])
print(json.dumps([v if isinstance(v, float) else [v.reason, v.lost] for v in values]))
"""
    with _ordinary_user(tmp_path, program) as child:
        child.stdout.readline()  # first reading taken
        zone.energy_file.chmod(0o400)
        child.stdin.write("go\n")
        child.stdin.flush()
        child.stdout.readline()
        zone.set_energy_uj(2_000_000)  # a new file, readable by root only
        zone.energy_file.chmod(0o400)
        child.stdin.write("go\n")
        child.stdin.flush()
        first, second, third = json.loads(child.stdout.readline())
    assert first == second == pytest.approx(1.0)
    assert "permission denied" in third[0]
    assert third[1] is True


def test_empty_tree_is_unavailable_and_says_why(tmp_path: Path) -> None:
    """A machine without RAPL gets a reason and a remedy."""
    with pytest.raises(MeterUnavailable, match="modprobe intel_rapl_msr"):
        rapl.detect(Context(host=Host(sysfs=tmp_path)))


def test_file_without_a_number_is_read_again(tmp_path: Path) -> None:
    """A file that is read during a rewrite is a gap now and a reading later."""
    zone = PowercapTree(tmp_path).add_package(0)
    zone.energy_file.write_text("")
    meter = open_meter(tmp_path)
    (reading,) = meter.read()
    assert isinstance(reading, Gap)
    zone.set_energy_uj(4_000_000)
    assert list(meter.read()) == [pytest.approx(4.0)]


@pytest.mark.parametrize("writing", list(Writing))
def test_running_counter_is_followed(tmp_path: Path, writing: Writing) -> None:
    """However the file is rewritten, readings follow the truth and never show a wrong value."""
    zone = PowercapTree(tmp_path).add_package(0)
    meter = open_meter(tmp_path)
    with Driver({zone: SquareWave(50, 250, 0.02)}, writing=writing) as driver:
        previous_j = 0.0
        read = 0
        for _ in range(100):
            (reading,) = meter.read()
            now_s = time.monotonic()
            if isinstance(reading, Gap):
                assert writing is Writing.TRUNCATE
                time.sleep(0.0005)
                continue
            read += 1
            truth_j = driver.true_energy_j(zone, driver.start_s, now_s)
            assert previous_j <= reading <= truth_j
            previous_j = reading
            time.sleep(0.0005)
    assert read > 10
    assert previous_j > 0
    meter.close()


def _spoil(zone: TreeZone, with_directory: bool = True) -> None:
    """Make a counter unreadable for root as well."""
    zone.energy_file.unlink()
    if with_directory:
        zone.energy_file.mkdir()


PRELUDE = """
import json, os, sys
from pathlib import Path
from wattloop.core.errors import MeterUnavailable
from wattloop.hardware.host import Host
from wattloop.meters.base import Context
from wattloop.meters import rapl
root = Path(sys.argv[1])
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)

def open_meter():
    return rapl.detect(Context(host=Host(sysfs=root)))[0]

def describe():
    meter = open_meter()
    return {"values": {d.name: v for d, v in zip(meter.domains, meter.read())},
            "refused": [[m.name, m.reason, m.remedy] for m in meter.refused]}

def unavailable():
    try:
        open_meter()
    except MeterUnavailable as error:
        return {"reason": error.reason, "remedy": error.remedy, "parts": error.parts}

def pipe_in():
    print("ready", flush=True); sys.stdin.readline()
"""


def _ordinary_user(root: Path, program: str) -> subprocess.Popen[str]:
    _open_parent_folders(root)
    source = str(Path(rapl.__file__).parents[3])
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + program, str(root)],
        env={**os.environ, "PYTHONPATH": source},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _as_ordinary_user(root: Path, program: str) -> dict[str, object]:
    """Run a program as a user bound by file permissions, and return what it prints."""
    with _ordinary_user(root, program) as child:
        out, _ = child.communicate(timeout=300)
    assert child.returncode == 0
    answer: dict[str, object] = json.loads(out)
    return answer


def _open_parent_folders(root: Path) -> None:
    """Open pytest's temporary folders to other users."""
    if os.getuid() != 0:
        return
    temporary = Path(os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir())
    for folder in (root, *root.parents):
        if temporary in folder.parents:
            folder.chmod(folder.stat().st_mode | 0o055)


def test_garbage_next_to_the_counter_does_not_hide_it(tmp_path: Path) -> None:
    """An unreadable range or limit means "unknown"; the zone is still read."""
    tree = PowercapTree(tmp_path)
    zone = tree.add_package(0, energy_uj=5_000_000, max_power_w=200)
    (zone.directory / "max_energy_range_uj").write_text("²\n")
    (zone.directory / "constraint_0_max_power_uw").write_text("9" * 5000)
    meter = open_meter(tmp_path)
    assert meter.domains[0].wrap_j is None
    assert meter.domains[0].tdp_w is None
    assert meter.read() == [5.0]
