"""Promises of the stub: its true energy is right, since every accuracy test relies on it."""

import ctypes
import itertools
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.nvml_stub import StubNvml, build

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")


WAVES = {
    "constant": lambda stub: stub.constant(0, 300),
    "step": lambda stub: stub.step(0, 100, 500, after_s=0.7),
    "ramp": lambda stub: stub.ramp(0, 100, 690, over_s=1.3),
    "falling": lambda stub: stub.ramp(0, 690, 100, over_s=1.3),
    "square": lambda stub: stub.square(0, 100, 600, period_s=0.1, duty=0.3),
    "spikes": lambda stub: stub.spikes(0, 100, 650, period_s=0.25, width_s=0.02),
}


@pytest.mark.parametrize("limit_w", [700, 300])
@pytest.mark.parametrize("wave", WAVES)
def test_true_energy_is_the_integral_of_true_power(stub, wave, limit_w):
    """The analytic energy equals a fine sum of power, for every waveform, capped or not."""
    pynvml.nvmlDeviceSetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByIndex(0), limit_w * 1000)
    WAVES[wave](stub)
    begin_s = time.monotonic() + 0.037
    # Not a multiple of any period, so that errors within one do not cancel.
    steps, step_s = 20_000, 0.93e-4
    total_j = sum(stub.true_power_w(0, begin_s + (k + 0.5) * step_s) * step_s for k in range(steps))
    truth_j = stub.true_energy_j(0, begin_s, begin_s + steps * step_s)
    assert truth_j == pytest.approx(total_j, rel=1e-3)
    assert truth_j <= limit_w * steps * step_s * (1 + 1e-9)


def test_a_change_of_load_keeps_the_energy_already_spent(stub):
    """A change of load does not alter the energy before it."""
    stub.constant(0, 600)
    begin_s = time.monotonic()
    time.sleep(0.05)
    end_s = time.monotonic()
    before_j = stub.true_energy_j(0, begin_s, end_s)
    stub.constant(0, 100)
    assert stub.true_energy_j(0, begin_s, end_s) == pytest.approx(before_j)
    assert before_j == pytest.approx(600 * (end_s - begin_s))


def test_counter_moves_only_at_sensor_ticks_and_by_the_true_energy(stub):
    """The counter is constant for 100 ms and then jumps by the energy really used."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    stub.constant(0, 400)
    values: set[int] = set()
    begin_s = time.monotonic()
    while len(values) < 6:
        values.add(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        time.sleep(0.002)
    ordered = sorted(values)
    assert time.monotonic() - begin_s > 0.4, "at most one value per 100 ms"
    steps_j = [(b - a) / 1000 for a, b in itertools.pairwise(ordered[1:])]
    # On a busy machine a value may be missed: the next step is then a multiple.
    assert all(step == pytest.approx(40 * max(1, round(step / 40)), abs=0.01) for step in steps_j)


def test_plain_power_lags_by_a_second_and_the_instant_field_does_not(stub):
    """As on Hopper: GetPowerUsage is a mean of one second, field 186 follows at once."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    begin_s = time.monotonic()
    stub.constant(0, 600)
    time.sleep(0.25)
    instant_w = pynvml.nvmlDeviceGetFieldValues(handle, [186])[0].value.uiVal / 1000
    averaged_w = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
    assert instant_w == pytest.approx(600)
    share = min(1.0, time.monotonic() - begin_s)  # of the past second, that is at 600 W
    assert 75 < averaged_w <= 75 + 525 * share + 1


def test_power_limit_lowers_power_and_clock_and_is_seen_by_other_processes(stub):
    """One card for all processes: a limit set by a child acts here."""
    stub.set_load(0, 1.0)
    code = (
        "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0);"
        "n.nvmlDeviceSetPowerManagementLimit(h, 300000); n.nvmlShutdown()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 300_000
    assert stub.true_power_w(0, time.monotonic()) == pytest.approx(300)
    time.sleep(0.11)
    assert pynvml.nvmlDeviceGetClockInfo(handle, 1) < 1980


def test_values_outside_the_cards_range_are_refused(stub):
    """The card's own limits hold, as on real ones."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    low_mw, high_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    for limit_mw in (low_mw - 1, high_mw + 1):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceSetPowerManagementLimit(handle, limit_mw)
    pynvml.nvmlDeviceSetGpuLockedClocks(handle, 345, 1000)
    stub.set_load(0, 0.8)
    assert stub.true_power_w(0, time.monotonic()) < 75 + 0.2 * 500
    pynvml.nvmlDeviceResetGpuLockedClocks(handle)
    assert stub.true_power_w(0, time.monotonic()) == pytest.approx(575)


def test_unknown_errors_come_at_the_requested_rate(stub):
    """A rate of 3% gives about 3% lost reads."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    stub.inject(0, "unknown_error", probability=0.03)
    errors = 0
    for _ in range(3_000):
        try:
            pynvml.nvmlDeviceGetPowerUsage(handle)
        except pynvml.NVMLError_Unknown:
            errors += 1
    assert 45 <= errors <= 140


def test_a_plain_import_of_pynvml_finds_the_stub(folder):
    """Other tools, without knowledge of the stub, read it too: in-process and as children."""
    with StubNvml(folder, gpus=3) as stub:
        code = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"
        out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        assert out.stdout.split() == [b"3"]
        preload = f"import ctypes; ctypes.CDLL({str(stub.library_path)!r});" + code
        environment = {**stub.environment, "LD_LIBRARY_PATH": ""}
        out = subprocess.run(
            [sys.executable, "-c", preload], check=True, capture_output=True, env=environment
        )
        assert out.stdout.split() == [b"3"], "dlopen by soname returns the loaded library"
    assert not Path(stub.state_path).exists()


def test_only_functions_of_nvml_are_exported(folder):
    """Names that the stub's files share are plain ones, which a program may use too."""
    library = ctypes.CDLL(str(build(folder)))
    assert hasattr(library, "nvmlInit_v2")
    plain = ("now_s", "fault", "shared", "uniform", "change")
    assert [name for name in plain if hasattr(library, name)] == []
