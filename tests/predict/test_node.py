"""Promises of `node` and `node_parts`: parts add up, assumptions are named, intervals are wide."""

from dataclasses import replace
from pathlib import Path

import pytest

from wattloop.core.records import Provenance
from wattloop.core.settings import Settings
from wattloop.hardware.cpus import processor_named
from wattloop.hardware.gpus import gpu_named, known_gpus
from wattloop.hardware.host import Host
from wattloop.meters.dram import dimms_from_setting, dram_power_w
from wattloop.predict.node import node_here, node_prediction, typical_node
from wattloop.predict.prediction import Interval, Prediction

H200 = gpu_named("h200")
STEP = Prediction(step_s=0.2, power_w=600.0, gpus=8, power_interval=Interval(570.0, 630.0))
PARTS = typical_node(H200)


def test_parts_add_up_to_the_power_at_the_socket() -> None:
    """Every watt has a name, and the GPUs' are those of the prediction."""
    node = node_prediction(STEP, PARTS)
    assert sum(node.parts_w.values()) == pytest.approx(node.power_w)
    assert node.parts_w["gpu"] == pytest.approx(8 * 600.0)
    assert node.parts_w["dram"] == pytest.approx(dram_power_w(PARTS.dimms, 0.2))
    assert node.energy_j == pytest.approx(0.2 * node.power_w)
    assert 6_000 < node.power_w < 8_000


def test_it_is_estimated_and_says_so() -> None:
    """Provenance is `estimated`, every assumption is in the text, the interval contains their
    ranges.
    """
    node = node_prediction(STEP, PARTS)
    assert node.provenance is Provenance.ESTIMATED
    text = " ".join(node.assumptions)
    for word in ("DGX H100", "cores busy", "equation 4.1", "fans", "power supply 0.92"):
        assert word in text
    low, high, _ = node.power_interval
    assert low < node.power_w < high
    assert (high - low) / node.power_w > 0.1


def test_a_lopsided_interval_of_the_gpus_stays_so() -> None:
    """Uncertainty above only does not make power below uncertain."""
    wide = replace(STEP, power_interval=Interval(590.0, 900.0))
    node = node_prediction(wide, PARTS)
    low, high, _ = node.power_interval
    assert high - node.power_w > 2_000
    assert node.power_w - low < 700


def test_a_part_of_a_node_is_charged_its_part_of_the_host() -> None:
    """One GPU of eight pays an eighth, unless it has the node for itself."""
    one = replace(STEP, gpus=1)
    shared, alone = (node_prediction(one, replace(PARTS, alone=a)) for a in (False, True))
    whole = node_prediction(STEP, PARTS)
    assert shared.parts_w["cpu"] == pytest.approx(whole.parts_w["cpu"] / 8)
    assert shared.parts_w["dram"] == pytest.approx(whole.parts_w["dram"] / 8)
    assert alone.parts_w["dram"] == pytest.approx(whole.parts_w["dram"])
    assert alone.power_w > shared.power_w
    assert "others pay" in shared.assumptions[0]
    assert "others pay" not in alone.assumptions[0]


def test_two_nodes_draw_twice_as_much() -> None:
    """A run over nodes pays for all of them."""
    one, two = (node_prediction(replace(STEP, gpus=n), PARTS) for n in (8, 16))
    assert two.power_w == pytest.approx(2 * one.power_w)


def test_data_loading_and_full_memory_cost_watts() -> None:
    """The host's work adds to its power."""
    quiet = node_prediction(STEP, replace(PARTS, loader_cores=0.0, memory_used=0.01))
    busy = node_prediction(STEP, replace(PARTS, loader_cores=8.0, memory_used=0.9))
    assert busy.parts_w["cpu"] > 1.3 * quiet.parts_w["cpu"]
    assert busy.parts_w["dram"] == pytest.approx(quiet.parts_w["dram"] * 0.8 / 0.3)


def test_what_the_user_states_is_taken_without_a_range() -> None:
    """Overhead and efficiency of the settings replace the published ones."""
    stated = replace(PARTS, overhead_w=100.0, psu_efficiency=0.9)
    node = node_prediction(STEP, stated)
    assert node.parts_w["other"] == pytest.approx(100.0)
    drawn_w = node.power_w - node.parts_w["power supply"]
    assert node.power_w == pytest.approx(drawn_w / 0.9)
    assert node.half_width_w < node_prediction(STEP, PARTS).half_width_w


def test_every_gpu_has_a_typical_node() -> None:
    """Every GPU of the table has an assumption, with its reference server."""
    for gpu in known_gpus():
        parts = typical_node(gpu)
        assert "assumed" in parts.source
        assert len(parts.processors) == 2
    assert typical_node(gpu_named("v100")).dimms == dimms_from_setting("16x32")


def test_this_machine_is_read_as_far_as_it_tells(tmp_path: Path) -> None:
    """Processors come from /proc, modules from the settings; missing ones are assumed, and
    named.
    """
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nphysical id\t: 0\ncore id\t: 0\nvendor_id\t: AuthenticAMD\n"
        "cpu family\t: 23\nmodel\t: 49\nmodel name\t: AMD EPYC 7742 64-Core Processor\n"
        "flags\t: fpu\n",
        encoding="utf-8",
    )
    host = Host(sysfs=tmp_path / "sys", procfs=tmp_path)
    here = node_here(host, Settings(dimms="4x16", psu_efficiency=0.95, cpu_tdp_w=200.0), H200)
    assert "EPYC 7742, found here" in here.source
    assert (len(here.dimms), here.psu_efficiency) == (4, 0.95)
    assert here.processors[0].tdp_w == 200.0
    nothing = node_here(Host(sysfs=tmp_path / "no", procfs=tmp_path / "no"), Settings(), H200)
    assert nothing.processors[0] == processor_named("Xeon Platinum 8480C")
    assert nothing.source.count("assumed") == 2
