"""Promises of the stub's setters through the real nvidia-ml-py, also while cards are broken."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.nvml_stub import Call, CardSettings, StubCards, StubNvml

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

SETTERS = {
    "limit": lambda h: pynvml.nvmlDeviceSetPowerManagementLimit(h, 300_000),
    "clock": lambda h: pynvml.nvmlDeviceSetGpuLockedClocks(h, 345, 990),
    "memory": lambda h: pynvml.nvmlDeviceSetMemoryLockedClocks(h, 1593, 1593),
    "reset clock": pynvml.nvmlDeviceResetGpuLockedClocks,
    "reset memory": pynvml.nvmlDeviceResetMemoryLockedClocks,
}
UNTOUCHED = CardSettings(700, None, None)


@pytest.fixture
def handle(stub):
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def test_every_setter_acts_on_its_card_only(stub, handle):
    """Each card has its own limit and locks, and a reset releases the clocks."""
    for name in ("limit", "clock", "memory"):
        SETTERS[name](handle)
    assert stub.settings(0) == CardSettings(300, (345, 990), (1593, 1593))
    assert stub.settings(1) == UNTOUCHED
    assert pynvml.nvmlDeviceGetPowerManagementLimit(handle) == 300_000
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 300_000
    assert pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) == 700_000
    pynvml.nvmlDeviceResetGpuLockedClocks(handle)
    pynvml.nvmlDeviceResetMemoryLockedClocks(handle)
    assert stub.settings(0) == CardSettings(300, None, None)


def test_settings_of_a_killed_process_stay(stub, handle):
    """As on hardware, kill -9 of the setting process restores nothing."""
    code = (
        "import pynvml as n, time; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0);"
        "n.nvmlDeviceSetPowerManagementLimit(h, 250000);"
        "n.nvmlDeviceSetGpuLockedClocks(h, 600, 600);"
        "print(flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    assert stub.settings(0) == CardSettings(250, (600, 600), None)
    assert pynvml.nvmlDeviceGetPowerManagementLimit(handle) == 250_000


def test_killed_in_the_middle_of_a_setter_the_card_has_the_old_or_the_new_value(folder):
    """There is never a third value, and the card is not left locked for others."""
    code = (
        "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0);print(flush=True)\n"
        "while True: n.nvmlDeviceSetPowerManagementLimit(h, 250000);"
        "n.nvmlDeviceSetPowerManagementLimit(h, 500000)"
    )
    with StubNvml(folder, set_cost_s=0.002) as stub:
        for wait_s in (0.001, 0.0033, 0.0052):
            child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
            child.stdout.readline()
            time.sleep(wait_s)
            child.kill()
            child.communicate()
            assert stub.settings(0).limit_w in (700, 250, 500)
            stub.constant(0, 300)  # takes the lock


def test_supported_clocks_are_what_setters_accept(stub, handle):
    """Every listed clock can be locked; a clock outside the range is refused without a change."""
    memory = pynvml.nvmlDeviceGetSupportedMemoryClocks(handle)
    graphics = pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory[0])
    assert memory == sorted(memory, reverse=True)
    assert (graphics[0], graphics[-1]) == (1980, 345)
    for mhz in memory:
        pynvml.nvmlDeviceSetMemoryLockedClocks(handle, mhz, mhz)
    for mhz in graphics:
        pynvml.nvmlDeviceSetGpuLockedClocks(handle, mhz, mhz)
    before = stub.settings(0)
    for act in (
        lambda: pynvml.nvmlDeviceSetGpuLockedClocks(handle, 345, 1981),
        lambda: pynvml.nvmlDeviceSetGpuLockedClocks(handle, 1000, 900),
        lambda: pynvml.nvmlDeviceSetGpuLockedClocks(handle, 100, 100),
        lambda: pynvml.nvmlDeviceSetMemoryLockedClocks(handle, 3202, 3202),
        lambda: pynvml.nvmlDeviceSetMemoryLockedClocks(handle, 300, 300),
        lambda: pynvml.nvmlDeviceSetPowerManagementLimit(handle, 199_999),
        lambda: pynvml.nvmlDeviceSetPowerManagementLimit(handle, 700_001),
    ):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            act()
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, 1234)
    assert stub.settings(0) == before


def test_every_card_is_found_by_its_uuid(stub):
    """A restore after a restart finds the card again, whatever its number."""
    uuids = {pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in (0, 1)}
    assert len(uuids) == 2
    for uuid in uuids:
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid


@pytest.mark.parametrize("name", ["limit", "clock", "memory"])
def test_power_and_speed_fall_with_every_setting(stub, handle, name):
    """A loaded card under a cap or a lower clock draws less and works slower."""
    stub.set_load(0, 1.0)
    now_s = time.monotonic()
    before_w, before = stub.true_power_w(0, now_s), stub.speed(0, now_s)
    SETTERS[name](handle)
    now_s = time.monotonic()
    assert stub.true_power_w(0, now_s) < 0.95 * before_w
    assert stub.speed(0, now_s) < 0.95 * before == pytest.approx(0.95)
    assert stub.speed(1, now_s) == 0, "the other card is idle"


def test_a_cap_can_be_exceeded_as_on_real_cards(folder):
    """With an overshoot of 21%, as measured on an A40, power settles 21% above the cap."""
    with StubNvml(folder, cap_overshoot=0.21) as stub:
        pynvml.nvmlInit()
        SETTERS["limit"](pynvml.nvmlDeviceGetHandleByIndex(0))
        stub.set_load(0, 1.0)
        assert stub.true_power_w(0, time.monotonic()) == pytest.approx(363)
        pynvml.nvmlShutdown()


def test_the_reason_for_a_low_clock_is_reported(stub, handle):
    """Idle, locked or capped, as NVML's event reasons say."""

    def reasons():
        time.sleep(0.11)  # readings change once per sensor period
        return pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)

    assert reasons() == pynvml.nvmlClocksThrottleReasonGpuIdle
    stub.set_load(0, 1.0)
    SETTERS["limit"](handle)
    assert reasons() == pynvml.nvmlClocksThrottleReasonSwPowerCap
    SETTERS["clock"](handle)
    assert reasons() == pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting


@pytest.mark.parametrize("name", SETTERS)
@pytest.mark.parametrize(
    "fault, options, error",
    [
        ("lost", {}, pynvml.NVMLError_GpuIsLost),
        ("no_permission", {}, pynvml.NVMLError_NoPermission),
        ("forbidden", {"calls": Call.SET}, pynvml.NVMLError_NoPermission),
        ("unsupported", {"calls": Call.SET}, pynvml.NVMLError_NotSupported),
        ("unknown_error", {"probability": 1.0}, pynvml.NVMLError_Unknown),
        ("no_effect", {"calls": Call.SET}, None),
    ],
)
def test_a_broken_card_refuses_or_ignores_and_changes_nothing(
    stub, handle, name, fault, options, error
):
    """Every setter meets every fault; the other card works, and repairing ends the fault."""
    stub.inject(0, fault, **options)
    if error is None:
        SETTERS[name](handle)
    else:
        with pytest.raises(error):
            SETTERS[name](handle)
    assert stub.settings(0) == UNTOUCHED
    SETTERS["limit"](pynvml.nvmlDeviceGetHandleByIndex(1))
    assert stub.settings(1).limit_w == 300
    stub.inject(0, "heal")
    SETTERS["limit"](handle)
    assert stub.settings(0).limit_w == 300


def test_one_lever_can_be_missing(stub, handle):
    """Most cards cannot lock the memory clock, but have all other levers."""
    stub.inject(0, "unsupported", calls=Call.SET_MEMORY_CLOCK)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        SETTERS["memory"](handle)
    SETTERS["limit"](handle)
    SETTERS["clock"](handle)
    assert stub.settings(0) == CardSettings(300, (345, 990), None)


def test_another_process_breaks_and_heals_a_card_in_use(stub, handle):
    """Faults are part of the shared state, so the process that uses the card need not restart."""
    code = (
        "from tests.support.nvml_stub import StubCards;"
        "StubCards().inject(0, 'lost'); StubCards().set_load(1, 1.0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetPowerUsage(handle)
    assert stub.true_power_w(1, time.monotonic()) == pytest.approx(700)
    StubCards().inject(0, "heal")
    assert pynvml.nvmlDeviceGetPowerUsage(handle) > 0


def test_unknown_errors_are_one_stream_for_all_processes(stub, handle):
    """New processes do not repeat the same random sequence."""
    stub.inject(0, "unknown_error", probability=0.5)
    code = (
        "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"
        "for _ in range(16):\n"
        "    try: n.nvmlDeviceGetPowerUsage(h); print(1, end='')\n"
        "    except n.NVMLError_Unknown: print(0, end='')"
    )
    seen = {subprocess.check_output([sys.executable, "-c", code]) for _ in range(3)}
    assert len(seen) == 3


def test_a_job_on_the_stub_takes_longer_under_a_cap(stub, handle):
    """Work is speed times time, so the job does the same work with and without the cap."""
    pynvml.nvmlDeviceSetPowerManagementLimit(handle, 200_000)
    stub.set_load(0, 1.0)
    speed = stub.speed(0, time.monotonic())
    command = [sys.executable, "-m", "tests.support.nvml_stub.work", "--seconds", "0.1"]
    begin = stub.gpu(0).segment_count
    subprocess.run(command, check=True)
    segments = stub.gpu(0).segments
    busy_s = segments[begin + 1].start_s - segments[begin].start_s
    assert busy_s >= 0.1 / speed
    assert stub.true_power_w(0, time.monotonic()) == pytest.approx(75), "left idle"
