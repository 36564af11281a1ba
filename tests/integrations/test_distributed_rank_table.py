from typing import Any

from wattloop.integrations.distributed import RankTable


def report(node: str, counted: bool = True, **energies: float) -> dict[str, Any]:
    scopes = {"cpu": "cpu", "gpu": "gpu", "dra": "dram"}
    names = {"cpu0": "cpu:0/package", "cpu1": "cpu:1/package", "dram": "dram:0"}
    return {
        "node": node,
        "run_id": "r",
        "counted": counted,
        "duration_s": 60.0,
        "missing": [],
        "domains": [
            {
                "name": names.get(key, key.replace("gpu", "gpu:")),
                "scope": scopes[key[:3]],
                "energy_j": joules,
                "uncertainty_j": 3.0,
                "in_total": True,
            }
            for key, joules in energies.items()
            if counted
        ],
    }


def test_each_device_is_counted_once_per_node() -> None:
    """Promise: ranks that do not count add nothing; packages of a node add up."""
    job = RankTable.of(
        [
            report("b", cpu0=100.0, cpu1=50.0, gpu0=900.0, gpu10=800.0, dram=20.0),
            report("b", counted=False),
            report("a", cpu0=10.0, gpu0=90.0),
        ]
    )
    assert [n.node for n in job.nodes] == ["a", "b"]
    assert job.energy_j == 1970.0
    assert job.nodes[1].ranks == 2
    assert round(job.uncertainty_j**2) == 9 * 7
    assert job.table().splitlines() == [
        "Node   Pkg (J)  GPU 0 (J)  GPU 10 (J)  RAM (J)  Time (s)  Total (J)",
        "a         10.0       90.0           -        -      60.0      100.0",
        "b        150.0      900.0       800.0     20.0      60.0     1870.0",
        "Total    160.0      990.0       800.0     20.0      60.0     1970.0",
    ]
    assert job.to_dict()["energy_j"] == 1970.0


def test_an_uncounted_node_is_not_zero() -> None:
    """Promise: a node whose devices another run counts shows no number, and says why."""
    job = RankTable.of([report("a", counted=False), report("b", cpu0=5.0)])
    assert job.nodes[0].energy_j is None
    assert not job.complete
    assert "another run" in job.table()


def test_two_counting_ranks_are_not_added() -> None:
    """Promise: if two ranks of a node both count, one is used, and the table says so."""
    longer = report("a", cpu0=70.0) | {"duration_s": 70.0}
    job = RankTable.of([report("a", cpu0=60.0), longer])
    assert job.energy_j == 70.0
    assert "2 ranks counted" in job.table()
