"""A node of Kubernetes on a virtual clock: API server and kubelet are stand-ins, gRPC is real."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.control.daemon.conftest import daemon, rig  # noqa: F401 - fixtures of a real daemon
from tests.fleet.agent.scripted_node import PACKAGE, ScriptedNode, counter
from tests.support.kubelet import Kubelet, cgroup_of, make_group, remove_group, use_cpu
from tests.support.kubernetes_api import KubernetesApi, pod
from wattloop.core.records import Scope
from wattloop.core.settings import Settings
from wattloop.fleet.agent.agent import Agent
from wattloop.fleet.agent.config import AgentConfig, AgentContext
from wattloop.fleet.kubernetes.api_client import ApiAddress, KubernetesClient
from wattloop.fleet.kubernetes.node import ContainerFollower, KubernetesNode
from wattloop.store.journal import Journal

UUIDS = ("GPU-aaaa", "GPU-bbbb")
CPU_W, GPU_W, IDLE_W = 100.0, (300.0, 200.0), 40.0


def line(power_w: float) -> Any:
    return lambda now_s: power_w * now_s


class PodNode(ScriptedNode):
    """The node, its pods, and its agent."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, api: KubernetesApi, kubelet: Kubelet
    ) -> None:
        scripts = [(counter(PACKAGE, Scope.CPU, tdp_w=160.0), line(CPU_W))]
        scripts += [
            (counter(f"gpu:{n}", Scope.GPU, identity=uuid), line(GPU_W[n]))
            for n, uuid in enumerate(UUIDS)
        ]
        super().__init__(
            folder,
            scripts,
            monkeypatch,
            cpu_idle_w=IDLE_W,
            kubernetes={"api": api.url, "socket": str(kubelet.socket)},
        )
        self.api, self.kubelet = api, kubelet
        self.source: KubernetesNode
        self.follower: ContainerFollower
        self.groups: dict[str, Path] = {}
        self.used_s = 0.0
        self.busy(0.0)

    def start(self) -> Agent:
        config = AgentConfig.model_validate(self.config)
        numbers = {n: n for n in range(8)}
        context = AgentContext("n1", config, Settings(), self.host, self.clock, numbers, 8)
        client = KubernetesClient(ApiAddress(url=self.api.url, timeout_s=5.0))
        self.source = KubernetesNode(context, client)
        self.agent = agent = Agent(context, None, self.source)
        agent.start()

        def running() -> list[str]:
            return [plan.job for plan in agent.open_runs.running()]

        self.follower = ContainerFollower(self.source, self.folder / "n1/events", running)
        return agent

    def run_pod(
        self, name: str, *, gpus: tuple[int, ...] = (), qos: str = "burstable",
        driver: str = "systemd", runtime: str = "cri-containerd", **about: Any
    ) -> str:  # fmt: skip
        """Start a pod with one container; return the container."""
        container = secrets.token_hex(32)
        said = runtime.removeprefix("cri-").replace("crio", "cri-o")
        item = pod(name, containers={"main": container}, gpus=len(gpus), runtime=said, **about)
        self.api.add(item)
        namespace = item["metadata"]["namespace"]
        self.kubelet.give(name, devices=tuple(UUIDS[n] for n in gpus), namespace=namespace)
        folder = cgroup_of(self.folder / "cgroup", item["metadata"]["uid"], container,
                           qos=qos, driver=driver, runtime=runtime)  # fmt: skip
        make_group(folder)
        self.groups[container] = folder
        return container

    def end_pod(self, container: str, exit_code: int | None = 0) -> None:
        """End a container; without an exit code the kubelet has not reported it yet."""
        remove_group(self.groups.pop(container))
        if exit_code is not None:
            self.report_end(container, exit_code)

    def report_end(self, container: str, exit_code: int) -> None:
        """Report the end of a container, as the kubelet does."""
        ended = {"terminated": {"exitCode": exit_code, "reason": "Error"}}
        for key, item in list(self.api.state.objects.items()):
            statuses = item.get("status", {}).get("containerStatuses", [])
            if any(one.get("containerID", "").endswith(container) for one in statuses):
                status = {**item["status"], "containerStatuses": [
                    {**one, "state": ended} for one in statuses
                ]}  # fmt: skip
                with self.api.state.lock:
                    self.api.state.write("MODIFIED", key, {**item, "status": status})

    def look(self) -> tuple[list[str], list[str]]:
        """The follower compares once, with fresh pods."""
        self.source.watch.refresh()
        return self.follower.check()

    def work(self, seconds: int, **cpu_s: float) -> None:
        """Pods use CPU time: seconds per second by container, and `rest` for the node itself."""
        done = dict.fromkeys(cpu_s, 0.0)
        for _ in range(seconds * 4):
            self.pass_time(0.25)
            for one, rate in cpu_s.items():
                done[one] += rate / 4
                self.used_s += rate / 4
                if one != "rest":
                    use_cpu(self.groups[one], done[one])
            self.busy(self.used_s)

    def of(self, container: str) -> list[Journal]:
        return [
            j
            for j in self.journals()
            if j.header["job"] and j.header["job"]["scheduler"]["container_id"] == container
        ]

    def end_of(self, job: str) -> dict[str, Any]:
        (found,) = self.of(job)
        assert found.end is not None
        return found.end


@pytest.fixture
def api() -> Iterator[KubernetesApi]:
    with KubernetesApi() as found:
        yield found


@pytest.fixture
def kubelet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    with Kubelet(tmp_path_factory.mktemp("k") / "kubelet.sock") as found:
        yield found


@pytest.fixture
def node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: KubernetesApi, kubelet: Kubelet
) -> Iterator[PodNode]:
    found = PodNode(tmp_path, monkeypatch, api, kubelet)
    yield found
    found.kill()
