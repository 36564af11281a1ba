"""Promises under kills: no pod lost or suspended for ever, whichever part died when.

The small version of benchmarks/kubernetes_kills.py, in this process and without waiting.
"""

import random
from pathlib import Path

import pytest

from tests.fleet.agent.scripted_node import PACKAGE
from tests.fleet.kubernetes.conftest import CPU_W, GPU_W, PodNode
from tests.fleet.kubernetes.test_node import energy_j
from tests.schedule.kubernetes.test_driver import World
from tests.support.kubelet import Kubelet
from tests.support.kubernetes_api import ApiState, KubernetesApi
from tests.support.kubernetes_cluster import job
from wattloop.core.errors import ClusterError
from wattloop.schedule.kubernetes.driver import KubernetesDriver
from wattloop.schedule.kubernetes.queue import KubernetesQueue, release_all


@pytest.mark.parametrize("seed", range(3))
def test_agents_and_api_servers_that_die_lose_no_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kubelet: Kubelet, seed: int
) -> None:
    rng = random.Random(seed)
    state = tmp_path / "etcd.json"
    api = KubernetesApi(ApiState(state)).__enter__()
    port = api.server.server_port
    node = PodNode(tmp_path, monkeypatch, api, kubelet)
    node.start()
    live: list[str] = []
    ever: list[str] = []
    kills = 0
    for number in range(60):
        choice = rng.random()
        if choice < 0.2:
            kills += 1
            if rng.random() < 0.5:
                node.kill()
                node.start()
            else:  # the connection breaks, its history is gone, its objects are not
                api.__exit__()
                api = KubernetesApi(ApiState(state), port=port).__enter__()
                node.api = api
        elif choice < 0.55 and len(live) < 4:
            free = [n for n in range(2) if not any(c.endswith(f"#{n}") for c in live)]
            gpus = tuple(free[:1])
            container = node.run_pod(f"p{number}", gpus=gpus, cpus="1")
            live.append(f"{container}#{gpus[0] if gpus else ''}")
            ever.append(container)
        elif live:
            node.end_pod(live.pop(rng.randrange(len(live))).partition("#")[0])
        try:
            node.look()
        except ClusterError:
            node.follower.check()
        node.work(1, rest=1.0)
    for each in live:
        node.end_pod(each.partition("#")[0])
    node.look()
    node.work(8, rest=1.0)
    node.stop()
    api.__exit__()
    assert kills > 5
    stored = {
        j.header["job"]["scheduler"]["container_id"]: j for j in node.journals() if j.header["job"]
    }
    assert set(stored) == set(ever)
    assert all(journal.end is not None for journal in stored.values())
    ends = node.ends()
    lived_s = max(e["time_s"] for e in ends) - min(e["result"]["begin_s"] for e in ends)
    for name, watts in ((PACKAGE, CPU_W), ("gpu:0", GPU_W[0]), ("gpu:1", GPU_W[1])):
        assert sum(energy_j(e, name) for e in ends) == pytest.approx(watts * lived_s, rel=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_drivers_that_die_leave_no_job_suspended(tmp_path: Path, seed: int) -> None:
    """Dropped between any two requests to the API server, which dies as well."""
    rng = random.Random(seed)
    with KubernetesApi(ApiState(tmp_path / "etcd.json")) as api:
        world = World(api)
        world.controllers._runs_s = lambda name: -1.0 if rng.random() < 0.3 else 1e9
        left = rng.randrange(40)

        def fault(handler: object) -> bool:
            nonlocal left
            left -= 1
            if left <= 0:
                handler.send_error(503)  # type: ignore[attr-defined]  # a request handler
                return True
            return False

        for number in range(12):
            api.add(job(f"j{number}", gpus=rng.choice((1, 2, 4))))
        driver: KubernetesDriver | None = None
        for _ in range(20):
            left = rng.randrange(2, 30)
            api.fault = fault
            try:
                driver = driver or world.driver("fifo", holder=f"d{rng.randrange(2)}")
                driver.begin()
                driver.round()
                world.controllers.step()
            except ClusterError:
                driver = None  # killed; a new one begins, maybe in another pod
            api.fault = None
            world.controllers.step()
        lease = {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}
        api.change("leases", "wattloop", "wattloop-driver", lease, "coordination.k8s.io")
        _, refused = release_all(KubernetesQueue(world.client()), "expired")
        assert refused == []
        assert world.suspended() == []
        assert len(api.all("jobs", "batch")) == 12
