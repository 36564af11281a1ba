"""Promises about energy of pods: each joule once, by container, pod, namespace and owner."""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.fleet.agent.scripted_node import PACKAGE, domains_of
from tests.fleet.kubernetes.conftest import CPU_W, GPU_W, UUIDS, PodNode
from tests.support.kubelet import Kubelet, cgroup_of, make_group
from tests.support.kubernetes_api import ApiError, KubernetesApi, pod, schemas_installed
from wattloop.fleet.agent.agent import Agent
from wattloop.fleet.agent.live_metrics import AgentMetrics
from wattloop.fleet.agent.node_energy import NodeSensors
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.meters.base import DeviceProcess
from wattloop.store.database import open_store
from wattloop.store.job_queries import job_page
from wattloop.store.journal_import import import_journal
from wattloop.store.run_record import header_fault

LAYOUTS = [
    ("systemd", "cri-containerd", "burstable"),
    ("systemd", "crio", "guaranteed"),
    ("systemd", "cri-containerd", "besteffort"),
    ("cgroupfs", "containerd", "guaranteed"),
    ("cgroupfs", "crio", "besteffort"),
    ("cgroupfs", "containerd", "burstable"),
]


def energy_j(end: dict[str, Any], name: str) -> float:
    return float(domains_of(end).get(name, {}).get("energy_j") or 0.0)


@pytest.mark.parametrize(("driver", "runtime", "qos"), LAYOUTS)
def test_pods_and_rest_add_up_to_the_node(
    node: PodNode, driver: str, runtime: str, qos: str
) -> None:
    """Two pods, one with a GPU, under both drivers, runtimes and all classes of service."""
    node.start()
    node.work(2, rest=1.0)
    layout = {"driver": driver, "runtime": runtime, "qos": qos}
    train = node.run_pod("train", gpus=(1,), cpus="2", namespace="ml", **layout)
    web = node.run_pod("web", cpus="500m", namespace="shop", **layout)
    assert sorted(node.look()[0]) == sorted([train, web])
    node.work(10, **{train: 3.0, web: 0.5, "rest": 0.5})
    for container in (train, web):
        node.end_pod(container)
    assert sorted(node.look()[1]) == sorted([train, web])
    node.work(4, rest=1.0)
    trained, served = node.end_of(train), node.end_of(web)
    # 40 W idle by 2 and 0.5 of 8 CPUs, 60 W above it by 3 and 0.5 of 4 busy seconds a second
    assert energy_j(trained, PACKAGE) == pytest.approx(10 * (10 + 45), rel=0.15)
    assert energy_j(served, PACKAGE) == pytest.approx(10 * (2.5 + 7.5), rel=0.15)
    assert energy_j(trained, "gpu:1") == pytest.approx(10 * GPU_W[1], rel=0.05)
    assert energy_j(served, "gpu:1") == energy_j(trained, "gpu:0") == 0.0
    node.stop()
    ends = node.ends()
    lived_s = max(e["time_s"] for e in ends) - min(e["result"]["begin_s"] for e in ends)
    for name, watts in ((PACKAGE, CPU_W), ("gpu:0", GPU_W[0]), ("gpu:1", GPU_W[1])):
        assert sum(energy_j(e, name) for e in ends) == pytest.approx(watts * lived_s, rel=0.01)


def test_a_run_says_container_pod_namespace_and_owner_and_jobs_add_up_by_owner(
    node: PodNode,
) -> None:
    """Two pods of one PyTorchJob are one job of the store, with the energy of both."""
    node.start()
    owner = {"kind": "PyTorchJob", "name": "bert", "apiVersion": "kubeflow.org/v1"}
    pods = [
        node.run_pod(f"bert-{n}", gpus=(n,), namespace="ml", owner=owner, annotations={"a": "b"})
        for n in range(2)
    ]
    node.look()
    node.work(5, rest=1.0)
    for container in pods:
        node.end_pod(container)
    node.look()
    node.work(3, rest=1.0)
    (journal,) = node.of(pods[0])
    assert header_fault(journal.header) == ""
    facts = journal.header["job"]["scheduler"]
    assert {name: facts[name] for name in ("namespace", "pod", "container", "project")} == {
        "namespace": "ml", "pod": "bert-0", "container": "main", "project": "ml",
    }  # fmt: skip
    assert (facts["scheduler"], facts["owner_kind"], facts["owner"]) == (
        "kubernetes", "PyTorchJob", "bert",
    )  # fmt: skip
    node.stop()
    with open_store(str(node.folder / "runs.db")) as store:
        for path in sorted((node.folder / "n1/journals").glob("*.journal")):
            import_journal(store, path, finalize_orphaned_run)
        (job,) = [row for row in job_page(store) if row["job_id"] == "ml/PyTorchJob/bert"]
    assert (job["runs"], job["project"], job["kind"]) == (2, "ml", "kubernetes")
    assert job["energy_j"] == pytest.approx(5 * sum(GPU_W), rel=0.2)


def test_an_agent_that_was_killed_misses_no_pod(node: PodNode) -> None:
    """One pod ends and one begins while the agent is down; the third continues in the same run."""
    node.start()
    ends, stays = node.run_pod("ends"), node.run_pod("stays", gpus=(0,))
    node.look()
    node.work(3, rest=1.0)
    node.kill()
    node.end_pod(ends)
    begins = node.run_pod("begins", gpus=(1,))
    node.work(2, rest=1.0)
    node.start()
    assert node.look() == ([begins], [ends])
    node.work(3, rest=1.0)
    for container in (stays, begins):
        node.end_pod(container)
    node.look()
    node.work(3, rest=1.0)
    for container in (ends, stays, begins):
        (journal,) = node.of(container)
        assert journal.end is not None
    assert energy_j(node.end_of(stays), "gpu:0") == pytest.approx(8 * GPU_W[0], rel=0.05)


def test_a_container_older_than_the_agent_brings_no_cpu_time_of_before(node: PodNode) -> None:
    node.start()
    old = node.run_pod("old", cpus="1")
    make_group(node.groups[old], cpu_s=5_000.0)
    node.used_s = 6_000.0
    node.busy(node.used_s)
    node.look()
    for second in range(1, 6):
        node.pass_time(1.0)
        node.busy(6_000.0 + 4 * second)
        make_group(node.groups[old], cpu_s=5_000.0 + second)
    node.end_pod(old)
    node.look()
    node.pass_time(3.0)
    # 5 W of the idle 40 W, a quarter of the 60 W above
    assert energy_j(node.end_of(old), PACKAGE) == pytest.approx(5 * (5 + 15), rel=0.2)


def test_claims_of_dynamic_resource_allocation_are_devices_too(node: PodNode) -> None:
    """By the UUID in the CDI name, or by the driver's device name."""
    node.start()
    for number, claim in enumerate((("c", "gpu-0", ""), ("c", "x", f"nvidia.com/gpu={UUIDS[1]}"))):
        name = f"dra-{number}"
        container = node.run_pod(name)
        node.kubelet.take(name)
        node.kubelet.give(name, claims=(claim,))
        node.look()
        node.work(1, rest=1.0)
        (run,) = [r for r in node.agent.open_runs.runs.values() if r.plan.job == container]  # type: ignore[union-attr]  # it runs
        assert run.plan.gpus == (f"gpu:{number}",)


def test_a_deployment_is_found_by_its_replica_sets_name_and_a_ray_job_by_its_cluster(
    node: PodNode, api: Any
) -> None:
    ray = {"apiVersion": "ray.io/v1", "kind": "RayCluster"}
    above = {"kind": "RayJob", "name": "tune", "uid": "u", "controller": True}
    about = {"name": "tune-x", "namespace": "default", "ownerReferences": [above]}
    api.add({**ray, "metadata": about})
    cases = {
        "web": ({"kind": "ReplicaSet", "name": "web-5d9"}, {"pod-template-hash": "5d9"}),
        "worker": ({"kind": "RayCluster", "name": "tune-x"}, {}),
        "set": ({"kind": "StatefulSet", "name": "db"}, {}),
        "alone": (None, {}),
    }
    for name, (owner, labels) in cases.items():
        node.api.add(pod(name, owner=owner, labels=labels))
    node.start()
    node.source.watch.refresh()
    found = {one.name: tuple(one.owner) for one in node.source.watch.pods().values()}
    assert found == {
        "web": ("Deployment", "web"),
        "worker": ("RayJob", "tune"),
        "set": ("StatefulSet", "db"),
        "alone": ("Pod", "alone"),
    }


def test_a_service_gets_a_new_run_every_day_and_nothing_is_lost_between(node: PodNode) -> None:
    node.config["unallocated_hours"] = 10 / 3_600
    node.start()
    web = node.run_pod("web", gpus=(0,))
    for _ in range(32):
        node.look()
        node.work(1, rest=1.0)
    node.end_pod(web)
    node.look()
    node.work(3, rest=1.0)
    journals = node.of(web)
    assert len(journals) >= 3
    assert all(journal.end is not None for journal in journals)
    total_j = sum(energy_j(j.end or {}, "gpu:0") for j in journals)
    assert total_j == pytest.approx(32 * GPU_W[0], rel=0.05)


def test_metrics_name_pods_and_their_number_is_bounded(
    node: PodNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wattloop.fleet.agent.live_metrics.MOST_JOBS", 3)
    agent = node.start()
    for number in range(5):
        node.run_pod(f"p{number}", namespace="ml")
    node.look()
    node.work(2, rest=1.0)
    metrics = AgentMetrics()
    metrics.update(agent, [])
    text = metrics.render(False)
    lines = [x for x in text.splitlines() if x.startswith("wattloop_job_energy_joules_total")]
    pods = {part for x in lines for part in x.split(",") if part.startswith("pod=")}
    assert 1 <= len(pods) <= 3
    assert any('namespace="ml"' in x and 'owner_kind="Pod"' in x for x in lines)
    assert any('job_id="other"' in x for x in lines)


def test_annotations_name_user_and_project(node: PodNode) -> None:
    """Promise: labels of metrics and of the run have who a pod works for; else its namespace."""
    agent = node.start()
    notes = {"wattloop.dev/user": "ada\n\x1b[31m", "wattloop.dev/project": "phys"}
    named = node.run_pod("named", namespace="ml", annotations=notes)
    node.run_pod("plain", namespace="ml")
    node.look()
    node.work(2, rest=1.0)
    metrics = AgentMetrics()
    metrics.update(agent, [])
    lines = metrics.render(False).splitlines()
    shown = [x for x in lines if x.startswith("wattloop_job_energy_joules_total") and "pod=" in x]
    assert any('user="ada  [31m",project="phys"' in x for x in shown)
    assert any('user="",project="ml"' in x for x in shown)
    node.end_pod(named)
    node.look()
    node.work(3, rest=1.0)
    users = {j.header["job"]["scheduler"].get("user") for j in node.journals() if j.header["job"]}
    assert "ada  [31m" in users


LISTED = {
    "nothing": [],
    "no activity": [DeviceProcess(-1, None, None, 3.0, "MIG-big"), DeviceProcess(0, None, None, 4)],
    "another instance": [DeviceProcess(-1, 0.5, None, 3.0, "MIG-else"), DeviceProcess(0, 0.0)],
    "no instances": [DeviceProcess(11, 0.5)],
}


@pytest.mark.parametrize("listed", LISTED)
def test_pods_on_mig_instances_pay_by_their_slices(
    node: PodNode, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    """Two pods with 3 and 1 of 7 slices of a card whose driver does not tell the activity of both;
    3 slices belong to no pod.
    """
    monkeypatch.setattr(NodeSensors, "processes", lambda _: {"gpu:0": LISTED[listed]})
    node.config["kubernetes"]["gpus"] = {"MIG-big": 0, "MIG-small": 0}
    node.start()
    pods = {}
    for name, slices in (("big", 3), ("small", 1)):
        pods[name] = node.run_pod(name)
        node.kubelet.take(name)
        resource = f"nvidia.com/mig-{slices}g.{10 * slices}gb"
        node.kubelet.give(name, devices=(f"MIG-{name}",), resource=resource)
    node.look()
    node.work(10, rest=1.0)
    for container in pods.values():
        node.end_pod(container)
    node.look()
    node.work(3, rest=1.0)
    for name, slices in (("big", 3), ("small", 1)):
        end = node.end_of(pods[name])
        energy = domains_of(end)["gpu:0"]
        expected_j = 10 * GPU_W[0] * slices / 7
        assert energy["energy_j"] == pytest.approx(expected_j, rel=0.05)
        assert energy["provenance"] == "modelled"
        assert "slices of MIG" in energy["source"]
        assert any("by its slices of MIG" in text for text in end["result"]["warnings"])
        assert energy["uncertainty_j"] >= 0.9 * expected_j * (1 - slices / 7)
    node.stop()
    ends = node.ends()
    lived_s = max(e["time_s"] for e in ends) - min(e["result"]["begin_s"] for e in ends)
    total_j = sum(energy_j(e, "gpu:0") for e in ends)
    assert total_j == pytest.approx(GPU_W[0] * lived_s, rel=0.01)


MIG = {"big": (3, 600.0, 30.0), "small": (1, 200.0, 17.0), "other": (2, 400.0, 23.0)}
"""Instance -> slices of 7, the power that a full use of the card costs, the period of its load."""
MIG_IDLE_W = 70.0


def mig_use(instance: str, at_s: float) -> float:
    """Return the use of an instance as a part of the card."""
    slices, _, period_s = MIG[instance]
    return 0.8 * slices / 7 * (at_s % period_s < 0.6 * period_s)


@pytest.mark.parametrize("kills", [0, 8])
def test_pods_on_mig_instances_pay_by_their_activity_where_the_driver_says_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    api: KubernetesApi,
    kubelet: Kubelet,
    kills: int,
) -> None:
    """Promise: pods on instances get idle power by their slices and what their activity costs,
    within 10%; an instance and a slice of no pod belong to no pod; parts add up to the card, also
    when the agent is killed; a warning says that activity was used.
    """

    def energy_at(time_s: float) -> float:
        seconds = int(4 * time_s)
        used_w = [
            MIG_IDLE_W + sum(cost_w * mig_use(name, k / 4) for name, (_, cost_w, _) in MIG.items())
            for k in range(seconds + 1)
        ]
        return sum(used_w[:-1]) / 4 + used_w[-1] * (time_s - seconds / 4)

    monkeypatch.setattr(
        "tests.fleet.kubernetes.conftest.line",
        lambda power_w: energy_at if power_w == GPU_W[0] else lambda now_s: power_w * now_s,
    )
    node = PodNode(tmp_path, monkeypatch, api, kubelet)
    node.config["kubernetes"]["gpus"] = {f"MIG-{name}": 0 for name in MIG}

    read_s = [0.0]

    def listed(_: object) -> dict[str, list[DeviceProcess]]:
        """Name the activity between two samples, as GPM does."""
        before_s, read_s[0] = read_s[0], node.clock.now_s()
        ticks = range(int(4 * before_s), max(int(4 * before_s) + 1, int(4 * read_s[0])))
        means = {name: fmean(mig_use(name, k / 4) for k in ticks) for name in MIG}
        found = [
            DeviceProcess(-1 - i, means[name], None, MIG[name][0], f"MIG-{name}")
            for i, name in enumerate(MIG)
        ]
        return {"gpu:0": [*found, DeviceProcess(0, 0.0, None, 1.0)]}

    monkeypatch.setattr(NodeSensors, "processes", listed)
    node.start()
    pods = {}
    for name in ("big", "small"):
        pods[name] = node.run_pod(name)
        node.kubelet.take(name)
        resource = f"nvidia.com/mig-{MIG[name][0]}g.10gb"
        node.kubelet.give(name, devices=(f"MIG-{name}",), resource=resource)
    node.look()
    begin_s = node.clock.now_s()
    killed = random.Random(kills).sample(range(150), kills)
    for second in range(150):
        node.work(1, rest=1.0)
        if second in killed:
            node.kill()
            node.start()
    end_s = node.clock.now_s()
    for container in pods.values():
        node.end_pod(container)
    node.look()
    node.work(25, rest=1.0)
    times_s = [begin_s + k / 4 for k in range(round(4 * (end_s - begin_s)))]
    for name, container in pods.items():
        slices, cost_w, _ = MIG[name]
        use_s = sum(mig_use(name, at_s) for at_s in times_s) / 4
        true_j = MIG_IDLE_W * slices / 7 * (end_s - begin_s) + cost_w * use_s
        by_slices_j = (energy_at(end_s) - energy_at(begin_s)) * slices / 7
        end = node.end_of(container)
        assert energy_j(end, "gpu:0") == pytest.approx(true_j, rel=0.1)
        assert abs(by_slices_j - true_j) > 0.15 * true_j
        assert "activity of its MIG instances" in domains_of(end)["gpu:0"]["source"]
        assert any("activity of its MIG" in text for text in end["result"]["warnings"])
    node.stop()
    ends = node.ends()
    whole_j = energy_at(max(e["time_s"] for e in ends))
    whole_j -= energy_at(min(e["result"]["begin_s"] for e in ends))
    assert sum(energy_j(e, "gpu:0") for e in ends) == pytest.approx(whole_j, rel=1e-3)


def test_pods_on_one_card_pay_by_their_utilisation(
    node: PodNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time slices: NVML names the host's processes, and their control groups the containers."""
    agent = node.start()
    busy, idle = (node.run_pod(name, gpus=(0,)) for name in ("busy", "idle"))
    for pid, container in ((11, busy), (12, idle), (13, "f" * 64)):
        (node.folder / "proc" / str(pid)).mkdir()
        group = f"0::/kubepods.slice/cri-containerd-{container}.scope\n"
        (node.folder / "proc" / str(pid) / "cgroup").write_text(group)
    listed = [DeviceProcess(11, 0.6), DeviceProcess(12, 0.2), DeviceProcess(13, 0.9)]
    monkeypatch.setattr(agent.attribution.sensors, "processes", lambda: {"gpu:0": listed})
    node.look()
    begun_s = node.clock.now_s()
    node.work(10, rest=1.0)
    length_s, idle_w = node.clock.now_s() - begun_s, 0.2 * GPU_W[0]  # expected without a limit
    for container, part in ((busy, 0.75), (idle, 0.25)):
        run = agent.open_runs.find(container)
        assert run is not None
        expected_w = idle_w / 2 + (GPU_W[0] - idle_w) * part
        found_j = agent.attribution.account_of(run).energy_j["gpu:0"]
        assert found_j == pytest.approx(length_s * expected_w, rel=0.12)
        assert any("divided by utilisation" in text for text in run.plan.notes)


COST_W = (100.0, 350.0, 200.0, 450.0)
USE = (0.3, 0.2, 0.25, 0.1)
CARD_IDLE_W = 50.0


class CardOfFour:
    """A card that four pods share, and what each of them truly uses."""

    def __init__(self, use_at: Callable[[float], list[float]]) -> None:
        self._use_at = use_at
        self.zero_s: float | None = None
        self.pods: list[str] = []
        self.begin_s = math.inf
        self.ends_s: dict[str, float] = {}

    def node(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, api: KubernetesApi, kubelet: Kubelet
    ) -> PodNode:
        """Return a node whose first card this is; its driver names the pods' processes."""

        def script(power_w: float) -> Callable[[float], float]:
            if power_w != GPU_W[0]:
                return lambda now_s: power_w * now_s
            return self.energy_j

        monkeypatch.setattr("tests.fleet.kubernetes.conftest.line", script)
        node = PodNode(folder, monkeypatch, api, kubelet)
        self.zero_s = node.clock.now_s()

        def listed(_: object) -> dict[str, list[DeviceProcess]]:
            uses = self.uses(node.clock.now_s() - (self.zero_s or 0.0) - 0.5)
            here = [(11 + i, uses[i]) for i, pod in enumerate(self.pods) if pod in node.groups]
            return {"gpu:0": [DeviceProcess(*each) for each in here]}

        monkeypatch.setattr(NodeSensors, "processes", listed)
        node.start()
        node.work(12, rest=1.0)  # what it draws without a user
        for i in range(4):
            self.pods.append(node.run_pod(f"p{i}", gpus=(0,)))
            (node.folder / "proc" / str(11 + i)).mkdir()
            group = f"0::/kubepods.slice/cri-containerd-{self.pods[i]}.scope\n"
            (node.folder / "proc" / str(11 + i) / "cgroup").write_text(group)
        node.look()
        self.begin_s = node.clock.now_s() - self.zero_s
        return node

    def end(self, node: PodNode, i: int) -> None:
        self.ends_s[self.pods[i]] = node.clock.now_s() - (self.zero_s or 0.0)
        node.end_pod(self.pods[i])
        node.look()

    def energy_j(self, now_s: float) -> float:
        if self.zero_s is None:
            return 0.0
        time_s = now_s - self.zero_s
        steps_s = [k / 4 for k in range(int(4 * time_s) + 1)]
        return sum(
            min(0.25, time_s - at_s)
            * (CARD_IDLE_W + sum(c * u for c, u in zip(COST_W, self.uses(at_s), strict=True)))
            for at_s in steps_s
        )

    def uses(self, at_s: float) -> list[float]:
        ends_s = [self.ends_s.get(pod, math.inf) for pod in self.pods] or [0.0] * 4
        uses = zip(self._use_at(at_s), ends_s, strict=True)
        return [use * (self.begin_s <= at_s < end_s) for use, end_s in uses]

    def true_j(self, i: int) -> float:
        """Return what a pod used from its begin to its end."""
        found_j, at_s = 0.0, self.begin_s
        while at_s < self.ends_s[self.pods[i]]:
            present = sum(at_s < self.ends_s[pod] for pod in self.pods)
            found_j += (CARD_IDLE_W / present + COST_W[i] * self.uses(at_s)[i]) / 4
            at_s += 0.25
        return found_j


def pauses(time_s: float) -> list[float]:
    """Use of a card by four pods, which pause at times of their own."""
    periods_s = (17.0, 29.0, 41.0, 23.0)
    return [u * (time_s % p < 0.6 * p) for u, p in zip(USE, periods_s, strict=True)]


def constant(_: float) -> list[float]:
    return [*USE]


@pytest.mark.parametrize("kills", [0, 12])
@pytest.mark.parametrize(
    ("use_at", "ends_s"), [(pauses, (240,) * 4), (constant, (200, 120, 160, 80))]
)
def test_pods_in_time_slices_pay_what_their_use_costs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    api: KubernetesApi,
    kubelet: Kubelet,
    kills: int,
    use_at: Callable[[float], list[float]],
    ends_s: Sequence[int],
) -> None:
    """Promise: each pod's part is within 10% of the truth, which utilisation alone misses by far,
    also where only its end tells what a pod cost. Parts add up to the card, also when the agent is
    killed at any moment; no counter falls.
    """
    card = CardOfFour(use_at)
    node = card.node(tmp_path, monkeypatch, api, kubelet)
    dice = random.Random(kills)
    killed = sorted(dice.randrange(max(ends_s) + 30) for _ in range(kills))
    for second in range(max(ends_s) + 30):
        for i, end_s in enumerate(ends_s):
            if second == end_s:
                card.end(node, i)
        node.work(1, rest=1.0)
        for _ in range(killed.count(second)):
            node.kill()
            node.start()
    found_j = [energy_j(node.end_of(container), "gpu:0") for container in card.pods]
    true_j = [card.true_j(i) for i in range(4)]
    assert found_j == pytest.approx(true_j, rel=0.1)
    by_use_j = [u * end_s for u, end_s in zip(USE, ends_s, strict=True)]
    plain_j = [sum(true_j) * each_j / sum(by_use_j) for each_j in by_use_j]
    assert max(abs(a - b) / b for a, b in zip(plain_j, true_j, strict=True)) > 0.3
    node.stop()
    ends = node.ends()
    shares = [domains_of(node.end_of(container))["gpu:0"] for container in card.pods]
    assert {each["provenance"] for each in shares} == {"modelled"}
    assert all("by utilisation and what it costs" in each["source"] for each in shares)
    whole_j = card.energy_j(max(e["time_s"] for e in ends))
    assert sum(energy_j(e, "gpu:0") for e in ends) == pytest.approx(whole_j, rel=1e-4)
    for journal in node.journals():
        names = [domain["name"] for domain in journal.header["feeds"][0]["domains"]]
        blocks = [block for block in journal.blocks if block.feed == 0]
        column = names.index("gpu:0")
        rows = [value for block in blocks for value in block.values[column :: block.width]]
        assert all(a <= b + 1e-9 for a, b in itertools.pairwise(rows))


def followed(node: PodNode) -> tuple[Agent, AgentMetrics]:
    agent, metrics = node.agent, AgentMetrics()
    assert agent is not None
    agent.on_step = lambda: metrics.update(agent, [])
    agent.on_job_closed = partial(metrics.close_job, agent)
    return agent, metrics


def test_a_counter_of_a_pod_never_falls_where_the_agent_restarts_before_its_correction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: KubernetesApi, kubelet: Kubelet
) -> None:
    """Promise: the next agent, which does not know what was shown, leaves out pods that ended."""
    card = CardOfFour(constant)
    node = card.node(tmp_path, monkeypatch, api, kubelet)
    _, metrics = followed(node)
    shown: dict[str, list[float]] = {}
    for second in range(100):
        if second == 40:
            for i in range(3):
                card.end(node, i)
        if second == 42:
            node.kill()
            node.start()
            _, metrics = followed(node)
        node.work(1, rest=1.0)
        for line in metrics.render(False).splitlines():
            if "job_energy_joules_total" in line and "container=" in line:
                name, _, number = line.rpartition(" ")
                shown.setdefault(name, []).append(float(number))
    assert len(shown) >= 4
    assert all(a <= b for seen in shown.values() for a, b in itertools.pairwise(seen))
    assert sum(len(seen) < 50 for seen in shown.values()) >= 3
    assert any(len(seen) > 95 for seen in shown.values()), "the fourth pod runs on"


def test_counters_never_fall_where_a_pod_is_corrected_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: KubernetesApi, kubelet: Kubelet
) -> None:
    """Promise: `increase()` adds no joule twice, as it would where a counter falls; the joules
    of users are those of the records.
    """
    card = CardOfFour(constant)
    node = card.node(tmp_path, monkeypatch, api, kubelet)
    agent, metrics = followed(node)
    shown: dict[str, list[float]] = {}
    corrected, last_j = 0, dict.fromkeys(card.pods, 0.0)
    for second in range(190):
        for i, end_s in enumerate((160, 80, 120, 40)):
            if second == end_s:
                card.end(node, i)
        node.work(1, rest=1.0)
        for run in agent.open_runs.runs.values():
            own_j = agent.attribution.account_of(run).energy_j.get("gpu:0", 0.0)
            corrected += own_j < last_j[run.plan.job] - 1
            last_j[run.plan.job] = own_j
        for line in metrics.render(False).splitlines():
            if "_energy_joules_total" in line and 'scope="gpu"' in line:
                name, _, number = line.rpartition(" ")
                shown.setdefault(name, []).append(float(number))
    assert corrected, "no pod had too much when it ended"
    assert all(a <= b for seen in shown.values() for a, b in itertools.pairwise(seen))
    of_users_j = sum(seen[-1] for name, seen in shown.items() if "user_energy" in name)
    stored_j = sum(energy_j(node.end_of(container), "gpu:0") for container in card.pods)
    assert of_users_j == pytest.approx(stored_j, rel=0.01)


@pytest.mark.parametrize(
    ("code", "status", "exit_code", "signal"),
    [(0, "finished", 0, None), (3, "failed", 3, None), (137, "killed", None, 9)],
)
def test_a_run_ends_as_its_container_did(
    node: PodNode, code: int, status: str, exit_code: int | None, signal: int | None
) -> None:
    """The kubelet reports the exit code seconds after the control group is gone: the energy ends
    with the group, the run's record waits for the code.
    """
    node.start()
    train = node.run_pod("train", gpus=(0,))
    node.look()
    node.work(5, rest=1.0)
    node.end_pod(train, None)
    node.look()
    node.work(6, rest=1.0)
    assert node.of(train)[0].end is None
    node.report_end(train, code)
    node.look()
    node.work(2, rest=1.0)
    end = node.end_of(train)
    assert (end["status"], end["exit_code"], end["signal"]) == (status, exit_code, signal)
    assert energy_j(end, "gpu:0") == pytest.approx(5 * GPU_W[0], rel=0.06)


def test_a_container_that_was_restarted_at_once_has_its_exit_code(node: PodNode) -> None:
    """Its status is that of its successor, and its own is in `lastState`."""
    node.start()
    first = node.run_pod("again")
    node.look()
    node.work(2, rest=1.0)
    node.end_pod(first, None)
    (item,) = node.api.all("pods")
    (old,) = item["status"]["containerStatuses"]
    second = "e" * 64
    ended = {"terminated": {"exitCode": 1, "containerID": old["containerID"]}}
    new = {**old, "containerID": f"containerd://{second}", "lastState": ended}
    node.api.change("pods", "default", "again", {"status": {"containerStatuses": [new]}})
    node.look()
    node.work(3, rest=1.0)
    assert (node.end_of(first)["status"], node.end_of(first)["exit_code"]) == ("failed", 1)


@pytest.mark.parametrize("gone", [True, False])
def test_a_status_that_never_comes_delays_a_run_by_seconds_only(node: PodNode, gone: bool) -> None:
    node.start()
    train = node.run_pod("train")
    node.look()
    node.work(2, rest=1.0)
    node.end_pod(train, None)
    node.look()
    if gone:  # the API server has forgotten the pod
        node.api.remove("pods", "default", "train")
        node.look()
    node.work(3 if gone else 24, rest=1.0)
    assert node.end_of(train)["exit_code"] is None


def test_sandboxes_are_not_pods(node: PodNode) -> None:
    """The pause container of a pod has a group of its own and no name."""
    node.start()
    main = node.run_pod("one")
    uid = next(iter(node.api.all("pods")))["metadata"]["uid"]
    make_group(cgroup_of(node.folder / "cgroup", uid, "f" * 64))
    assert node.look() == ([main], [])
    node.work(1, rest=1.0)
    assert node.look() == ([], [])


@pytest.mark.skipif(not schemas_installed(), reason="kubernetes-validate is not installed")
def test_the_stand_in_refuses_what_the_official_schema_does(node: PodNode) -> None:
    good = pod("good")
    node.api.add(good)
    for change in ({"spec": {"nodeNam": "n1"}}, {"spec": {"nodeName": 3}}):
        with pytest.raises(ApiError):
            node.api.change("pods", "default", "good", change)
