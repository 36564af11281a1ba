"""Promises of the virtual node: its laws, its meters, and the published figures behind it."""

import pytest

from wattloop.core.errors import ConfigError
from wattloop.core.records import DomainKind, Provenance, Scope
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.meters.base import Context
from wattloop.testing.meter_contract import check_meter
from wattloop.virtual.gpu import Activity
from wattloop.virtual.job import JOBS, job_named
from wattloop.virtual.meter import VirtualNodeEnergy, VirtualNodePower, detect, node_energy_j
from wattloop.virtual.node import GOLD, NODES, CardLimits, node_named, steady_outcome

NODE = node_named("node004")


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTLOOP_VIRTUAL_STATE", str(tmp_path / "cards"))
    monkeypatch.setenv("WATTLOOP_VIRTUAL_MODEL", "node004")
    host = Host(sysfs=tmp_path / "sys", procfs=tmp_path / "proc")
    return Context(host=host, settings=Settings(virtual_gpus=8))


def test_the_shipped_node_gives_the_times_it_was_fitted_to():
    """Koszczal et al., figure 7: seconds on 2 and 8 GPUs at 260 and 170 W, within 1%."""
    published = {(2, 260): 228, (2, 170): 256, (8, 260): 85.6, (8, 170): 93.6, (1, 170): 477}
    for (gpus, cap_w), time_s in published.items():
        outcome = steady_outcome(NODE, NODE.job, gpus, CardLimits(cap_w))
        assert outcome.time_s == pytest.approx(time_s, rel=0.01)


def test_more_gpus_gain_more_from_a_cap():
    """Idle GPUs and the host weigh less, so the largest gain grows with the GPUs in use."""
    gains = []
    for gpus in (1, 2, 4, 8):
        energies = [
            steady_outcome(NODE, NODE.job, gpus, CardLimits(cap)).node_energy_j
            for cap in range(100, 261, 10)
        ]
        gains.append(1 - min(energies) / energies[-1])
    assert gains == sorted(gains)
    assert gains[-1] == pytest.approx(0.2539, abs=0.005)


def test_a_node_draws_more_than_its_parts():
    """Power supplies lose energy, and fans draw disproportionately more with the heat."""
    idle_w = NODE.power_w(160, 160)
    assert idle_w > NODE.host_w + 160
    half_w, full_w = (NODE.power_w(w, w) * 1.0 - NODE.power_w(w, 0) for w in (1_040, 2_080))
    assert full_w > 7 * half_w
    assert all(0.8 <= efficiency <= 0.92 for _, efficiency in GOLD)


@pytest.mark.parametrize("gpus", [0, 9])
def test_a_node_has_no_more_gpus_than_it_has(gpus):
    """The message has the number of GPUs."""
    with pytest.raises(ConfigError, match="8 GPUs"):
        steady_outcome(NODE, NODE.job, gpus)


@pytest.mark.parametrize("index", [2, 3])
def test_node_meters_keep_the_contract(context, index):
    """Node meters keep the contract of every meter."""
    check_meter(lambda: detect(context)[index])


def test_the_node_is_a_simulated_domain_of_scope_node(context):
    """Counter and gauge; a card without a node has neither."""
    domains = [meter.domains[0] for meter in detect(context)[2:]]
    assert [d.kind for d in domains] == [DomainKind.COUNTER, DomainKind.GAUGE]
    assert {(d.name, d.scope, d.provenance) for d in domains} == {
        ("node", Scope.NODE, Provenance.SIMULATED)
    }


def test_a_card_alone_has_no_node(context, monkeypatch):
    """A single card has no invented node."""
    monkeypatch.setenv("WATTLOOP_VIRTUAL_MODEL", "v100")
    assert [meter.domains[0].name for meter in detect(context)] == ["gpu:0", "gpu:0"]


def test_an_unknown_model_lists_cards_and_nodes(context, monkeypatch):
    """A typing error gets the list of cards and nodes."""
    monkeypatch.setenv("WATTLOOP_VIRTUAL_MODEL", "node005")
    with pytest.raises(ConfigError, match=r"h200.*node004"):
        detect(context)


def test_counter_and_gauge_agree_with_the_truth(gpus, clock):
    """Joules over ten seconds with changing load: integrated, averaged and true agree."""
    counter, gauge = VirtualNodeEnergy(NODE, gpus, clock), VirtualNodePower(NODE, gpus, clock)
    (begin_j,) = counter.read()
    summed_j = 0.0
    for step in range(100):
        for gpu in gpus[:4]:
            gpu.load(0.9 if step % 10 < 6 else 0.1)
        clock.advance(0.1)
        summed_j += 0.1 * gauge.read()[0]
    (end_j,) = counter.read()
    truth_j = node_energy_j(NODE, gpus, 1_000, clock.now_s(), step_s=0.001)
    assert end_j - begin_j == pytest.approx(truth_j, rel=2e-3)
    assert summed_j == pytest.approx(truth_j, rel=2e-3)


def test_work_that_began_with_its_process_counts_from_its_begin(gpus, clock):
    """A job reports its load after loading its modules, and its first moments still count."""
    counter = VirtualNodeEnergy(NODE, gpus, clock)
    counter.read()
    begin_s = clock.now_s()
    for _ in range(3):
        clock.advance(0.1)
        counter.read()
    gpus[0].occupy(Activity(1.0, 0.5, 1.0), at_s=begin_s)
    clock.advance(0.7)
    (energy_j,) = counter.read()
    truth_j = node_energy_j(NODE, gpus, begin_s, clock.now_s(), step_s=0.001)
    assert energy_j == pytest.approx(truth_j, rel=2e-3)


def test_a_long_pause_between_readings_is_cheap_and_right(gpus, clock):
    """An idle hour is integrated in a few steps."""
    counter = VirtualNodeEnergy(NODE, gpus, clock)
    counter.read()
    clock.advance(3_600)
    (energy_j,) = counter.read()
    assert energy_j == pytest.approx(3_600 * NODE.power_w(160, 160), rel=1e-3)


def test_fans_follow_the_temperature_not_the_moment(gpus, clock):
    """Right after the load begins the node draws less than when it is warm."""
    gauge = VirtualNodePower(NODE, gpus, clock)
    for gpu in gpus:
        gpu.load(1.0)
    clock.advance(0.5)
    (cold_w,) = gauge.read()
    clock.advance(200)
    (warm_w,) = gauge.read()
    assert warm_w - cold_w > 0.8 * NODE.fan_w


def test_every_node_and_job_names_its_source():
    """Every number has a provenance, and an unknown name gets the list."""
    assert all(node.source and node.card.source and node.job.source for node in NODES.values())
    assert all(job.source for job in JOBS.values())
    with pytest.raises(ConfigError, match="node004"):
        node_named("node005")
    with pytest.raises(ConfigError, match="cnn"):
        job_named("cn")
