"""Promises of shares: parts add up to the node, and each job gets what the rule says."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattloop.core.records import Domain, DomainKind, Scope
from wattloop.fleet.agent.job_shares import (
    UNATTRIBUTED,
    NodeLayout,
    Occupant,
    SharedInterval,
    split,
)


def domain(name: str, scope: Scope, inside: str | None = None) -> Domain:
    return Domain(name, DomainKind.COUNTER, scope, "test", inside=inside)


PACKAGE, CORE, DRAM = "cpu:0/package", "cpu:0/core", "dram:0"
GPUS = [f"gpu:{i}" for i in range(4)]
PARTS = {
    PACKAGE: domain(PACKAGE, Scope.CPU),
    CORE: domain(CORE, Scope.CPU, inside=PACKAGE),
    DRAM: domain(DRAM, Scope.DRAM),
    **{name: domain(name, Scope.GPU) for name in GPUS},
}
NODE = {**PARTS, "node": domain("node", Scope.NODE)}


def test_idle_power_goes_by_cpus_and_the_rest_by_cpu_time() -> None:
    """100 J in 2 s of which 40 J idle; job a has 2 of 8 CPUs and used 3 of 4 busy seconds."""
    stretch = SharedInterval(0.0, 2.0, (Occupant("a", cpus=2, cpu_s=3.0),), busy_s=4.0)
    parts = split(NodeLayout(PARTS, 8), stretch, {PACKAGE: 100.0}, {PACKAGE: 20.0})
    assert parts["a"][PACKAGE].energy_j == pytest.approx(40 * 2 / 8 + 60 * 3 / 4)
    assert parts[UNATTRIBUTED][PACKAGE].energy_j == pytest.approx(100 - 55)
    assert parts["a"][PACKAGE].by_cpus_j == pytest.approx(25)
    assert parts["a"][PACKAGE].by_time_j == pytest.approx(75)


def test_a_gpu_belongs_to_its_job_and_an_idle_one_to_nobody() -> None:
    """Exact, whatever the CPUs do."""
    stretch = SharedInterval(0.0, 1.0, (Occupant("a", frozenset({"gpu:1"}), 1, cpu_s=0.0),), 0.0)
    parts = split(NodeLayout(PARTS, 8), stretch, {"gpu:0": 50.0, "gpu:1": 300.0}, {})
    assert parts["a"]["gpu:1"].energy_j == 300.0
    assert parts[UNATTRIBUTED]["gpu:0"].energy_j == 50.0


def test_a_job_with_all_cpus_has_the_whole_node() -> None:
    """Meters of the node belong to a job with all CPUs only; a job without a share gets nothing."""
    energies = dict.fromkeys(NODE, 10.0)
    stretch = SharedInterval(0.0, 1.0, (Occupant("a", cpus=8, whole=True),), 1.0)
    parts = split(NodeLayout(NODE, 8), stretch, energies, {PACKAGE: 5.0})
    assert {n: p.energy_j for n, p in parts["a"].items()} == energies
    assert not parts[UNATTRIBUTED]


def test_neighbours_that_both_have_all_cpus_share() -> None:
    """Slurm may share nodes by force: neither gets the other's GPU, nor all of the package."""
    jobs = tuple(
        Occupant(name, frozenset({gpu}), 8, whole=True, cpu_s=1.0)
        for name, gpu in (("a", "gpu:0"), ("b", "gpu:1"))
    )
    energies = {PACKAGE: 100.0, "gpu:0": 50.0, "gpu:1": 300.0}
    parts = split(NodeLayout(PARTS, 8), SharedInterval(0.0, 1.0, jobs, 2.0), energies, {})
    assert [parts[n][PACKAGE].energy_j for n in "ab"] == [50.0, 50.0]
    assert ("gpu:1" in parts["a"], parts["b"]["gpu:1"].energy_j) == (False, 300.0)


def test_a_nodes_meter_leaves_to_nobody_what_jobs_did_not_get() -> None:
    """Node 1000 J; the job has 300 J of GPU and 25 J of CPU; core lies inside and counts once."""
    stretch = SharedInterval(
        0.0, 1.0, (Occupant("a", frozenset({"gpu:0"}), 2, cpu_s=1.0),), busy_s=4.0
    )
    energies = {PACKAGE: 100.0, CORE: 60.0, "gpu:0": 300.0, "node": 1000.0}
    parts = split(NodeLayout(NODE, 8), stretch, energies, {})
    assert "node" not in parts["a"]
    assert parts[UNATTRIBUTED]["node"].energy_j == pytest.approx(1000 - 300 - 25)


def test_a_job_whose_cpu_time_cannot_be_read_is_as_busy_as_its_cpus() -> None:
    """Missing is not zero."""
    stretch = SharedInterval(0.0, 1.0, (Occupant("a", cpus=4, cpu_s=None),), busy_s=6.0)
    parts = split(NodeLayout(PARTS, 8), stretch, {PACKAGE: 100.0}, {})
    assert parts["a"][PACKAGE].energy_j == pytest.approx(50.0)


occupants = st.lists(
    st.builds(
        Occupant,
        run=st.text("abc", min_size=1, max_size=3),
        gpus=st.frozensets(st.sampled_from(GPUS)),
        cpus=st.integers(0, 12),
        whole=st.booleans(),
        cpu_s=st.none() | st.floats(0, 100),
    ),
    max_size=5,
    unique_by=lambda one: one.run,
)
joules = st.floats(0, 1e6)


@settings(max_examples=100, deadline=None)
@given(
    jobs=occupants,
    duration_s=st.floats(1e-3, 1e4),
    busy_s=st.none() | st.floats(0, 500),
    energy_j=st.dictionaries(st.sampled_from(list(NODE)), joules),
    idle_w=st.dictionaries(st.sampled_from([PACKAGE, DRAM]), st.floats(0, 500)),
)
def test_parts_of_every_domain_add_up_to_it_whoever_is_there(  # the invariant of shared nodes
    jobs: list[Occupant],
    duration_s: float,
    busy_s: float | None,
    energy_j: dict[str, float],
    idle_w: dict[str, float],
) -> None:
    """Within 1e-6 of the node, no part below zero but a node's rest; the total once as well."""
    layout = NodeLayout(NODE, 8)
    parts = split(layout, SharedInterval(0.0, duration_s, tuple(jobs), busy_s), energy_j, idle_w)
    for name, whole_j in energy_j.items():
        given_j = [own[name].energy_j for own in parts.values() if name in own]
        if not layout.is_node(name):
            assert sum(given_j) == pytest.approx(whole_j, rel=1e-6, abs=1e-6)
            assert min(given_j) >= -1e-6
    if "node" in energy_j:
        counted_j = sum(
            part.energy_j
            for run, own in parts.items()
            for name, part in own.items()
            if name == "node"
            or (run != UNATTRIBUTED and "node" not in own and name in layout.counted)
        )
        scale = max(1.0, *map(abs, energy_j.values()))
        assert math.isclose(counted_j, energy_j["node"], rel_tol=1e-6, abs_tol=1e-6 * scale)
