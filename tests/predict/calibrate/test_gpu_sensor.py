"""Promises of the sensor that reads during the work, through nvidia-ml-py and the stub library."""

import itertools
import sys
import time
from collections.abc import Callable

import pytest

from tests.support.nvml_stub import Call, NoCompiler, StubNvml
from wattloop.core.records import DomainKind
from wattloop.hardware.host import Host
from wattloop.meters import amd_gpu
from wattloop.meters.base import Context
from wattloop.predict.calibrate.collection import hold
from wattloop.predict.calibrate.gpu_sensor import MeterGpuSensor, NvmlGpuSensor, SensorSampler

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    try:
        with StubNvml(tmp_path_factory.mktemp("nvml"), gpus=1) as stub:
            yield stub
    except NoCompiler as reason:
        pytest.skip(str(reason))


def test_power_is_energy_between_two_changes_of_the_counter(stub):
    """The counter stands still for 100 ms at a time, so edges in between would be off by a
    fifth.
    """
    stub.constant(0, 320)
    sensor = NvmlGpuSensor(0)
    time.sleep(0.15)
    with SensorSampler(sensor) as watch:
        begin_s = time.perf_counter()
        time.sleep(0.55)
        wait_until(lambda: len({s.energy_j for s in watch._samples}) > 5)
        end_s = time.perf_counter()
        drawn = watch.drawn(begin_s, end_s)
    sensor.close()
    # A change is seen at the first sample after it, which on a busy machine comes late.
    late_s = max(b.time_s - a.time_s for a, b in itertools.pairwise(watch._samples))
    assert drawn.power_w == pytest.approx(320, rel=0.02 + 2 * late_s / drawn.window_s)
    assert drawn.window_s < end_s - begin_s
    assert drawn.clock_mhz > 0


def test_a_window_without_a_change_has_no_power(stub):
    """A missing value is not zero."""
    sensor = NvmlGpuSensor(0)
    with SensorSampler(sensor) as watch:
        drawn = watch.drawn(time.perf_counter(), time.perf_counter() + 1e-4)
    sensor.close()
    assert drawn.power_w is None


def test_without_nvml_there_is_a_reason(monkeypatch):
    """The reason for the missing power is given."""
    monkeypatch.setenv("WATTLOOP_NVML_LIBRARY", "/nowhere/libnvidia-ml.so.1")
    sensor = NvmlGpuSensor(0)
    assert "cannot be loaded" in sensor.reason
    assert sensor.power_w() is None
    sensor.close()


@pytest.mark.parametrize(("fault", "told"), [("mig", "split by MIG"), ("vgpu", "is a vGPU")])
def test_a_part_of_a_gpu_is_told_before_anything_runs(stub, fault, told):
    """The sensor of the whole card would count the neighbours' work too."""
    stub.inject(0, fault)
    try:
        sensor = NvmlGpuSensor(0)
        assert told in sensor.reason
        assert sensor.power_w() is None
        sensor.close()
    finally:
        stub.inject(0, "heal")


def test_a_gpu_without_a_power_reading_is_told_at_once(stub):
    """The reason comes at the start, not after the minutes of the measurement."""
    stub.inject(0, "unsupported", calls=Call.POWER)
    try:
        sensor = NvmlGpuSensor(0)
        assert "does not support" in sensor.reason
        sensor.close()
    finally:
        stub.inject(0, "heal")


def test_power_of_another_gpu_is_never_taken(stub, monkeypatch):
    """torch's GPU 0 may be NVML's GPU 1: only the identifier decides."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    stub.state.gpu_count = 2
    stub.gpu(1).averaging_s = 0
    stub.constant(1, 500)
    try:
        time.sleep(0.15)
        named = NvmlGpuSensor(0, "00000000-0000-0000-0000-000000000001")
        assert named.power_w() == pytest.approx(500, rel=0.1)
        for unknown in (NvmlGpuSensor(0), NvmlGpuSensor(0, "11111111-0000-0000-0000-000000000000")):
            assert unknown.power_w() is None
            assert "CUDA_VISIBLE_DEVICES" in unknown.reason
            unknown.close()
        named.close()
    finally:
        stub.state.gpu_count = 1


def test_the_work_of_others_is_seen(stub):
    """A GPU that another program uses is refused by this figure."""
    stub.set_load(0, 0.8)
    sensor = NvmlGpuSensor(0)
    time.sleep(0.15)
    assert sensor.busy_share() == pytest.approx(0.8, abs=0.02)
    sensor.close()
    stub.set_load(0, 0.0)


def test_a_held_kernel_has_its_power_and_rate(stub):
    """The result has the power while a kernel repeats, and the number of repeats."""
    pytest.importorskip("torch", reason="the suite measures torch")
    from wattloop.predict.calibrate.machine import open_device

    stub.constant(0, 250)
    before = stub.settings(0)
    sensor = NvmlGpuSensor(0)
    time.sleep(0.15)
    held = hold(open_device("cpu"), [lambda: time.sleep(0.002)], sensor, settle_s=0.1, window_s=2.0)
    sensor.close()
    assert held["power_w"] == pytest.approx(250, rel=0.15)
    assert held["seconds"] >= 0.002
    assert stub.settings(0) == before  # nothing is ever set


def wait_until(happened: Callable[[], bool]) -> None:
    """Poll with a limit that no busy machine exceeds."""
    give_up_s = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < give_up_s, "it did not happen"
        time.sleep(0.01)


def _amd_meters(root, monkeypatch, watts):
    """Return meters of cards with these powers, through the driver's files."""
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    for number, power_w in enumerate(watts):
        device = root / f"class/drm/card{number:02}/device"  # cards go by address
        (device / "hwmon/hwmon1").mkdir(parents=True)
        for name, text in {
            "vendor": "0x1002",
            "hwmon/hwmon1/power1_average": f"{power_w}000000",
            "hwmon/hwmon1/freq1_input": "1700000000",
        }.items():
            (device / name).write_text(text + "\n")
    return amd_gpu.detect(Context(host=Host(sysfs=root, procfs=root / "proc")))


def test_many_cards_are_counted_and_hidden_ones_are_not_guessed(tmp_path, monkeypatch):
    """Card 10 comes after card 2; where torch's numbers differ, power is missing."""
    meters = _amd_meters(tmp_path, monkeypatch, range(100, 112))
    sensor = MeterGpuSensor(meters, 2)
    assert sensor.power_w() == 102
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "5")
    hidden = MeterGpuSensor(meters, 0)
    assert hidden.power_w() is None
    assert "unset HIP_VISIBLE_DEVICES" in hidden.reason
    sensor.close()


def test_a_card_of_another_maker_is_read_through_its_meter(tmp_path, monkeypatch):
    """A gauge without a counter gives its mean power; other values are missing."""
    meters = _amd_meters(tmp_path, monkeypatch, [213])
    assert {d.kind for meter in meters for d in meter.domains} == {DomainKind.GAUGE}
    sensor = MeterGpuSensor(meters)
    with SensorSampler(sensor) as watch:
        begin_s = time.perf_counter()
        wait_until(lambda: len(watch._samples) > 2)
        drawn = watch.drawn(begin_s, time.perf_counter())
    assert (drawn.power_w, drawn.clock_mhz, drawn.temp_c) == (213.0, 1700.0, None)
    assert "GPU 3 is not among" in MeterGpuSensor(meters, 3).reason
    sensor.close()
