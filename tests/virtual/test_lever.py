"""Promises of the levers of the virtual card."""

import os
import signal
import subprocess
import sys

import pytest

from wattloop.control.session import lever_session
from wattloop.core.errors import ConfigError, LeverError
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.meters.base import Context
from wattloop.testing.lever_contract import check_lever
from wattloop.virtual.gpu import Fault
from wattloop.virtual.lever import detect
from wattloop.virtual.meter import detect as detect_meters

POWER, CLOCK, MEMORY = "gpu:0/power_limit", "gpu:0/sm_clock", "gpu:0/memory_clock"
LOWER = {POWER: 300.0, CLOCK: 990.0, MEMORY: 1593.0}


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTLOOP_VIRTUAL_STATE", str(tmp_path / "cards"))
    host = Host(sysfs=tmp_path / "sys", procfs=tmp_path / "proc")
    return Context(host=host, settings=Settings(virtual_gpus=2))


@pytest.fixture
def levers(context):
    return {lever.name: lever for lever in detect(context)}


def test_each_card_has_three_levers_and_there_are_none_unless_asked_for(context, levers):
    """Names are as on real cards, and every display says that they are simulated."""
    kinds = ("power_limit", "sm_clock", "memory_clock")
    assert list(levers) == [f"gpu:{n}/{kind}" for n in (0, 1) for kind in kinds]
    for lever in levers.values():
        state = lever.state()
        assert state.available
        assert "simulated" in state.source
        assert "simulated" in state.note
        assert state.value is not None
        assert "simulated" in lever.write_text(None)
        assert state.low < state.high
    assert detect(context._replace(settings=Settings())) == []


def test_numbers_go_on_after_real_cards_as_those_of_the_meters_do(context, tmp_path):
    """On a machine with a GPU the first virtual one is gpu:1, for levers and meters alike."""
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert next(iter(detect(context))).name == "gpu:1/power_limit"
    assert detect_meters(context)[0].domains[0].name == "gpu:1"


@pytest.mark.parametrize(
    "index, good, bad",
    [
        (0, [300.0, 250.5], [199.0, 701.0, "fast"]),
        (1, [990.0, 345.0], [100.0, 2000.0, "fast"]),
        (2, [1593.0, 810.0], [9000.0, 10.0, "fast"]),
    ],
)
def test_virtual_levers_keep_the_contract(context, index, good, bad):
    """Simulated levers keep the contract of every lever."""
    check_lever(lambda: detect(context)[index], good=good, bad=bad)


def test_a_session_restores_the_settings_of_a_killed_one(levers, tmp_path, monkeypatch):
    """`restore` finds a virtual lever by its device, as it finds a real one."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from wattloop.control.session import lever_session as hold\n"
        "from wattloop.meters.base import Context; from wattloop.core.settings import Settings\n"
        "from wattloop.virtual.lever import detect\n"
        "levers = detect(Context(settings=Settings(virtual_gpus=2)))\n"
        "held = hold(levers, directory=Path(sys.argv[1]), guardian=False).__enter__()\n"
        "held.set({'gpu:0/power_limit': 250.0, 'gpu:1/sm_clock': 990.0}); os.kill(os.getpid(), 9)"
    )
    entry_points = tmp_path / "site" / "wattloop-0.dist-info" / "entry_points.txt"
    entry_points.parent.mkdir(parents=True)
    entry_points.write_text("[wattloop.levers]\nvirtual = wattloop.virtual.lever:detect\n")
    monkeypatch.syspath_prepend(tmp_path / "site")  # as if installed
    directory = tmp_path / "held"
    environment = {**os.environ, "WATTLOOP_VIRTUAL_GPUS": "2"}
    subprocess.run([sys.executable, "-c", code, str(directory)], env=environment, check=False)
    assert levers[POWER].read() == 250
    with lever_session(
        list(levers.values()), directory=directory, guardian=False, report=lambda _: None
    ):
        assert levers[POWER].read() == 700
        assert levers["gpu:1/sm_clock"].read() is None


@pytest.mark.parametrize("name", LOWER)
def test_written_values_are_read_back_by_every_process_and_restored(context, levers, name):
    """Each lever is tested from its untouched value and back to it."""
    lever, other = levers[name], {each.name: each for each in detect(context)}[name]
    before = lever.read()
    assert before == (700 if name == POWER else None)
    lever.write(LOWER[name])
    assert other.read() == LOWER[name] == other.state().value
    other.write(before)
    assert lever.read() == before


@pytest.mark.parametrize("name", LOWER)
def test_every_lever_saves_power_of_a_busy_card(levers, name):
    """A cap, a lower clock and a slower memory all act on the running work."""
    gpu = levers[name].gpu
    gpu.load(1.0, compute=1.0, memory=1.0)
    before_w = gpu.now().target_w
    levers[name].write(LOWER[name])
    assert gpu.now().target_w < before_w - 20


def test_a_killed_process_leaves_its_settings(levers):
    """The value survives kill -9 of the setter, as on hardware."""
    code = (
        "import time; from wattloop.virtual.lever import detect; from wattloop.meters.base import"
        " Context; from wattloop.core.settings import Settings\n"
        "levers = detect(Context(settings=Settings(virtual_gpus=2)))\n"
        "levers[0].write(250.0); levers[1].write(600.0); print(flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    assert levers[POWER].read() == 250
    assert levers[CLOCK].read() == 600


@pytest.mark.parametrize(
    "name, value",
    [
        (POWER, 199.0),
        (POWER, 701.0),
        (POWER, float("nan")),
        (POWER, "performance"),
        (CLOCK, 100.0),
        (CLOCK, 2000.0),
        (MEMORY, 9000.0),
        (MEMORY, True),
    ],
)
def test_no_value_outside_the_cards_range_reaches_it(levers, name, value):
    """Neither the check nor the write accepts it; the message names the lever and its range."""
    before = levers[name].gpu.now()
    for act in (levers[name].accepted, levers[name].write):
        with pytest.raises(ConfigError, match=name):
            act(value)
    assert levers[name].gpu.now() == before


def test_values_are_taken_in_the_cards_own_steps(levers):
    """Clocks snap to the card's steps; None is its default."""
    assert levers[CLOCK].accepted(1003.0) == 1005
    assert levers[CLOCK].accepted(345.0) == 345
    assert levers[MEMORY].accepted(1500.0) == 1593
    assert levers[POWER].accepted(300.12345) == 300.123
    assert levers[POWER].accepted(None) == 700
    assert levers[CLOCK].accepted(None) is None


@pytest.mark.parametrize("name", LOWER)
@pytest.mark.parametrize(
    "fault, readable",
    [
        (Fault.LOST, False),
        (Fault.NO_PERMISSION, False),
        (Fault.UNSUPPORTED, False),
        (Fault.UNKNOWN_ERROR, False),
        (Fault.SET_FORBIDDEN, True),
        (Fault.SET_UNSUPPORTED, True),
    ],
)
def test_a_broken_card_says_why_and_its_neighbour_goes_on(levers, name, fault, readable):
    """Reading, writing and listing each give the reason; repairing the card ends it."""
    lever = levers[name]
    lever.gpu.inject(fault)
    with pytest.raises(LeverError):
        lever.write(LOWER[name])
    state = lever.state()
    assert not state.available
    assert state.reason
    if not readable:
        with pytest.raises(LeverError):
            lever.read()
    levers[name.replace("0", "1", 1)].write(LOWER[name])
    lever.gpu.inject(Fault.NONE)
    lever.write(LOWER[name])
    assert lever.read() == LOWER[name]


def test_a_setting_can_be_accepted_without_effect(levers):
    """The caller has to read back a value that it sets."""
    levers[POWER].gpu.inject(Fault.SET_IGNORED)
    levers[POWER].write(300.0)
    assert levers[POWER].read() == 700


def test_another_process_finds_the_lever_by_what_it_says(levers, tmp_path):
    """`where` and `device` name the file, the model and the card."""
    lever = levers["gpu:1/power_limit"]
    assert lever.where() == {
        "WATTLOOP_VIRTUAL_STATE": str(tmp_path / "cards"),
        "WATTLOOP_VIRTUAL_MODEL": "h200",
        "WATTLOOP_VIRTUAL_GPUS": "2",
    }
    assert lever.device == f"virtual:{tmp_path / 'cards'}:1"


def test_a_foreign_state_file_is_a_reason_not_a_crash(levers, tmp_path):
    """Listing never raises, and reading gives the remedy."""
    (tmp_path / "cards").write_bytes(b"notes of another user.\n" * 200)
    assert "WATTLOOP_VIRTUAL_STATE" in levers[POWER].state().reason
    with pytest.raises(LeverError, match="WATTLOOP_VIRTUAL_STATE"):
        levers[POWER].read()
    with pytest.raises(LeverError, match="WATTLOOP_VIRTUAL_STATE"):
        levers[POWER].write(300.0)


INTERRUPTED = """
import os, signal, sys
from wattloop.control.session import lever_session as hold
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.meters.base import Context
from wattloop.virtual.lever import detect
from wattloop.virtual.node import shared_gpus

levers = {x.name: x for x in detect(Context(Host.from_environment(), Settings(virtual_gpus=1)))}
with hold([levers["gpu:0/power_limit"]], guardian=False) as held:
    held.set({"gpu:0/power_limit": 300.0})
    with shared_gpus(1)[0]._timeline.changing():
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(10_000): pass
"""


def test_a_program_interrupted_while_it_changes_the_card_restores_it(tmp_path, levers, monkeypatch):
    """Promise: the lock that the program has does not block its own restore."""
    monkeypatch.setenv("WATTLOOP_STATE_DIR", str(tmp_path / "state"))
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], timeout=300, check=False)
    assert done.returncode == -signal.SIGTERM
    assert levers[POWER].read() == 700
