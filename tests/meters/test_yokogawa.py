import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from wattloop.core.clock import RealClock
from wattloop.core.errors import ConfigError, MeterUnavailable
from wattloop.core.records import Gap
from wattloop.core.settings import Settings
from wattloop.meters.base import Context
from wattloop.meters.yokogawa import Setup, detect, open_instrument, parse_values, split_address
from wattloop.testing.meter_contract import check_meter

pyvisa = pytest.importorskip("pyvisa", reason="needs PyVISA")
pytest.importorskip("pyvisa_sim", reason="needs PyVISA-sim")

RESOURCE = "TCPIP::192.0.2.7::INSTR"
SETTINGS = (
    ":COMMUNICATE:HEADER?",
    ":NUMERIC:FORMAT?",
    ":NUMERIC:NORMAL:NUMBER?",
    ":NUMERIC:NORMAL:ITEM1?",
    ":NUMERIC:NORMAL:ITEM2?",
    ":INTEGRATE:MODE?",
    ":INTEGRATE:TIMER?",
)


@pytest.fixture
def library(tmp_path: Path) -> str:
    """Make a simulated instrument for one test."""
    path = tmp_path / "wt310e.yaml"
    shutil.copy(Path(__file__).with_name("wt310e.yaml"), path)
    return f"{path}@sim"


@pytest.fixture
def panel(library: str) -> Iterator[object]:
    """Open another connection to the same instrument, as its user would."""
    session = pyvisa.ResourceManager(library).open_resource(
        RESOURCE, read_termination="\n", write_termination="\n"
    )
    yield session
    session.close()


def open_meters(library: str):
    meters = open_instrument(f"{RESOURCE}@{library}", RealClock())
    assert meters[0].wait(120)
    return meters


@pytest.mark.parametrize("index", [0, 1])
def test_contract(library, index) -> None:
    """Promise: both meters keep the contract of every meter."""
    check_meter(lambda: open_meters(library)[index])


def test_watt_hours_are_the_counter_and_power_the_gauge(library, panel) -> None:
    """Promise: the instrument's own integration is the counter, and its power the gauge."""
    energy, power = open_meters(library)
    assert energy.read() == [pytest.approx(1.5e-3 * 3_600)]
    assert power.read() == [pytest.approx(52.3)]
    energy.close()
    power.close()


def test_the_instrument_is_left_as_it_was_found_by_the_last_to_close(library, panel) -> None:
    """Promise: every changed setting is restored, once neither meter needs it."""
    before = [panel.query(q) for q in SETTINGS]
    energy, power = open_meters(library)
    during = [panel.query(q) for q in SETTINGS]
    energy.close()
    assert [panel.query(q) for q in SETTINGS] == during != before
    power.close()
    assert [panel.query(q) for q in SETTINGS] == before


class Log:
    """A log of a Setup's writes, against a table of answers."""

    def __init__(self, state: str) -> None:
        self.answers = {":INTEGRATE:STATE?": state}
        self.writes: list[str] = []

    def query(self, command: str) -> str:
        return self.answers.get(command, "OTHER")


@pytest.mark.parametrize("state", ["START", "STAR", ":INTEGRATE:STATE START"])
def test_a_running_integration_is_only_read(state) -> None:
    """Promise: a user's integration is neither started, stopped nor reset, nor its mode changed."""
    log = Log(state)
    setup = Setup(log.query, log.writes.append)
    setup.prepare()
    setup.restore()
    assert not [w for w in log.writes if w.startswith(":INTEGRATE")]
    assert setup.integration_gap is None


@pytest.mark.parametrize("state", ["STOP", "TIM", "ERR"])
def test_a_finished_integration_is_left_on_the_display(state) -> None:
    """Promise: a finished result of the user stays on the display."""
    log = Log(state)
    setup = Setup(log.query, log.writes.append)
    setup.prepare()
    setup.restore()
    assert not [w for w in log.writes if w.startswith(":INTEGRATE")]
    assert setup.integration_gap is not None


def test_the_meters_own_integration_is_stopped_and_reset(library) -> None:
    """Promise: an integration that the meter starts is stopped before mode and timer are
    restored.
    """
    log = Log("RES")
    setup = Setup(log.query, log.writes.append)
    setup.prepare()
    setup.restore()
    integrate = [w for w in log.writes if w.startswith(":INTEGRATE")]
    assert integrate == [
        ":INTEGRATE:MODE NORMAL",
        ":INTEGRATE:TIMER 0,0,0",
        ":INTEGRATE:START",
        ":INTEGRATE:STOP",
        ":INTEGRATE:RESET",
        ":INTEGRATE:TIMER OTHER",
        ":INTEGRATE:MODE OTHER",
    ]


@pytest.mark.parametrize("text", ["NAN", "INF", "9.91E+37", "9.9E+37", "rubbish"])
def test_an_unknown_value_of_the_instrument_is_a_gap(text) -> None:
    """Promise: NAN, INF and their IEEE 488.2 numbers never become watts."""
    power, energy = parse_values(f"{text},1.0E+00")
    assert isinstance(power, Gap)
    assert energy == 1.0
    assert isinstance(parse_values(text)[1], Gap)


def test_a_missing_instrument_is_a_gap(library) -> None:
    """Promise: a wrong address is a gap with its reason, not a traceback."""
    meters = open_instrument(f"TCPIP::192.0.2.99::INSTR@{library}", RealClock())
    assert meters[0].wait(120)
    gap = meters[0].read()[0]
    for meter in meters:
        meter.close()
    assert isinstance(gap, Gap)
    assert "192.0.2.99" in gap.reason


def test_addresses_and_their_libraries() -> None:
    """Promise: pyvisa-py is used unless the address names another library; invalid names are
    refused.
    """
    assert split_address(RESOURCE) == (RESOURCE, "@py")
    assert split_address(f"{RESOURCE}@ivi") == (RESOURCE, "@ivi")
    assert split_address(f"{RESOURCE}@/a/b.yaml@sim") == (RESOURCE, "/a/b.yaml@sim")
    with pytest.raises(ConfigError, match="must look like"):
        split_address("wattmeter")
    with pytest.raises(MeterUnavailable, match="WATTLOOP_VISA"):
        detect(Context())
    assert detect(Context(settings=Settings(visa_resource=RESOURCE)))
