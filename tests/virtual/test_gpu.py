"""Promises of the virtual card: exact energy, limits, work, and one card for all processes."""

import itertools
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from tests.support.inherited_files import program_with_copies_of
from wattloop.core.clock import VirtualClock
from wattloop.core.errors import ConfigError
from wattloop.core.files import is_locked
from wattloop.virtual import work
from wattloop.virtual.cards import card_named
from wattloop.virtual.gpu import Fault, GpuWork, VirtualGpu
from wattloop.virtual.node import shared_gpus
from wattloop.virtual.timeline import FileTimeline, WorkOwner

CARD = card_named("h200")
TEN_SECONDS = GpuWork(flops=10 * CARD.flops_per_s)


@pytest.fixture
def clock():
    return VirtualClock(start_s=100.0)


@pytest.fixture
def gpu(clock):
    return VirtualGpu(0, CARD, clock=clock)


def test_true_energy_is_the_integral_of_true_power(gpu, clock):
    """Through ramps, caps and clocks the stated energy equals a fine sum of power."""
    moments_s = [clock.now_s()]
    for change in (
        lambda: gpu.load(0.7),
        lambda: gpu.set_power_cap(300),
        lambda: gpu.set_clock(900),
        lambda: gpu.load(0),
        lambda: gpu.set_power_cap(700),
    ):
        clock.advance(0.173)
        moments_s.append(clock.now_s())
        change()
        moments_s.append(clock.now_s() + 0.011)  # in the middle of the ramp
    clock.advance(0.2)
    for begin_s, end_s in itertools.pairwise(moments_s):
        step_s = (end_s - begin_s) / 5_000
        total_j = sum(gpu.power_w(begin_s + (k + 0.5) * step_s) * step_s for k in range(5_000))
        assert gpu.true_energy_j(begin_s, end_s) == pytest.approx(total_j, rel=1e-5)


def test_temperature_is_a_low_pass_filter_of_power(gpu, clock):
    """The closed form equals small steps of tau H' + H = P, through loads, caps and pauses."""
    heat_w, step_s, tau_s = CARD.idle_w, 0.002, CARD.thermal_s
    for change in (lambda: gpu.load(1.0), lambda: gpu.set_power_cap(300), lambda: gpu.load(0)):
        change()
        begin_s = clock.now_s()
        for k in range(5_000):
            power_w = gpu.power_w(begin_s + (k + 0.5) * step_s)
            heat_w += (power_w - heat_w) * step_s / tau_s
        clock.advance(10)
        expected_c = CARD.ambient_c + CARD.warmth_k_per_w * heat_w
        assert gpu.temperature_c(clock.now_s()) == pytest.approx(expected_c, abs=0.01)


def test_a_card_cools_down_to_where_it_was(gpu, clock):
    """A sweep waits for this between runs."""
    idle_c = gpu.temperature_c(clock.now_s())
    gpu.load(1.0)
    clock.advance(100)
    assert gpu.temperature_c(clock.now_s()) > idle_c + 30
    gpu.load(0)
    clock.advance(CARD.thermal_s)
    assert gpu.temperature_c(clock.now_s()) < idle_c + 20
    clock.advance(200)
    assert gpu.temperature_c(clock.now_s()) == pytest.approx(idle_c, abs=0.1)


def test_locks_are_remembered_and_released(gpu):
    """A clock locked at its highest is not the same as one that is not locked."""
    gpu.set_clock(CARD.max_clock_mhz)
    gpu.set_memory_clock(CARD.memory_clock_mhz)
    assert (gpu.now().clock_locked, gpu.now().memory_clock_locked) == (1, 1)
    gpu.set_clock(None)
    gpu.set_memory_clock(None)
    assert (gpu.now().clock_locked, gpu.now().memory_clock_locked) == (0, 0)
    assert gpu.limits == (700, CARD.max_clock_mhz, CARD.memory_clock_mhz)
    with pytest.raises(ConfigError, match="3201, 1593, 810"):
        gpu.set_memory_clock(2000)


def test_work_takes_roofline_time_on_the_injected_clock(gpu, clock):
    """No real time passes; the virtual clock moves by what the card needs."""
    gpu.set_power_cap(700)
    before_s = clock.now_s()
    duration_s = gpu.run(TEN_SECONDS)
    assert clock.now_s() - before_s == pytest.approx(duration_s)
    point = CARD.settle(CARD.activity(TEN_SECONDS), 700, CARD.max_clock_mhz)
    assert duration_s == pytest.approx(10 * point.slowdown)
    assert gpu.now().busy == 0


def test_a_cap_saves_energy_and_costs_time(gpu, clock):
    """Every sweep depends on this."""
    results = []
    for cap_w in (700, 400):
        gpu.set_power_cap(cap_w)
        begin_s = clock.now_s()
        duration_s = gpu.run(TEN_SECONDS)
        results.append((duration_s, gpu.true_energy_j(begin_s, clock.now_s())))
    (fast_s, fast_j), (slow_s, slow_j) = results
    assert slow_s > 1.1 * fast_s
    assert slow_j < 0.9 * fast_j


def test_no_work_takes_no_time(gpu):
    """Work of zero flops and bytes ends at once."""
    assert gpu.run(GpuWork()) == 0


@pytest.mark.parametrize(
    "act",
    [
        lambda gpu: gpu.set_power_cap(199.9),
        lambda gpu: gpu.set_power_cap(700.1),
        lambda gpu: gpu.set_power_cap(float("nan")),
        lambda gpu: gpu.set_clock(100),
        lambda gpu: gpu.set_clock(1_981),
        lambda gpu: gpu.load(1.2),
        lambda gpu: gpu.load(-0.1),
    ],
)
def test_values_outside_the_range_are_refused_and_change_nothing(gpu, act):
    """The card's own limits hold, and the message gives the range."""
    before = gpu.now()
    with pytest.raises(ConfigError, match=r"outside|from 0 to 1"):
        act(gpu)
    assert gpu.now() == before


def test_processes_share_one_card(tmp_path, monkeypatch):
    """A child's load is seen by its parent, with the same energy."""
    monkeypatch.setenv("WATTLOOP_VIRTUAL_STATE", str(tmp_path / "cards"))
    (gpu,) = shared_gpus(1)
    begin_s = time.monotonic()
    command = [sys.executable, "-m", "wattloop.virtual.work", "--seconds", "0.3", "--load", "0.4"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    end_s = time.monotonic()
    used_j = gpu.true_energy_j(begin_s, end_s) - CARD.idle_w * (end_s - begin_s)
    stated_j, took_s = float(out.split()[3]), float(out.split()[6])
    assert "simulated" in out
    assert used_j == pytest.approx(stated_j - CARD.idle_w * took_s, abs=12)
    assert gpu.now().busy == 0


def test_a_terminated_workload_leaves_the_card_idle(tmp_path, monkeypatch):
    """SIGTERM ends the load."""
    monkeypatch.setenv("WATTLOOP_VIRTUAL_STATE", str(tmp_path / "cards"))
    (gpu,) = shared_gpus(1)
    child = subprocess.Popen(
        [sys.executable, "-m", "wattloop.virtual.work", "--seconds", "60"],
        stdout=subprocess.DEVNULL,
    )
    while gpu.now().busy == 0:
        time.sleep(0.01)
    child.send_signal(signal.SIGTERM)
    assert child.wait(120) == 128 + signal.SIGTERM
    assert gpu.now().busy == 0


def test_wrong_arguments_are_exit_code_2(tmp_path, monkeypatch):
    """A load above 1 is an error with a message and no traceback."""
    monkeypatch.setenv("WATTLOOP_VIRTUAL_STATE", str(tmp_path / "cards"))
    command = [sys.executable, "-m", "wattloop.virtual.work", "--load", "7"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "from 0 to 1" in result.stderr
    assert "Traceback" not in result.stderr


def test_changes_of_many_processes_are_all_kept(tmp_path):
    """Two processes that change one card never undo each other's changes."""
    path = tmp_path / "cards"
    pid = os.fork()
    gpu = VirtualGpu(0, CARD, timeline=FileTimeline(path))
    for step in range(300):
        if pid == 0:
            gpu.load(step % 2)
        else:
            gpu.set_power_cap(300 + step)
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    segments = FileTimeline(path).segments(0)
    caps_w = [segment.limit_w for segment in segments if segment.limit_w != 700]
    assert len(segments) == 600
    assert caps_w == sorted(caps_w)
    assert [s.start_s for s in segments] == sorted(s.start_s for s in segments)


def test_changed_cards_are_free_while_a_program_has_a_copy_of_their_file(tmp_path):
    """A program that another thread starts has a copy until it executes."""
    path = tmp_path / "cards"
    with ExitStack() as programs:
        with FileTimeline(path).changing():
            programs.enter_context(program_with_copies_of(path))
        assert not is_locked(path)


def test_a_torn_record_is_ignored_and_repaired(tmp_path, clock):
    """A writer killed in the middle of a record loses nothing else."""
    path = tmp_path / "cards"
    gpu = VirtualGpu(0, CARD, timeline=FileTimeline(path), clock=clock)
    gpu.set_power_cap(300)
    with path.open("ab") as file:
        file.write(b"half a record")
    assert VirtualGpu(0, CARD, timeline=FileTimeline(path), clock=clock).now().limit_w == 300
    gpu.set_power_cap(400)
    assert VirtualGpu(0, CARD, timeline=FileTimeline(path), clock=clock).now().limit_w == 400


def test_a_long_history_is_compacted_without_losing_energy(tmp_path, clock, monkeypatch):
    """The file stays small, and the energy used so far is in it."""
    monkeypatch.setattr(FileTimeline, "MAX_BYTES", 2_000)
    path = tmp_path / "cards"
    gpu = VirtualGpu(0, CARD, timeline=FileTimeline(path), clock=clock)
    reference = VirtualGpu(0, CARD, clock=clock)
    for step in range(60):
        for each in (gpu, reference):
            each.load(0.5 if step % 2 else 0.1)
        clock.advance(0.05)
    now_s = clock.now_s()
    assert path.stat().st_size < 3_000
    assert gpu.energy_j(now_s) == pytest.approx(reference.energy_j(now_s))


def test_a_symbolic_link_is_not_followed(tmp_path, clock):
    """The default file lies in a directory that others can write to."""
    target = tmp_path / "precious"
    target.write_text("keep")
    (tmp_path / "cards").symlink_to(target)
    with pytest.raises(ConfigError, match="symbolic links"):
        VirtualGpu(0, CARD, timeline=FileTimeline(tmp_path / "cards"), clock=clock).load(1.0)
    assert target.read_text() == "keep"


def test_faults_are_part_of_the_shared_state(tmp_path, clock):
    """A fault injected by one process is met by another."""
    path = tmp_path / "cards"
    VirtualGpu(0, CARD, timeline=FileTimeline(path), clock=clock).inject(Fault.LOST)
    assert VirtualGpu(0, CARD, timeline=FileTimeline(path), clock=clock).now().fault == Fault.LOST


@pytest.mark.parametrize(
    "content", [None, b"notes of another user.\n" * 200], ids=["directory", "garbage"]
)
def test_a_foreign_state_file_is_refused_with_the_remedy(tmp_path, clock, content):
    """A directory or another program's file is not taken for the state of a card."""
    path = tmp_path / "state"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="WATTLOOP_VIRTUAL_STATE"):
        VirtualGpu(0, CARD, timeline=FileTimeline(path), clock=clock).load(0.5)


@pytest.mark.parametrize(
    "arguments", [["--seconds", "-1"], ["--seconds", "nan"], ["--seconds", "inf"], ["--gpus", "0"]]
)
def test_impossible_arguments_are_refused_before_any_card_is_loaded(
    tmp_path, monkeypatch, capsys, arguments
):
    """The message names the argument; the exit code is 2."""
    state = tmp_path / "state"
    monkeypatch.setenv("WATTLOOP_VIRTUAL_STATE", str(state))
    with pytest.raises(SystemExit) as stop:
        work.main(arguments)
    assert stop.value.code == 2
    assert arguments[0] in capsys.readouterr().err
    assert not state.exists()


def test_powers_of_processes_add_up_to_the_card(gpu, clock):
    """Each process has a load of its own; their true energies and the idle rest add up to the
    card's.
    """
    one, two = WorkOwner(1.0, 0.0), WorkOwner(2.0, 0.0)
    begin_s = clock.now_s()
    for change in (
        lambda: gpu.load(0.3, owner=one),
        lambda: gpu.load(0.5, compute=0.2, memory=1.0, owner=two),
        lambda: gpu.load(0.9, owner=one),  # together more than the card can do: they take turns
        lambda: gpu.set_power_cap(250),
        lambda: gpu.leave(one),
        lambda: gpu.load(0.0, owner=two),  # present without work
        lambda: gpu.leave(two),
    ):
        clock.advance(0.7)
        change()
    clock.advance(1.0)
    use = gpu.process_use(begin_s, clock.now_s())
    card_j = gpu.true_energy_j(begin_s, clock.now_s())
    assert sum(each.energy_j for each in use.values()) == pytest.approx(card_j, rel=1e-9)
    alone = gpu.process_use(begin_s + 0.8, begin_s + 1.4)
    assert alone[one].sm == pytest.approx(0.3)
    assert gpu.process_use(begin_s + 2.2, begin_s + 2.7)[one].sm == pytest.approx(0.9 / 1.4)
    assert gpu.now().loads == ()
    assert gpu.power_w(clock.now_s()) == pytest.approx(CARD.idle_w, rel=1e-6)


def test_a_turn_of_another_process_slows_work_down(gpu, clock):
    """Two programs that want the whole card take twice as long."""
    mine, other = WorkOwner(1.0, 0.0), WorkOwner(2.0, 0.0)
    alone = gpu.settled(gpu.model.activity(TEN_SECONDS), mine).slowdown
    gpu.load(1.0, owner=other)
    assert gpu.settled(gpu.model.activity(TEN_SECONDS), mine).slowdown == pytest.approx(
        2 * alone, rel=0.05
    )


def test_loads_of_all_processes_survive_a_compacted_file(tmp_path, clock, monkeypatch):
    """A file that is shortened keeps what each process does."""
    timeline = FileTimeline(tmp_path / "cards")
    gpu = VirtualGpu(0, CARD, timeline=timeline, clock=clock)
    owners = [WorkOwner(float(number), 0.0) for number in (1, 2, 3)]
    for owner in owners:
        gpu.load(0.1 * owner.pid, owner=owner)
    monkeypatch.setattr(FileTimeline, "MAX_BYTES", 100)
    clock.advance(1.0)
    gpu.set_power_cap(300)
    again = VirtualGpu(0, CARD, timeline=FileTimeline(tmp_path / "cards"), clock=clock)
    assert {load.owner: load.busy for load in again.now().loads} == {
        owner: pytest.approx(0.1 * owner.pid) for owner in owners
    }
    assert again.now().target_w == gpu.now().target_w
