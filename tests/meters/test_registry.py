"""Promises of `registry`: every meter is tried, refusals keep their reasons, and plugins may
join.
"""

import sys
from pathlib import Path

import pytest
from tests.support.powercap_tree import PowercapTree
from tests.support.scripted_meter import ScriptedMeter, counter

from wattloop.core.clock import VirtualClock
from wattloop.core.errors import ConfigError, MeterUnavailable
from wattloop.core.results import Missing
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.meters.base import Context
from wattloop.meters.registry import METERS, Inventory, detect, meter_names

PLUGIN = """
from wattloop.core.records import Domain, DomainKind, Scope
from wattloop.meters.base import Meter

class Wall(Meter):
    name = "wall"
    domains = (Domain(name="wall", kind=DomainKind.GAUGE, scope=Scope.OTHER, source="plug"),)
    def read(self):
        return [12.0]

def detect(context):
    return [Wall()]

def broken(context):
    raise RuntimeError("firmware too old")
"""


def context(tmp_path: Path, **settings: object) -> Context:
    return Context(
        Host(tmp_path / "sys", tmp_path / "proc"),
        Settings().overridden(settings, "test"),
        VirtualClock(),
    )


def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry_points: str) -> None:
    """Install a third-party distribution on the path, as pip does."""
    site = tmp_path / "site"
    info = site / "wallmeter-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wallmeter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    (site / "wallmeter.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "wallmeter", raising=False)


def test_third_party_meter_joins_through_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installing a package with the entry point is enough."""
    installed(tmp_path, monkeypatch, "[wattloop.meters]\nwall = wallmeter:detect\n")
    inventory = detect(context(tmp_path, meters="wall"))
    assert [m.name for m in inventory.meters] == ["wall"]
    assert inventory.meters[0].read() == [12.0]
    assert "wall" in meter_names()


def test_entry_points_of_other_groups_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only Wattloop's group is read, at any place in the file."""
    text = "[console_scripts]\nwall = x:y\n[wattloop.meters]\nplug=wallmeter:detect\n[z]\nq = r:s\n"
    installed(tmp_path, monkeypatch, text)
    names = meter_names()
    assert "plug" in names
    assert "wall" not in names
    assert "q" not in names


def test_broken_plugin_is_refused_with_its_reason_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A meter that raises, or whose module is missing, is a refusal, and the others are used."""
    text = "[wattloop.meters]\nbad = wallmeter:broken\ngone = nowhere_at_all:detect\n"
    installed(tmp_path, monkeypatch, text)
    PowercapTree(tmp_path / "sys").add_package(0)
    inventory = detect(context(tmp_path, meters="rapl,bad,gone"))
    assert [m.name for m in inventory.meters] == ["rapl"]
    reasons = {refusal.meter: refusal.reason for refusal in inventory.refusals}
    assert "firmware too old" in reasons["bad"]
    assert "nowhere_at_all" in reasons["gone"]
    assert all(refusal.remedy for refusal in inventory.refusals)  # listed, not hidden
    inventory.close()


def test_own_meter_cannot_be_replaced_by_a_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that calls its meter `rapl` does not replace the built-in one."""
    installed(tmp_path, monkeypatch, "[wattloop.meters]\nrapl = wallmeter:detect\n")
    PowercapTree(tmp_path / "sys").add_package(0)
    inventory = detect(context(tmp_path, meters="rapl"))
    assert [d.name for m in inventory.meters for d in m.domains] == ["cpu:0/package"]
    inventory.close()


def test_unknown_meter_is_an_error_that_lists_the_known(tmp_path: Path) -> None:
    """A typing error is reported."""
    with pytest.raises(ConfigError, match=r"unknown meter rapI; known are .*rapl"):
        detect(context(tmp_path, meters="rapI"))


def test_refused_meter_tells_which_parts_are_missing_and_what_to_do(tmp_path: Path) -> None:
    """A machine without powercap misses its CPU, with a remedy, instead of reporting 0 J."""
    inventory = detect(context(tmp_path, meters="rapl"))
    (missing,) = inventory.missing()
    assert missing.name == "cpu"
    assert "rapl" in missing.reason
    assert missing.remedy


def test_part_that_another_meter_reads_is_not_missing() -> None:
    """Perf offers the package that powercap refused."""
    meter = ScriptedMeter(VirtualClock(), [(counter("cpu:0/package"), lambda t: t)])
    refusal = MeterUnavailable("rapl", "not readable", "chmod", parts=("cpu:0/package", "dram:0"))
    assert [m.name for m in Inventory([meter], [refusal]).missing()] == ["dram:0"]


def test_general_part_is_covered_by_any_of_its_devices() -> None:
    """`cpu` is not missing where `cpu:0/package` is read."""
    meter = ScriptedMeter(VirtualClock(), [(counter("cpu:0/package"), lambda t: t)])
    refusal = MeterUnavailable("perf", "no events", parts=("cpu", "gpu"))
    assert [m.name for m in Inventory([meter], [refusal]).missing()] == ["gpu"]


def test_part_refused_by_a_working_meter_is_missing() -> None:
    """One GPU of two that may not be read appears with its reason."""
    refused = Missing("gpu:1", "MIG is on", "read the whole GPU")
    meter = ScriptedMeter(VirtualClock(), [(counter("gpu:0"), lambda t: t)], refused=[refused])
    assert Inventory([meter]).missing() == [refused]


def test_every_listed_meter_has_a_module_with_detect(tmp_path: Path) -> None:
    """The list and the modules agree: every built-in meter can be loaded."""
    inventory = detect(context(tmp_path))
    faults = [str(r) for r in inventory.refusals if "failed to start" in r.reason]
    assert faults == []
    assert set(METERS) <= set(meter_names())
    inventory.close()


def test_every_meter_has_a_card_of_its_name() -> None:
    """`docs/meters/NAME.md` exists for each listed meter and the virtual GPU, and no other."""
    cards = Path(__file__).parents[2] / "docs/meters"
    names = {card.stem for card in cards.glob("*.md")} - {"README", "other-accelerators"}
    assert names == {*METERS, "virtual"}
    index = (cards / "README.md").read_text("utf-8")
    assert [name for name in names if f"]({name}.md)" not in index] == []


def test_closing_closes_every_meter() -> None:
    """No file stays open after a run."""
    meters = [ScriptedMeter(VirtualClock(), []) for _ in range(2)]
    Inventory(list(meters)).close()
    assert [m.closed for m in meters] == [1, 1]
