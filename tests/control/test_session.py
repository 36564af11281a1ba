"""Promises of `hold`: checked, journaled, set, read back, and restored however the block ends."""

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.control.conftest import Rig, eventually
from tests.support.nvml_stub import Call, StubNvml
from wattloop.control.journal import read_journal
from wattloop.control.lever import Lever, Setting
from wattloop.control.session import applied, lever_session
from wattloop.core.errors import ConfigError, DeviceBusy, LeverError

LIMIT = "cpu:0/power_limit_long_term"
SLEEPER = f"""
with hold([lever("{LIMIT}"), lever("cpu/governor")]) as held:
    held.set({{"{LIMIT}": 90.0, "cpu/governor": "schedutil"}})
    print(held.guardian_pid, flush=True)
    time.sleep(60)
"""


def is_back(rig: Rig) -> bool:
    return rig.limit_w() == 150 and rig.cpufreq.all("scaling_governor") == [
        "powersave",
        "performance",
    ]


def test_set_inside_and_back_outside(rig: Rig) -> None:
    """The value is set inside the block; afterwards it is restored, and the journal removed."""
    with lever_session([rig.lever(LIMIT)]) as held:
        held.set({LIMIT: 100.0})
        assert rig.limit_w() == 100
        assert held.previous == {LIMIT: 150.0}
        held.set({LIMIT: 120.0})
        assert rig.limit_w() == 120
        assert len(rig.journals()) == 1
    assert rig.limit_w() == 150
    assert rig.journals() == []


def test_without_settings_nothing_happens(rig: Rig) -> None:
    """Without levers or settings there is neither a journal line nor an error."""
    with lever_session([]) as held:
        held.set({})
    with lever_session([rig.lever(LIMIT)], guardian=False) as held:
        size = rig.journals()[0].stat().st_size
        held.set({})
        assert rig.journals()[0].stat().st_size == size


def test_exception_restores(rig: Rig) -> None:
    """An exception leaves the block restored, and is passed on."""
    with pytest.raises(RuntimeError, match="training broke"), applied(rig.lever(LIMIT), 80.0):
        assert rig.limit_w() == 80
        raise RuntimeError("training broke")
    assert rig.limit_w() == 150


def test_each_policy_gets_its_own_value_back(rig: Rig) -> None:
    """Policies that differed before differ in the same way afterwards."""
    names = ["cpu/governor", "cpu/min_frequency", "cpu/max_frequency"]
    with lever_session([rig.lever(name) for name in names]) as held:
        held.set(dict(zip(names, ["schedutil", 2000.0, 2500.0], strict=True)))
        assert rig.cpufreq.all("scaling_min_freq") == ["2000000", "2000000"]
        assert rig.cpufreq.all("scaling_max_freq") == ["2500000", "2500000"]
    assert rig.cpufreq.all("scaling_governor") == ["powersave", "performance"]
    assert rig.cpufreq.all("scaling_min_freq") == ["800000", "1000000"]
    assert rig.cpufreq.all("scaling_max_freq") == ["3000000", "1200000"]


def test_lower_bound_never_passes_the_upper(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both bounds move up, and down again at the end, without min > max at any moment."""
    from wattloop.control import cpu

    passed: list[str] = []
    write = cpu.write_file

    def watched(name: str, path: Path, text: str) -> None:
        write(name, path, text)
        low, high = (int((path.parent / f"scaling_{b}_freq").read_text()) for b in ("min", "max"))
        if low > high:
            passed.append(f"{path}: {low} > {high}")

    monkeypatch.setattr(cpu, "write_file", watched)
    names = ["cpu/min_frequency", "cpu/max_frequency"]
    with lever_session([rig.lever(name) for name in names]) as held:
        held.set({names[0]: 3200.0, names[1]: 3400.0})
        held.set({names[1]: 900.0, names[0]: 850.0})
    assert passed == []
    assert rig.cpufreq.all("scaling_max_freq") == ["3000000", "1200000"]


def test_bounds_that_cross_are_refused(rig: Rig) -> None:
    """A lower bound above the upper one is refused before anything is written."""
    with lever_session([rig.lever("cpu/min_frequency")]) as held:
        with pytest.raises(ConfigError, match="would pass cpu/max_frequency=1200 MHz of policy1"):
            held.set({"cpu/min_frequency": 2000.0})
        assert rig.cpufreq.all("scaling_min_freq") == ["800000", "1000000"]


def test_value_outside_limits_reaches_nothing(rig: Rig) -> None:
    """Every value is checked before the first write: an invalid second one stops the first."""
    with lever_session([rig.lever(LIMIT), rig.lever("cpu/governor")]) as held:
        with pytest.raises(ConfigError, match="outside the device's limits, 0 to 200 W"):
            held.set({"cpu/governor": "schedutil", LIMIT: 201.0})
        with pytest.raises(ConfigError, match="not among the levers held"):
            held.set({"gpu:0/power_limit": 200.0})
        assert is_back(rig)


def test_journal_is_on_disk_before_the_device_is_touched(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Journal and directory are synced, and name the value, when the first write happens."""
    from wattloop.control import file_lever

    synced: list[str] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    seen: list[object] = []

    def write(name: str, path: Path, text: str) -> None:
        (journal,) = rig.journals()
        entry = read_journal(journal).entries[LIMIT]
        seen.append((entry.previous, entry.ours, str(rig.state) in synced, len(synced)))
        real_write(name, path, text)

    real_write = file_lever.write_file
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(file_lever, "write_file", write)
    with lever_session([rig.lever(LIMIT)], guardian=False) as held:
        held.set({LIMIT: 90.0})
        # of each of the two files: its header, its folder, its record
        assert seen == [({"": 150.0}, {"": [90.0]}, True, 6)]


def test_full_disk_sets_nothing(rig: Rig) -> None:
    """A value that cannot be journaled is not set; earlier ones are restored all the same."""
    owner = rig.start(
        f"""
import resource
from wattloop.control.journal import read_journal
from wattloop.core.errors import LeverError
with hold([lever("{LIMIT}")], guardian=False) as held:
    held.set({{"{LIMIT}": 90.0}})
    size = max(path.stat().st_size for path in held._journal.path.parent.glob("*.journal"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, size + 20))
    try:
        held.set({{"{LIMIT}": 80.0}})
    except LeverError as error:
        print(error, flush=True)
    assert lever("{LIMIT}").read() == 90.0
"""
    )
    assert "so nothing is set" in owner.first_line  # type: ignore[attr-defined]  # set by Rig.start
    assert owner.wait(120) == 0
    assert rig.limit_w() == 150
    assert rig.journals() == []


class Stubborn(Lever):
    """A lever that accepts every value and ignores it."""

    def __init__(self, real: Lever) -> None:
        self.name, self.device, self._real = real.name, real.device, real
        self.state, self.read, self.accepted = real.state, real.read, real.accepted
        self.write_text = real.write_text

    state = read = accepted = write_text = None  # type: ignore[assignment]  # taken from `real`

    def write(self, value: Setting) -> None:
        pass


def test_value_that_did_not_take_is_an_error(rig: Rig) -> None:
    """Values are read back and compared, so a device that ignores the write is detected."""
    stubborn = Stubborn(rig.lever(LIMIT))
    with lever_session([stubborn]) as held, pytest.raises(LeverError, match="did not take 90 W"):
        held.set({LIMIT: 90.0})
    assert rig.journals() == []


def test_value_that_does_not_go_back_is_reported(rig: Rig) -> None:
    """Restored values are read back too; a device that ignores them is reported, and stays in
    the journal.
    """
    lever = rig.lever(LIMIT)
    with (
        pytest.raises(LeverError, match="did not go back to 150 W: it shows 90 W"),
        lever_session([lever], guardian=False) as held,
    ):
        held.set({LIMIT: 90.0})
        lever.write = lambda value: None  # type: ignore[method-assign]  # the device ignores us
    assert len(rig.journals()) == 1


def test_rounding_by_the_device_is_no_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A register counts in eighths of a watt: the rounded value is accepted, recognised and
    restored.
    """
    from wattloop.control import file_lever

    write = file_lever.write_file

    def rounding(name: str, path: Path, text: str) -> None:
        write(name, path, str(int(text) // 125_000 * 125_000))

    monkeypatch.setattr(file_lever, "write_file", rounding)
    with lever_session([rig.lever(LIMIT)], guardian=False) as held:
        held.set({LIMIT: 99.99})
        assert rig.limit_w() == 99.875
        with pytest.raises(LeverError, match="did not take"):
            monkeypatch.setattr(file_lever, "write_file", lambda name, path, text: None)
            held.set({LIMIT: 149.95})
        monkeypatch.setattr(file_lever, "write_file", rounding)
    assert rig.limit_w() == 150


def test_value_near_the_previous_one_is_restored_too(rig: Rig) -> None:
    """A value that the device may have rounded is not taken for the previous value."""
    with applied(rig.lever(LIMIT), 149.95):
        assert rig.limit_w() == 149.95
    assert rig.limit_w() == 150


def test_previous_value_outside_limits_is_refused(rig: Rig) -> None:
    """A lever outside its limits could not be restored, so it is not set."""
    rig.put_limit_w(4095)
    with (
        pytest.raises(LeverError, match="it could not be put back"),
        lever_session([rig.lever(LIMIT)]),
    ):
        pass
    assert rig.limit_w() == 4095


def test_without_stated_maximum_nothing_above_the_present_value(rig: Rig) -> None:
    """Where the kernel states no maximum, the present value is the highest; it can be restored
    too.
    """
    (rig.package / "constraint_0_max_power_uw").unlink()
    with lever_session([rig.lever(LIMIT)]) as held:
        held.set({LIMIT: 100.0})
        held.set({LIMIT: 140.0})
        with pytest.raises(ConfigError, match="outside"):
            held.set({LIMIT: 151.0})
    assert rig.limit_w() == 150


def test_vanished_device_does_not_stop_the_others(rig: Rig) -> None:
    """One lever's files disappear: the other is restored, the failure reported, the journal
    kept.
    """
    with (
        pytest.raises(LeverError, match=r"not restored: .*is gone.*'wattloop restore --forget'"),
        lever_session([rig.lever(LIMIT), rig.lever("gpu:0/power_limit")]) as held,
    ):
        held.set({LIMIT: 90.0, "gpu:0/power_limit": 200.0})
        (rig.card.hwmon / "power1_cap").unlink()
    assert rig.limit_w() == 150
    (journal,) = rig.journals()
    assert [entry.name for entry in read_journal(journal).pending()] == ["gpu:0/power_limit"]


def test_somebody_elses_value_is_left(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that an administrator sets meanwhile stays, and is reported."""
    with applied(rig.lever(LIMIT), 90.0):
        rig.put_limit_w(111)
    assert rig.limit_w() == 111
    assert "another process has set since; it was 150 W" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("guardian", ["0", "1"])
def test_signal_restores_and_ends_as_it_would_have(
    rig: Rig, number: signal.Signals, guardian: str
) -> None:
    """The owner restores by itself, without a watchdog, and then dies of the signal."""
    owner = rig.start(SLEEPER, WATTLOOP_GUARDIAN=guardian)
    owner.send_signal(number)
    owner.wait(120)
    assert is_back(rig)
    assert rig.journals() == []
    assert owner.returncode == -number


def test_signal_restores_every_hold_of_the_process(rig: Rig) -> None:
    """Two sessions on different devices, without a watchdog: both are restored."""
    owner = rig.start(
        f"""
with hold([lever("{LIMIT}")]) as first, hold([lever("cpu/governor")]) as second:
    first.set({{"{LIMIT}": 90.0}})
    second.set({{"cpu/governor": "schedutil"}})
    print("ready", flush=True)
    time.sleep(60)
""",
        WATTLOOP_GUARDIAN="0",
    )
    assert not is_back(rig)
    owner.terminate()
    assert owner.wait(120) == -signal.SIGTERM
    assert is_back(rig)
    assert rig.journals() == []


def test_own_handler_of_the_program_is_left_to_it(rig: Rig) -> None:
    """The program's own SIGTERM handler stays; levers are restored when the block ends."""
    owner = rig.start(
        f"""
import signal
def mine(number, frame):
    raise SystemExit(7)
signal.signal(signal.SIGTERM, mine)
with hold([lever("{LIMIT}")]) as held:
    held.set({{"{LIMIT}": 90.0}})
    assert signal.getsignal(signal.SIGTERM) is mine
    print("ready", flush=True)
    time.sleep(60)
"""
    )
    owner.terminate()
    assert owner.wait(120) == 7
    assert rig.limit_w() == 150


def test_exit_inside_the_block_restores(rig: Rig) -> None:
    """A session that is not closed is closed at exit."""
    owner = rig.start(
        f"""
held = hold([lever("{LIMIT}")], guardian=False).__enter__()
held.set({{"{LIMIT}": 90.0}})
print("ready", flush=True)
"""
    )
    assert owner.wait(120) == 0
    assert rig.limit_w() == 150
    assert rig.journals() == []


def test_hold_in_a_thread(rig: Rig) -> None:
    """Outside the main thread no handler can be installed, but the session works."""
    seen: list[float] = []

    def work() -> None:
        with applied(rig.lever(LIMIT), 90.0):
            seen.append(rig.limit_w())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [90]
    assert rig.limit_w() == 150


def test_handlers_are_as_before(rig: Rig) -> None:
    """After the block the program's signal handlers are the earlier ones."""
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    with applied(rig.lever(LIMIT), 90.0):
        pass
    assert before == [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]


def test_ctrl_c_while_restoring_waits_for_the_end(rig: Rig) -> None:
    """KeyboardInterrupt during the restore does not leave half of it undone."""
    limit, governor = rig.lever(LIMIT), rig.lever("cpu/governor")
    real = governor.write_part
    times = []

    def interrupted(part: str, value: Setting) -> None:
        times.append(part)
        if len(times) == 1:
            raise KeyboardInterrupt
        real(part, value)

    with pytest.raises(KeyboardInterrupt), lever_session([governor, limit]) as held:
        held.set({LIMIT: 90.0, "cpu/governor": "schedutil"})
        governor.write_part = interrupted  # type: ignore[method-assign]  # the interruption
    assert is_back(rig)
    assert rig.journals() == []


def test_dry_run_writes_nothing_and_shows_everything(rig: Rig) -> None:
    """Every write is listed, also those of the restore; no file, lock or journal changes."""
    with lever_session([rig.lever(LIMIT), rig.lever("cpu/governor")], dry_run=True) as held:
        held.set({LIMIT: 90.0, "cpu/governor": "schedutil"})
        with pytest.raises(ConfigError):
            held.set({LIMIT: 500.0})
    root = rig.folder / "sys"
    governor = root / "devices/system/cpu/cpufreq/policy{}/scaling_governor"
    limit = root / "class/powercap/intel-rapl:0/constraint_0_power_limit_uw"
    assert held.writes == [
        f"write 90000000 to {limit}",
        f"write schedutil to {str(governor).format(0)}",
        f"write schedutil to {str(governor).format(1)}",
        f"write 150000000 to {limit}",
        f"write powersave to {str(governor).format(0)}",
        f"write performance to {str(governor).format(1)}",
    ]
    assert is_back(rig)
    assert not rig.state.exists()


def test_restore_and_continue(rig: Rig) -> None:
    """A sweep restores the previous values between points without releasing the device."""
    with lever_session([rig.lever(LIMIT), rig.lever("cpu/governor")]) as held:
        held.set({LIMIT: 90.0, "cpu/governor": "schedutil"})
        held.restore(LIMIT)
        assert rig.limit_w() == 150
        assert rig.cpufreq.all("scaling_governor") == ["schedutil", "schedutil"]
        held.restore()
        assert is_back(rig)
        held.set({LIMIT: 95.0})
        assert rig.limit_w() == 95
    assert is_back(rig)


def test_two_holds_of_one_device(rig: Rig) -> None:
    """The second one is refused at once, with this process named as the owner."""
    with (
        lever_session([rig.lever("cpu/governor")]),
        pytest.raises(DeviceBusy, match="already held by this process"),
        lever_session([rig.lever("cpu/max_frequency")]),
    ):
        pass
    with lever_session([rig.lever("cpu/governor")]), lever_session([rig.lever(LIMIT)]):
        pass


def test_forked_child_neither_sets_nor_restores(rig: Rig) -> None:
    """A child that leaves the block restores nothing; its parent still has the levers."""
    with applied(rig.lever(LIMIT), 90.0) as held:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                held.set({LIMIT: 50.0})
            except LeverError:
                held.release()
                code = 0
            os._exit(code)
        _, status = os.waitpid(child, 0)
        assert status == 0
        assert rig.limit_w() == 90
        assert len(rig.journals()) == 1
    assert rig.limit_w() == 150


def test_child_forked_while_another_thread_sets_does_not_wait(rig: Rig) -> None:
    """The lock that another thread had is never released in the child."""
    limit = rig.lever(LIMIT)
    write, inside, go_on = limit.write, threading.Event(), threading.Event()

    def slow(value: Setting) -> None:
        inside.set()
        go_on.wait(120)
        write(value)

    with lever_session([limit], guardian=False) as held:
        limit.write = slow  # type: ignore[method-assign]  # a driver that takes its time
        thread = threading.Thread(target=held.set, args=({LIMIT: 90.0},))
        thread.start()
        inside.wait(120)
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            os._exit(len(held.release()))
        go_on.set()
        assert os.waitpid(child, 0)[1] == 0
        thread.join()
        assert rig.limit_w() == 90
    assert rig.limit_w() == 150


def test_hold_entered_twice_is_refused_and_harms_nothing(rig: Rig) -> None:
    """The second `with` fails; the first one's settings are restored when it ends."""
    with lever_session([rig.lever(LIMIT)], guardian=False) as held:
        held.set({LIMIT: 90.0})
        with pytest.raises(LeverError, match="entered once"), held:
            pass
        assert len(rig.journals()) == 1
    assert rig.limit_w() == 150


def test_nvidia_levers_are_held_together(rig: Rig, stub: StubNvml) -> None:
    """Power limit and both clocks of a card and a file lever are all restored afterwards."""
    names = ["gpu:0/power_limit", "gpu:0/sm_clock", "gpu:0/memory_clock", "gpu:1/power_limit"]
    with lever_session([rig.lever(name) for name in [*names, LIMIT]]) as held:
        held.set({names[0]: 300.0, names[1]: 1000.0, names[3]: 250.0, LIMIT: 90.0})
        assert [rig.lever(name).read() for name in (names[0], names[3])] == [300.0, 250.0]
        assert "nvmlDeviceSetGpuLockedClocks(gpu:0, 1005 MHz, 1005 MHz)" in held.writes
    assert [rig.lever(name).read() for name in (names[0], names[3])] == [700.0, 700.0]
    assert rig.limit_w() == 150


def test_lost_gpu_does_not_stop_the_others(rig: Rig, stub: StubNvml) -> None:
    """A card that falls off the bus stays in the journal; the other card is restored."""
    names = ["gpu:0/power_limit", "gpu:1/power_limit"]
    with (
        pytest.raises(LeverError, match="fallen off the bus"),
        lever_session([rig.lever(name) for name in names]) as held,
    ):
        held.set(dict.fromkeys(names, 300.0))
        stub.inject(0, "lost")
    assert rig.lever(names[1]).read() == 700.0
    assert len(rig.journals()) == 1
    stub.inject(0, "heal")
    with lever_session([rig.lever(names[0])]) as again:
        assert again.previous == {names[0]: 700.0}, "the leftover is restored before the snapshot"
    assert rig.journals() == []


def test_permission_denied_by_the_driver(rig: Rig, stub: StubNvml) -> None:
    """The driver's refusal says which user may set it, and no setting stays."""
    stub.inject(0, "forbidden", calls=Call.SET)
    name = "gpu:0/power_limit"
    refusal = "permission denied; run as root, or let an administrator set it with .*nvidia-smi -pl"
    with pytest.raises(LeverError, match=refusal), lever_session([rig.lever(name)]) as held:
        held.set({name: 300.0})
    assert eventually(lambda: rig.journals() == [])


def test_no_permission_is_said_before_anything_is_locked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without write permission is told the command that would grant it."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LeverError, match=r"cannot be set: .*writable by root only; run as root"):
        lever_session([rig.lever(LIMIT)]).__enter__()
    assert not rig.state.exists()
