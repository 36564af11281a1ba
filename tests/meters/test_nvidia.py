"""Promises of NVIDIA meters, through the real nvidia-ml-py and the stub library."""

import os
import time

import pytest
from tests.support.nvml_stub import Call, NoCompiler, StubNvml

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import DomainKind, Gap
from wattloop.hardware.host import Host
from wattloop.meters import nvidia
from wattloop.meters.base import Context
from wattloop.testing.meter_contract import check_meter

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    try:
        StubNvml(folder)
    except NoCompiler as reason:
        pytest.skip(str(reason))
    return folder


@pytest.fixture
def stub(folder):
    with StubNvml(folder, gpus=2) as stub:
        yield stub


@pytest.fixture
def detect(stub):
    opened = []

    def detected():
        meters = nvidia.detect(Context())
        opened.extend(meters)
        # Every card has a counter meter of its own; tests check the first one's.
        return {meter.name: meter for meter in reversed(meters)}

    yield detected
    for meter in opened:
        meter.close()


@pytest.mark.parametrize("name", ["nvml-power", "nvml-energy"])
def test_both_meters_keep_the_contract(detect, name):
    """Both meters of a GPU keep the contract of every meter."""
    check_meter(lambda: detect()[name])


def test_meters_keep_the_contract_with_lost_reads(stub, detect):
    """Three in a hundred reads fail; the contract still holds."""
    stub.inject(0, "unknown_error", probability=0.03)
    check_meter(lambda: detect()["nvml-power"], faulty=True)


def test_counter_difference_is_the_true_energy(stub, detect):
    """Over whole sensor periods the counter gives the true energy within its resolution."""
    meter = detect()["nvml-energy"]
    stub.square(0, 100, 600, period_s=0.05)
    time.sleep(0.1)
    begin_j, begin_s = _at_tick(meter)
    time.sleep(0.35)
    end_j, end_s = _at_tick(meter)
    assert end_j - begin_j == pytest.approx(stub.true_energy_j(0, begin_s, end_s), abs=0.01)


def test_power_follows_the_load_at_once(stub, detect):
    """The instantaneous field is used where the driver has it, not the one-second mean."""
    meter = detect()["nvml-power"]
    assert meter.domains[0].averaging_s == 0
    stub.constant(0, 600)
    time.sleep(0.25)
    assert meter.read()[0] == pytest.approx(600)


def test_without_the_instant_field_the_averaging_is_declared(stub, detect):
    """Hopper's plain power is a mean of one second, and code that integrates it must know."""
    stub.inject(0, "unsupported", calls=Call.INSTANT)
    domain = detect()["nvml-power"].domains[0]
    assert domain.averaging_s == 1.0
    assert domain.source == "NVML power"


def test_ga100_and_older_do_not_average(folder):
    """NVML's manual: only Ampere other than GA100, and later, average over a second."""
    old = {"unsupported_calls": float(Call.INSTANT | Call.ENERGY), "averaging_s": 0.0}
    for capability, period_s in (((8, 0), 0.1), ((6, 0), 0.05)):
        major, minor = capability
        with StubNvml(folder, compute_major=major, compute_minor=minor, **old):
            (meter,) = nvidia.detect(Context())
            assert meter.domains[0].averaging_s == 0
            assert meter.domains[0].update_period_s == period_s
            assert meter.domains[0].kind is DomainKind.GAUGE
            meter.close()


def test_declared_costs_and_periods_are_the_measured_ones(detect):
    """The counter is declared expensive, so windows do not read it at their edges."""
    meters = detect()
    energy, power = meters["nvml-energy"].domains[0], meters["nvml-power"].domains[0]
    assert (energy.name, power.name) == ("gpu:0", "gpu:0")
    assert energy.read_cost_s >= 0.003 > 50 * power.read_cost_s
    assert energy.update_period_s == power.update_period_s == 0.1


def test_power_limit_is_the_tdp_and_says_when_lowered(stub, detect):
    """Efficiency is judged against the enforced limit."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    pynvml.nvmlDeviceSetPowerManagementLimit(handle, 300_000)
    pynvml.nvmlShutdown()
    full, capped = detect()["nvml-power"].domains
    assert (full.tdp_w, full.tdp_note) == (700, "power limit 700 W")
    assert capped.tdp_w == 300
    assert capped.tdp_note == "enforced power limit 300 W of 700 W default"


def test_signals_in_the_promised_units(stub, detect):
    """Utilisation is a fraction, memory bytes, clocks MHz."""
    stub.set_load(1, 0.6)
    time.sleep(0.11)
    meter = detect()["nvml-power"]
    values = dict(zip((s.name for s in meter.signals), meter.read_signals(), strict=True))
    assert values["gpu:1/utilisation"] == pytest.approx(0.6)
    assert values["gpu:1/memory_used"] == 2e9
    assert values["gpu:1/power_limit"] == 700
    assert values["gpu:1/sm_clock"] == 1980
    assert values["gpu:0/utilisation"] == 0
    assert 20 < values["gpu:0/temperature"] < 80


def test_unsupported_signals_are_left_out(stub, detect):
    """A signal that the card lacks is not offered."""
    stub.inject(0, "unsupported", calls=Call.UTILISATION)
    names = {signal.name for signal in detect()["nvml-power"].signals}
    assert "gpu:0/utilisation" not in names
    assert {"gpu:0/sm_clock", "gpu:1/utilisation"} <= names


@pytest.mark.parametrize("fault, words", [("vgpu", "vGPU"), ("lost", "fallen off")])
def test_a_bad_card_is_named_and_does_not_hide_the_good_one(stub, detect, fault, words):
    """One unmeasurable card among others is reported once, with its reason."""
    stub.inject(0, fault)
    meters = detect().values()
    assert [[d.name for d in meter.domains] for meter in meters] == [["gpu:1"], ["gpu:1"]]
    (missing,) = [missing for meter in meters for missing in meter.refused]
    assert missing.name == "gpu:0"
    assert words in missing.reason
    assert missing.remedy


def test_passthrough_is_measurable(stub, detect):
    """A whole card given to a virtual machine reads like any other."""
    stub.gpu(0).virtualization_mode = 1
    assert [d.name for d in detect()["nvml-power"].domains] == ["gpu:0", "gpu:1"]


def test_only_bad_cards_is_a_refusal_with_all_their_names(stub):
    """The refusal has the reasons and the missing parts, instead of an empty meter."""
    for gpu in (0, 1):
        stub.inject(gpu, "vgpu")
    with pytest.raises(MeterUnavailable, match="vGPU") as refusal:
        nvidia.detect(Context())
    assert refusal.value.parts == ("gpu:0", "gpu:1")


def test_a_card_without_any_reading_is_refused(stub, detect):
    """No counter and no power: absent with a reason, never 0 J."""
    stub.gpu(0).name = b"NVIDIA Toaster"
    stub.inject(0, "unsupported", calls=Call.POWER | Call.INSTANT | Call.ENERGY)
    (missing,) = detect()["nvml-power"].refused
    assert "neither" in missing.reason


@pytest.mark.parametrize(
    "code, words", [(9, "not loaded"), (18, "different versions"), (4, "permission")]
)
def test_a_driver_that_does_not_start_says_why(stub, code, words):
    """Driver not loaded, version mismatch and missing permission each have a remedy."""
    stub.state.init_error = code
    with pytest.raises(MeterUnavailable, match=words) as refusal:
        nvidia.detect(Context())
    assert refusal.value.remedy
    assert refusal.value.parts == ("gpu",)


@pytest.mark.parametrize(
    "fault, words, lost",
    [
        ("lost", "fallen off the bus", True),
        ("reset_required", "requires a reset", True),
        ("no_permission", "permission denied", True),
    ],
)
def test_a_fault_in_mid_run_is_a_gap_with_its_reason(stub, detect, fault, words, lost):
    """A card that disappears leaves gaps, and the other is still read."""
    meters = detect()
    stub.inject(0, fault)
    power, counter = meters["nvml-power"], meters["nvml-energy"]
    for bad in (power.read()[0], counter.read()[0]):
        assert isinstance(bad, Gap)
        assert words in bad.reason
        assert bad.lost is lost
    assert isinstance(power.read()[1], float)
    assert isinstance(meters["nvml-power"].read_signals()[0], Gap)


def test_an_unknown_error_passes(stub, detect):
    """The next read may succeed, so the gap is not final."""
    meters = detect()
    stub.inject(0, "unknown_error", probability=1.0)
    for meter in meters.values():
        gap = meter.read()[0]
        assert isinstance(gap, Gap)
        assert not gap.lost
    stub.inject(0, "heal")
    assert isinstance(meters["nvml-energy"].read()[0], float)


def test_a_forked_child_opens_its_own_handles(stub, detect):
    """The child reads through handles of its own, and the parent's still work."""
    meter = detect()["nvml-power"]
    parents = dict(meter._handles)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        meter.after_fork_in_child()
        fresh = not meter._handles
        value = meter.read()[0]
        ok = fresh and isinstance(value, float) and meter._handles[0] is not parents[0]
        os.write(write_end, b"y" if ok else b"n")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read_end, 1) == b"y"
    os.close(read_end)
    os.close(write_end)
    assert isinstance(meter.read()[0], float)


def test_close_does_not_wait_for_a_driver_that_hangs(stub, detect, monkeypatch):
    """Shutting down takes a limited time, whatever the driver does."""
    monkeypatch.setattr(nvidia, "SHUTDOWN_PATIENCE_S", 0.05)
    meter = detect()["nvml-power"]
    stub.state.shutdown_delay_s = 30.0
    begin_s = time.monotonic()
    meter.close()
    assert time.monotonic() - begin_s < 15
    stub.state.shutdown_delay_s = 0.0


def test_no_driver_is_not_a_missing_part(tmp_path, monkeypatch):
    """A machine without a GPU misses no part."""
    monkeypatch.delenv("WATTLOOP_NVML_LIBRARY", raising=False)
    monkeypatch.setattr(nvidia, "LIBRARY", "libnvidia-ml-that-is-not-there.so.1")
    host = Host(sysfs=tmp_path / "sys", procfs=tmp_path / "proc")
    with pytest.raises(MeterUnavailable, match="no NVIDIA driver") as refusal:
        nvidia.detect(Context(host=host))
    assert refusal.value.parts == ()


def test_a_container_without_the_library_gets_the_remedy(tmp_path, monkeypatch):
    """The kernel has the driver and the container lacks the library: the remedy says how to
    mount it.
    """
    monkeypatch.delenv("WATTLOOP_NVML_LIBRARY", raising=False)
    monkeypatch.setattr(nvidia, "LIBRARY", "libnvidia-ml-that-is-not-there.so.1")
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: ...")
    host = Host(sysfs=tmp_path / "sys", procfs=tmp_path / "proc")
    with pytest.raises(MeterUnavailable, match="--gpus all") as refusal:
        nvidia.detect(Context(host=host))
    assert refusal.value.parts == ("gpu",)


def _at_tick(meter):
    """Return the joules of gpu:0 right after the counter moved, and the time of the update."""
    last = meter.read()[0]
    while (value := meter.read()[0]) == last:
        time.sleep(0.0005)
    period_s = meter.domains[0].update_period_s
    return value, time.monotonic() // period_s * period_s
