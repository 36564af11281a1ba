"""Promises of the synthetic powercap tree: its true energy is right, so accuracy can be judged."""

import random
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.power_curves import (
    Constant,
    PowerCurve,
    Ramp,
    SineWave,
    Spikes,
    SquareWave,
    Steps,
    Sum,
)
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import Layout, PowercapTree, Writing
from wattloop.hardware.host import NumberFile

CURVES: list[PowerCurve] = [
    Constant(100.0),
    SquareWave(50.0, 250.0, 0.1),
    SquareWave(50.0, 250.0, 0.3, duty=0.2),
    Spikes(60.0, 400.0, 0.5, 0.01),
    Ramp(20.0, 300.0, 0.7),
    SineWave(150.0, 100.0, 0.4),
    Steps(((0.2, 50.0), (0.3, 200.0), (0.1, 80.0))),
    Sum((Constant(10.0), Ramp(0.0, 90.0, 1.0))),
]


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: type(curve).__name__)
def test_energy_is_the_integral_of_power(curve: PowerCurve) -> None:
    """The closed form agrees with a fine Riemann sum over random intervals."""
    chance = random.Random(1)
    for _ in range(3):
        begin_s, length_s = chance.uniform(0, 2), chance.uniform(0.1, 1)
        steps = 20_000
        dt_s = length_s / steps
        summed_j = sum(curve.power_w(begin_s + (i + 0.5) * dt_s) for i in range(steps)) * dt_s
        exact_j = curve.energy_j(begin_s + length_s) - curve.energy_j(begin_s)
        assert exact_j == pytest.approx(summed_j, rel=2e-4)


@pytest.mark.parametrize("writing", [Writing.REPLACE, Writing.IN_PLACE])
def test_file_holds_the_true_counter_of_its_last_update(tmp_path: Path, writing: Writing) -> None:
    """A reader sees a value between the truth of one update ago and the truth now."""
    zone = PowercapTree(tmp_path).add_package(0, energy_uj=5_000)
    with Driver({zone: SquareWave(50, 250, 0.02)}, update_period_s=0.002, writing=writing) as run:
        file = NumberFile(zone.energy_file)
        previous = -1
        for _ in range(50):
            value = file.read()
            now = run.counter_uj(zone, time.monotonic())
            assert isinstance(value, int)
            assert previous <= value <= now
            previous = value
            time.sleep(0.001)
        run.stop()
        assert run.updates > 5
        assert value > 5_000


def test_counter_wraps_at_its_range(tmp_path: Path) -> None:
    """Values stay below the range while the true energy grows."""
    zone = PowercapTree(tmp_path).add_package(0, range_uj=1_000_000)
    run = Driver({zone: Constant(10.0)}, writing=Writing.IN_PLACE)
    seen = []
    for step in range(40):
        run.update(at_s=run.start_s + step * 0.01)
        seen.append(int(zone.energy_file.read_text()))
    assert max(seen) < 1_000_000
    assert sum(b < a for a, b in pairwise(seen)) == 3
    assert run.true_energy_j(zone, run.start_s, run.start_s + 0.4) == pytest.approx(4.0)


def test_lost_updates_leave_the_file_empty(tmp_path: Path) -> None:
    """The requested share of updates is lost, and the same ones for the same seed."""
    zone = PowercapTree(tmp_path).add_package(0)
    run = Driver({zone: Constant(10.0)}, lost_share=0.3, seed=3)
    empty = 0
    for step in range(200):
        run.update(at_s=run.start_s + step)
        empty += zone.energy_file.read_text() == ""
    assert 40 <= empty <= 80


def test_truth_before_the_start_is_refused(tmp_path: Path) -> None:
    """A time at which no power was defined has no energy."""
    zone = PowercapTree(tmp_path).add_package(0)
    run = Driver({zone: Constant(10.0)})
    with pytest.raises(ValueError, match="started"):
        run.true_energy_j(zone, run.start_s - 1, run.start_s)


@pytest.mark.parametrize("layout", list(Layout))
def test_every_layout_has_the_zones_at_the_usual_paths(tmp_path: Path, layout: Layout) -> None:
    """Each layout offers package and child below class/powercap."""
    tree = PowercapTree(tmp_path, layout)
    tree.add_child(tree.add_package(0), "core")
    powercap = tmp_path / "class" / "powercap"
    expected = {
        Layout.FLAT: ["intel-rapl:0", "intel-rapl:0:0"],
        Layout.NESTED: ["intel-rapl/intel-rapl:0/intel-rapl:0:0"],
        Layout.LINKED: ["intel-rapl:0", "intel-rapl:0:0", "intel-rapl/intel-rapl:0/intel-rapl:0:0"],
    }[layout]
    for name in expected:
        assert (powercap / name / "energy_uj").is_file()


def test_a_tree_named_relatively_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links lead to their zones from any working directory."""
    monkeypatch.chdir(tmp_path)
    PowercapTree(Path("sys"), Layout.LINKED).add_package(0, energy_uj=7)
    file = tmp_path / "sys" / "class" / "powercap" / "intel-rapl:0" / "energy_uj"
    assert file.read_text() == "7\n"
