"""Promises of the meters of the virtual card."""

import subprocess
import sys

import pytest

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import DomainKind, Gap, Provenance
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.meters.base import Context
from wattloop.testing.meter_contract import check_meter
from wattloop.virtual.cards import CARDS
from wattloop.virtual.gpu import IDLE, Fault, VirtualGpu
from wattloop.virtual.meter import VirtualEnergy, VirtualPower, detect


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTLOOP_VIRTUAL_STATE", str(tmp_path / "cards"))
    host = Host(sysfs=tmp_path / "sys", procfs=tmp_path / "proc")
    return Context(host=host, settings=Settings(virtual_gpus=2))


@pytest.fixture
def gpu(clock):
    return VirtualGpu(0, CARDS["h200"], clock=clock)


@pytest.mark.parametrize("index", [0, 1])
def test_virtual_meters_keep_the_contract(context, index):
    """Simulated meters keep the contract of every meter."""
    check_meter(lambda: detect(context)[index])


def test_nothing_is_simulated_unless_asked_for():
    """No user gets a virtual GPU by accident; the refusal says how to get one."""
    with pytest.raises(MeterUnavailable, match="WATTLOOP_VIRTUAL_GPUS=1") as refusal:
        detect(Context())
    assert refusal.value.parts == ()


def test_every_domain_is_marked_simulated(context):
    """Provenance and device say so in every output."""
    for meter in detect(context):
        assert [d.name for d in meter.domains] == ["gpu:0", "gpu:1"]
        assert all(d.provenance is Provenance.SIMULATED for d in meter.domains)
        assert all(d.device == "virtual H200" for d in meter.domains)


def test_virtual_cards_never_share_a_name_with_real_ones(context, tmp_path):
    """On a machine with a GPU the first virtual one is gpu:1."""
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert [d.name for d in detect(context)[0].domains] == ["gpu:1", "gpu:2"]


def test_counter_gives_true_energy_at_its_updates(gpu, clock):
    """The counter is constant between updates and exact at them."""
    meter = VirtualEnergy([gpu], clock)
    gpu.load(0.5)
    (first_j,) = meter.read()
    clock.advance(0.05)
    assert meter.read() == [first_j]
    clock.advance(2.95)
    (last_j,) = meter.read()
    assert last_j - first_j == pytest.approx(gpu.true_energy_j(1_000, 1_003), abs=0.002)


def test_gauge_sees_power_with_noise_of_the_stated_size(gpu, clock):
    """Readings scatter around the truth within the declared error."""
    meter = VirtualPower([gpu], clock)
    gpu.load(0.4)
    clock.advance(1.0)
    truth_w = gpu.power_w(clock.now_s())
    values = []
    for _ in range(100):
        clock.advance(0.1)
        values += meter.read()
    assert sum(values) / 100 == pytest.approx(truth_w, abs=0.5)
    assert len({round(value, 6) for value in values}) > 50
    within = [abs(value - truth_w) <= meter.domains[0].known_error_w for value in values]
    assert sum(within) >= 88
    assert meter.domains[0].kind is DomainKind.GAUGE


def test_signals_follow_load_and_cap(gpu, clock):
    """Utilisation, clock, limit and temperature move as on a real card."""
    meter = VirtualPower([gpu], clock)

    def signals():
        return dict(zip((s.name for s in meter.signals), meter.read_signals(), strict=True))

    idle = signals()
    gpu.load(1.0)
    gpu.set_power_cap(300)
    clock.advance(30)
    busy = signals()
    assert (idle["gpu:0/utilisation"], busy["gpu:0/utilisation"]) == (0, 1)
    assert busy["gpu:0/power_limit"] == 300
    assert busy["gpu:0/sm_clock"] < 1_980
    assert busy["gpu:0/temperature"] > idle["gpu:0/temperature"]


@pytest.mark.parametrize(
    "fault, lost",
    [
        (Fault.LOST, True),
        (Fault.NO_PERMISSION, True),
        (Fault.UNSUPPORTED, True),
        (Fault.UNKNOWN_ERROR, False),
    ],
)
def test_faults_are_gaps_until_healed(gpu, clock, fault, lost):
    """A broken card gives reasons, never zeros, and the other card is still read."""
    other = VirtualGpu(1, CARDS["h200"], clock=clock)
    for meter in (VirtualEnergy([gpu, other], clock), VirtualPower([gpu, other], clock)):
        gpu.inject(fault)
        bad, good = meter.read()
        assert isinstance(bad, Gap)
        assert bad.lost is lost
        assert isinstance(good, float)
        gpu.inject(Fault.NONE)
        assert isinstance(meter.read()[0], float)


def test_a_reset_counter_starts_again_from_zero(gpu, clock):
    """As after a driver reload, the counter restarts but the true energy does not."""
    meter = VirtualEnergy([gpu], clock)
    (before_j,) = meter.read()
    gpu.reset_counter()
    clock.advance(0.2)
    (after_j,) = meter.read()
    assert 0 <= after_j <= 0.2 * 80 + 0.01 < before_j


def test_a_counter_never_falls(gpu, clock):
    """Promise: work that turns out to have ended earlier is not subtracted from the counter."""
    meter = VirtualEnergy([gpu], clock)
    begin_s = clock.now_s()
    gpu.load(1.0)
    clock.advance(0.5)
    (high_j,) = meter.read()
    gpu.occupy(IDLE, at_s=clock.now_s() - 0.2)
    assert meter.read() == [high_j]
    clock.advance(5.0)
    (last_j,) = meter.read()
    assert last_j == pytest.approx(gpu.energy_j(clock.now_s()), abs=0.002)
    assert last_j - high_j < gpu.true_energy_j(begin_s + 0.5, clock.now_s())


def test_a_cap_shows_in_the_domains_note(gpu, clock):
    """Efficiency is judged against the enforced limit."""
    gpu.set_power_cap(300)
    domain = VirtualEnergy([gpu], clock).domains[0]
    assert domain.tdp_w == 300
    assert domain.tdp_note == "enforced power limit 300 W of 700 W default"


def test_run_without_virtual_gpus_does_not_load_their_physics() -> None:
    """Every `wattloop run` checks for virtual GPUs before its program starts."""
    code = (
        "import sys\n"
        "from wattloop.meters.base import Context\n"
        "from wattloop.meters.registry import detect\n"
        "detect(Context(), explain=False)\n"
        "print([name for name in sys.modules if name.startswith('wattloop.virtual')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
