"""Promises of the Helm chart: its output is valid, least privileged, and sufficient."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kubernetes_api import KubernetesApi, Rules, check, pod, schemas_installed
from tests.support.kubernetes_cluster import job, node
from wattloop.control.daemon.rules import read_rules
from wattloop.core.errors import KubernetesError
from wattloop.fleet.agent.config import load_agent_config
from wattloop.fleet.kubernetes.api_client import ApiAddress, KubernetesClient
from wattloop.fleet.kubernetes.pods import OwnerResolver, PodWatch
from wattloop.schedule.kubernetes.driver import DriverLease
from wattloop.schedule.kubernetes.queue import KubernetesQueue, release_all

CHART = Path(__file__).parents[1] / "deploy" / "helm" / "wattloop"
HELM = shutil.which("helm") or shutil.which("helm", path=str(Path(sys.executable).parent))
pytestmark = pytest.mark.skipif(HELM is None, reason="helm (package helm-binary) is missing")
ALL_ON = (
    "caps.enabled=true", "driver.enabled=true", "driver.drive=true", "driver.kueue=true",
    "serviceMonitor.enabled=true", "store.existingSecret=pg", "cluster=lab",
)  # fmt: skip


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run(
        [HELM, *words], capture_output=True, text=True, timeout=120, check=False,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
    )  # fmt: skip


@cache
def rendered(*values: str) -> list[dict[str, Any]]:
    chosen = [word for value in values for word in ("--set", value)]
    done = helm("template", "w", str(CHART), "--namespace", "wattloop", *chosen)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def one(kind: str, name: str, *values: str) -> dict[str, Any]:
    (found,) = [o for o in rendered(*values) if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def rules_of(account: str, *values: str) -> Rules:
    return [
        rule
        for o in rendered(*values)
        if o["kind"] in ("ClusterRole", "Role") and o["metadata"]["name"] == account
        for rule in o["rules"]
    ]


@pytest.mark.skipif(not schemas_installed(), reason="kubernetes-validate is not installed")
@pytest.mark.parametrize("values", [(), ALL_ON, ("driver.enabled=true",)])
def test_every_object_is_valid_by_the_official_schema(values: tuple[str, ...]) -> None:
    """Validation is strict: a field that Kubernetes 1.37 does not know is an error."""
    assert helm("lint", "--strict", str(CHART)).returncode == 0
    kinds = [item["kind"] for item in rendered(*values)]
    assert "DaemonSet" in kinds
    for item in rendered(*values):
        check(item)


def containers(values: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    spec = one("DaemonSet", "w-agent", *values)["spec"]["template"]["spec"]
    return {each["name"]: each for each in spec["containers"]}


def test_measuring_needs_no_privilege_and_writes_only_its_own_folder() -> None:
    assert list(containers(())) == ["agent"]
    for values in ((), ALL_ON):
        agent = containers(values)["agent"]
        context = agent["securityContext"]
        assert context["privileged"] is context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        writable = {m["name"] for m in agent["volumeMounts"] if not m.get("readOnly")}
        assert writable == {"state", "tmp"}
        pod_spec = one("DaemonSet", "w-agent", *values)["spec"]["template"]["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod_spec.keys()


def test_caps_are_a_second_container_that_alone_is_privileged() -> None:
    found = containers(ALL_ON)
    assert list(found) == ["agent", "control"]
    assert found["control"]["securityContext"]["privileged"] is True
    others = [o for o in rendered(*ALL_ON) if o["kind"] in ("Deployment", "CronJob")]
    assert '"privileged": true' not in json.dumps(others)


def test_accounts_may_do_what_they_need_and_never_everything() -> None:
    for values in ((), ALL_ON, ("driver.enabled=true",)):
        for account in ("w-agent", "w-driver"):
            for rule in rules_of(account, *values):
                words = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
                assert "*" not in words
                assert "secrets" not in words
    verbs = {v for rule in rules_of("w-agent") for v in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}
    seen = {v for rule in rules_of("w-driver", "driver.enabled=true") for v in rule["verbs"]}
    assert seen == {"list"}  # an observer can change nothing


@pytest.mark.skipif(not schemas_installed(), reason="kubernetes-validate is not installed")
def test_further_variables_reach_agent_and_driver() -> None:
    """Promise: a provider of forecasts, its token in a Secret and an exporter can be named."""
    token = "driver.extraEnv[1].valueFrom.secretKeyRef"
    values = (
        "driver.enabled=true", "agent.extraEnv[0].name=WATTLOOP_DCGM_EXPORTER",
        "agent.extraEnv[0].value=http://$(HOST_IP):9400/metrics",
        "driver.extraEnv[0].name=WATTLOOP_CARBON_PROVIDER", "driver.extraEnv[0].value=uk",
        "driver.extraEnv[1].name=WATTLOOP_CARBON_TOKEN", f"{token}.name=grid", f"{token}.key=token",
    )  # fmt: skip
    (driver,) = one("Deployment", "w-driver", *values)["spec"]["template"]["spec"]["containers"]
    assert driver["env"][-2] == {"name": "WATTLOOP_CARBON_PROVIDER", "value": "uk"}
    assert driver["env"][-1]["valueFrom"] == {"secretKeyRef": {"name": "grid", "key": "token"}}
    assert containers(values)["agent"]["env"][-1]["value"] == "http://$(HOST_IP):9400/metrics"
    for item in rendered(*values):
        check(item)
    refused = helm("template", "w", str(CHART), "--set", "driver.extraEnv[0].value=uk")
    assert refused.returncode != 0


def test_the_address_of_the_store_is_nowhere_but_in_its_secret() -> None:
    item = one("DaemonSet", "w-agent", *ALL_ON)
    (volume,) = [v for v in item["spec"]["template"]["spec"]["volumes"] if v["name"] == "store"]
    assert volume["secret"]["secretName"] == "pg"
    assert "postgresql://" not in json.dumps(rendered(*ALL_ON))


def test_the_rendered_configuration_is_one_that_agent_and_daemon_read(tmp_path: Path) -> None:
    for values in ((), ALL_ON):
        data = one("ConfigMap", "w-agent", *values)["data"]
        (tmp_path / "agent.yaml").write_text(data["agent.yaml"])
        config = load_agent_config(str(tmp_path / "agent.yaml"), "ip-10-0-0-1.ec2.internal")
        assert config.kubernetes is not None
        assert (config.control is not None) == ("control.yaml" in data)
    (tmp_path / "control.yaml").write_text(data["control.yaml"])
    (rule,) = read_rules(tmp_path / "control.yaml").rules
    assert rule.trusted
    given = ("caps.enabled=true", "deliver.url=https://s:8765", "deliver.existingSecret=t")
    (tmp_path / "agent.yaml").write_text(one("ConfigMap", "w-agent", *given)["data"]["agent.yaml"])
    config = load_agent_config(str(tmp_path / "agent.yaml"), "n1")
    assert config.deliver is not None
    assert str(config.deliver.token_file) == "/etc/wattloop/tokens/n1"


@pytest.mark.parametrize(
    "values",
    [
        ("store.existingSecret=a", "deliver.url=https://s", "deliver.existingSecret=b"),
        ("deliver.url=https://s",),
        ("deliver.url=ftp://s",),
        ("driver.leaseSeconds=1",),
        ("agent.folder=relative",),
    ],
)
def test_values_that_make_no_sense_are_refused(values: tuple[str, ...]) -> None:
    chosen = [word for value in values for word in ("--set", value)]
    assert helm("template", "w", str(CHART), *chosen).returncode != 0


def test_the_rights_of_the_chart_are_enough(tmp_path: Path) -> None:
    """All requests of agent and driver are allowed by the rendered rules."""
    tokens = {name: rules_of(f"w-{name}", *ALL_ON) for name in ("agent", "driver")}
    with KubernetesApi(tokens=tokens) as api:
        clients = {}
        for name in tokens:
            (tmp_path / name).write_text(name)
            address = ApiAddress(url=api.url, token_file=tmp_path / name, timeout_s=5.0)
            clients[name] = KubernetesClient(address)
        for item in (node("n1"), job("train"), pod("web", owner={"kind": "Job", "name": "train"})):
            api.add(item)
        version = PodWatch(clients["agent"], "n1", tmp_path / "pods.json").refresh()
        list(clients["agent"].watch("/api/v1/pods", version, 1.0))
        resolver = OwnerResolver(clients["agent"])
        for kind in ("ReplicaSet", "Job", "RayCluster"):
            resolver.owner(pod("x", owner={"kind": kind, "name": "train"}))
        event = {
            "apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "e-"},
            "involvedObject": {"kind": "Pod", "name": "web"},
        }  # fmt: skip
        clients["agent"].create("/api/v1/namespaces/default/events", event)
        lease = DriverLease(clients["driver"], "wattloop", "d")
        lease.renew()
        queue = KubernetesQueue(clients["driver"], kueue=True)
        assert queue.nodes()[0].name == "n1"
        assert release_all(queue, "test") == (["default/train"], [])
        lease.give_up()
        assert api.denied == []
        with pytest.raises(KubernetesError):
            clients["agent"].list("/api/v1/nodes")
        assert api.denied == ["list /nodes"]
