"""Promises of caps by annotation: within the operator's rules, through a real control daemon."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.control.conftest import eventually
from tests.control.daemon.conftest import DaemonRig
from tests.support.kubelet import Kubelet
from tests.support.kubernetes_api import KubernetesApi, pod
from wattloop.core.clock import RealClock
from wattloop.core.settings import Settings
from wattloop.fleet.agent import job_caps
from wattloop.fleet.agent.config import AgentConfig, AgentContext
from wattloop.fleet.agent.job_caps import JobSetupThread
from wattloop.fleet.kubernetes.api_client import ApiAddress, KubernetesClient
from wattloop.fleet.kubernetes.node import KubernetesNode
from wattloop.hardware.host import Host

DEFAULT_W = 700.0
ASKED = "wattloop.dev/power-cap"
RULES = """\
socket: {{path: {folder}/c.sock, mode: 0600}}
log: {folder}/c.jsonl
rules: [{{uids: [{uid}], trusted: true, levers: {{"gpu:*/power_limit": 300 W to 600 W}}}}]
"""
"""As the chart writes them: what a pod may ask for."""


class Caps:
    """The thread of the agent that sets caps, on a node with pods."""

    def __init__(self, api: KubernetesApi, daemon: DaemonRig, folder: Path, socket: Path) -> None:
        control = {"socket": str(daemon.socket), "recap_s": 5.0}
        config = AgentConfig.model_validate(
            {"folder": str(folder), "control": control, "kubernetes": {"socket": str(socket)}}
        )
        assert config.control is not None
        config = config.model_copy(
            update={"control": config.control.model_copy(update={"recap_s": 0.05})}
        )
        context = AgentContext("n1", config, Settings(), Host(), RealClock(), {}, 8)
        client = KubernetesClient(ApiAddress(url=api.url, timeout_s=5.0))
        self.api = api
        self.source = KubernetesNode(context, client)
        self.thread = JobSetupThread(config, folder, self.source)
        self.thread.start()

    def begin(self, name: str, cap: str, gpu: str = "gpu:0") -> str:
        item = pod(name, annotations={ASKED: cap})
        self.api.add(item)
        self.source.watch.refresh()
        container = item["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
        self.thread.job_began(f"run-{name}", container, -1, [gpu])
        return str(container)

    def events(self) -> list[dict[str, Any]]:
        return [e for e in self.api.all("events") if e["reason"] == "PowerCapRefused"]


@pytest.fixture
def caps(daemon: DaemonRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Caps]:
    monkeypatch.setattr(job_caps, "CHECK_EVERY_S", 0.05)
    daemon.rules.write_text(RULES.format(folder=daemon.folder, uid=os.geteuid()))
    daemon.end()
    daemon.start()
    with KubernetesApi() as api, Kubelet(tmp_path / "k.sock") as kubelet:
        found = Caps(api, daemon, tmp_path, kubelet.socket)
        yield found
        found.thread.stop()


def test_a_pod_gets_the_cap_of_its_annotation_and_leaves_the_card_as_it_was(
    caps: Caps, daemon: DaemonRig
) -> None:
    """Also a changed annotation of a running pod, and one that is refused later."""
    container = caps.begin("train", "400W")
    assert eventually(lambda: daemon.limit_w(0) == 400.0)
    for cap, watts in (("80%", 560.0), ("900W", DEFAULT_W), ("500 W", 500.0)):
        change = {"metadata": {"annotations": {ASKED: cap}}}
        caps.api.change("pods", "default", "train", change)
        caps.source.watch.refresh()
        assert eventually(lambda watts=watts: daemon.limit_w(0) == pytest.approx(watts)), cap
    caps.thread.job_ended(container)
    assert eventually(lambda: daemon.limit_w(0) == DEFAULT_W)


@pytest.mark.parametrize(
    "cap",
    ["100W", "650W", "9000W", "-95%", "10 kW", "0", "300W; rm -rf /", "low_power", "\x1b[2J"],
)
def test_a_cap_outside_the_rules_is_refused_logged_and_an_event(
    caps: Caps, daemon: DaemonRig, cap: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And the next pod's is set all the same."""
    caps.begin("greedy", cap)
    assert eventually(lambda: len(caps.events()) == 1)
    (event,) = caps.events()
    assert event["involvedObject"]["name"] == "greedy"
    assert event["message"].isprintable()
    assert any("default/greedy refused" in record.getMessage() for record in caplog.records)
    caps.begin("modest", "350W", "gpu:1")
    assert eventually(lambda: daemon.limit_w(1) == 350.0)
    assert daemon.limit_w(0) == DEFAULT_W
    assert len(caps.events()) == 1  # said once, however often it is asked


def test_an_agent_that_is_gone_leaves_no_cap(caps: Caps, daemon: DaemonRig) -> None:
    caps.begin("train", "400W")
    assert eventually(lambda: daemon.limit_w(0) == 400.0)
    caps.thread.stop()
    assert eventually(lambda: daemon.limit_w(0) == DEFAULT_W)
