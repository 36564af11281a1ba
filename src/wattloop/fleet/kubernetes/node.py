"""Kubernetes as the source of a node's jobs: containers that begin and end, their caps."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.errors import ClusterError, KubernetesError, MeterUnavailable
from wattloop.core.files import atomic_write
from wattloop.core.process import BackgroundThread
from wattloop.core.records import Domain
from wattloop.fleet.agent.config import CAP as CAP_FORM
from wattloop.fleet.agent.config import AgentContext, KubernetesConfig
from wattloop.fleet.agent.job_facts import JobFacts
from wattloop.fleet.kubernetes.api_client import ApiAddress, KubernetesClient, segment
from wattloop.fleet.kubernetes.pod_resources import ContainerDevices, KubeletClient
from wattloop.fleet.kubernetes.pods import (
    LONGEST,
    ContainerGroup,
    Pod,
    PodContainer,
    PodOwner,
    PodWatch,
    container_groups,
)

# A container is to the agent what a job is under Slurm: an event file says when it began, with its
# CPUs and GPUs, another when it ended. Instead of a prolog, a thread compares the control groups of
# the node with the containers that the agent has: nothing has to be remembered, so whatever was
# killed, the next comparison mends.

POLL_S = 1.0
FIRST_POLL_S = 0.2
KUBELET_EVERY_S = 5.0
KUBELET_PATIENCE_S = 10.0
"""A container waits so long for a kubelet that does not say which devices it has."""
UNKNOWN_S = 60.0
"""After so long a container of a pod that the API server does not know is measured by its uid."""
SCHEDULER = "kubernetes"
MOST_REFUSALS = 1_000
LAST_SIGNAL = 64
EXIT_S = 20.0
"""Time for which the end of a run waits for the kubelet's word on how its container ended."""
SLICES = 7
"""Compute slices of A100, H100 and later; NVML knows them better where it answers."""
_PROFILE = re.compile(r"mig-(\d)g\.")
_INSTANCE = re.compile(r"MIG-[\w/-]{1,80}", re.ASCII | re.IGNORECASE)
_NUMBERED = re.compile(r"(?:gpu-|nvidia|card|virtual-)?(\d{1,3})")
_log = logging.getLogger("wattloop.agent")


class _FoundContainer(NamedTuple):
    pod: Pod
    container: PodContainer


class KubernetesNode:
    """Source of the agent's jobs on a node of Kubernetes.

    Args:
        context: of the agent; its configuration has a section `kubernetes`.
        client: of the API server; by the configuration unless given.
    """

    def __init__(self, context: AgentContext, client: KubernetesClient | None = None) -> None:
        given = context.config.kubernetes or KubernetesConfig()
        self.context, self._given = context, given
        self._client = client or KubernetesClient(api_address(given))
        self.watch = PodWatch(
            self._client.another(), given.node or context.node, context.folder / "pods.json"
        )
        self.kubelet = KubeletClient(given.socket)
        self._root = Path(context.config.cgroup_root)
        self._groups: dict[str, ContainerGroup] = {}
        self._gpus: dict[str, int] = {}
        self._refused: set[tuple[str, str]] = set()

    def attach(self, domains: Mapping[str, Domain]) -> None:
        """Learn which identifier belongs to which GPU of this node."""
        for name, domain in domains.items():
            kind, _, number = name.partition(":")
            if kind == "gpu" and number.isdigit():
                self._gpus[f"gpu-{number}"] = int(number)
                if domain.identity:
                    self._gpus[domain.identity.lower()] = int(number)
        self._gpus |= {name.lower(): number for name, number in self._given.gpus.items()}

    def follower(self, events: Path, running: Callable[[], Sequence[str]]) -> ContainerFollower:
        return ContainerFollower(self, events, running)

    def cpu_file(self, job: str, uid: int) -> Path | None:
        """Return the file with the CPU time of a container."""
        del uid
        group = self._groups.get(job)
        if group is None:
            self.groups()
            group = self._groups.get(job)
        return None if group is None else group.folder / "cpu.stat"

    def groups(self) -> dict[str, ContainerGroup]:
        """Return the control groups of containers, by container."""
        self._groups = {group.container_id: group for group in container_groups(self._root)}
        return self._groups

    def find(self, container_id: str) -> _FoundContainer | None:
        for pod in self.watch.pods().values():
            for container in pod.containers:
                if container_id in (container.container_id, container.before[0]):
                    return _FoundContainer(pod, container)
        return None

    def exit_status(self, job: str) -> int | None:
        """Return a container's end as `wait` has it: by its exit code, or a signal above 128.

        The kubelet reports it some seconds after the control group is gone.
        """
        found = self.find(job)
        code = None if found is None else found.container.exit_of(job)
        if code is None:
            return None
        return code - 128 if 128 < code <= 128 + LAST_SIGNAL else code << 8

    def awaits_exit(self, job: str, since_s: float) -> bool:
        """Return True for a listed container without an exit code, if it does not run on."""
        return since_s < EXIT_S and job not in self._groups and self.find(job) is not None

    def gpu_numbers(self, devices: Sequence[tuple[str, str]]) -> tuple[list[int], list[str]]:
        """Return the GPUs among devices by their number here, and identifiers without one."""
        numbers, unknown = set[int](), []
        for resource, name in devices:
            if "gpu" not in resource.lower() and "mig-" not in resource.lower():
                continue
            # NVIDIA's plugin appends ::N to a card that several containers share
            card = name.partition("::")[0].lower()
            number = self._gpus.get(card)
            if number is None and (match := _NUMBERED.fullmatch(card)):
                number = self._gpus.get(f"gpu-{int(match[1])}")
            if number is None and card.startswith("mig-"):
                number = self._gpus.get(self._card_of(name.partition("::")[0]))
            if number is None:
                unknown.append(name)
            else:
                numbers.add(number)
        return sorted(numbers), unknown

    def gpu_parts(self, devices: Sequence[tuple[str, str]]) -> dict[int, float]:
        """Return GPU -> the part of it that a container's MIG instances are, by their slices."""
        parts: dict[int, float] = {}
        for resource, name in devices:
            found = _PROFILE.search(resource)
            part = self._instance(name)[1]
            if part is None and found is not None:
                part = int(found[1]) / SLICES
            for number in self.gpu_numbers([(resource, name)])[0] if part else ():
                parts[number] = min(1.0, parts.get(number, 0.0) + (part or 0.0))
        return parts

    def _card_of(self, instance: str) -> str:
        """Return the identifier of the card that a MIG instance is a part of; empty if unknown."""
        return self._instance(instance)[0]

    def _instance(self, name: str) -> tuple[str, float | None]:
        """Return card and part of a MIG instance, as far as NVML knows it."""
        from wattloop.meters import nvidia

        if not name.lower().startswith("mig-"):
            return "", None
        try:
            nvml = nvidia.open_nvml(self.context.host)
        except MeterUnavailable:
            return "", None
        try:
            return nvidia.instance_part(nvml, name)
        finally:
            nvidia.shut_down(nvml)

    def ask(self, job: str, caps: bool) -> tuple[JobFacts | None, str]:
        """Return the cap that a pod's annotation asks for, and whether its owner objects to more.

        A cap in another form than `300W`, `80%` or `-10%` is refused here, one outside of the
        operator's rules by the control daemon.
        """
        del caps
        found = self.find(job)
        if found is None:
            return None, self.watch.fault or "the API server does not list its pod"
        cap: dict[str, Any] = {}
        if found.pod.cap:
            if CAP_FORM.fullmatch(found.pod.cap):
                cap["cap"] = found.pod.cap
            else:
                self.refused(job, f"{found.pod.cap[:40]!r} is not a cap: write it as 300W or 80%")
        return JobFacts({}, cap, no_save=found.pod.no_save), ""

    def refused(self, job: str, why: str) -> None:
        """Log a refused cap, and write an event that `kubectl describe pod` shows."""
        found = self.find(job)
        if found is None or (job, why) in self._refused:
            return
        self._refused = {*list(self._refused)[-MOST_REFUSALS:], (job, why)}
        pod = found.pod
        _log.warning("cap of pod %s/%s refused: %s", pod.namespace, pod.name, why)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": "wattloop-cap-", "namespace": pod.namespace},
            "involvedObject": {
                **{"apiVersion": "v1", "kind": "Pod", "uid": pod.uid},
                **{"namespace": pod.namespace, "name": pod.name},
            },
            "reason": "PowerCapRefused",
            "message": why[:1_000],
            "type": "Warning",
            "source": {"component": "wattloop", "host": self.context.node},
            "reportingComponent": "wattloop.dev/agent",
            "reportingInstance": self.context.node,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            client = self._client.another()
            client.create(f"/api/v1/namespaces/{segment(pod.namespace)}/events", body)
            client.close()
        except KubernetesError as error:
            _log.warning("%s", error)


class ContainerFollower(BackgroundThread):
    """Thread that writes events of containers that began or ended.

    Args:
        running: containers that the agent takes to be running, at any time.
    """

    def __init__(
        self, node: KubernetesNode, events: Path, running: Callable[[], Sequence[str]]
    ) -> None:
        super().__init__("wattloop-containers", patience_s=5.0)
        self._node, self._events, self._running = node, events, running
        self._devices: dict[tuple[str, str, str], ContainerDevices] = {}
        self._asked_s = float("-inf")
        self._answered_s = float("-inf")
        self._first_s: dict[str, float] = {}
        self._begun: dict[str, float] = {}
        self._ended: set[str] = set()
        self._threads = ExitStack()
        self.fault = ""

    def __enter__(self) -> ContainerFollower:
        self._threads.enter_context(self._node.watch)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._threads.close()
        self._node.kubelet.close()

    def _work(self) -> None:
        while True:
            try:
                self.check()
            except Exception as error:  # noqa: BLE001 - measuring must not stop for it
                self.fault = f"{type(error).__name__}: {error}"
                _log.exception("containers were not compared")
            # at first more often: containers may have begun while no agent ran
            if self._stop.wait(POLL_S if self._node.watch.is_current else FIRST_POLL_S):
                return

    def check(self) -> tuple[list[str], list[str]]:
        """Compare once; return containers whose start and whose end was written."""
        now_s = self._node.context.clock.now_s()
        groups, running = self._node.groups(), set(self._running())
        ended = [one for one in running if one not in groups and one not in self._ended]
        for container_id in ended:
            self._write_end(container_id)
        self._ended = {one for one in (*self._ended, *ended) if one in running}
        self._begun = {one: at_s for one, at_s in self._begun.items() if one in groups}
        self._first_s = {one: at_s for one, at_s in self._first_s.items() if one in groups}
        fresh = [one for one in groups if one not in running and one not in self._begun]
        begun = []
        if fresh or now_s - self._asked_s > KUBELET_EVERY_S:
            self._ask_kubelet(now_s)
        for container_id in fresh:
            first_s = self._first_s.setdefault(container_id, now_s)
            if self._begin(groups[container_id], now_s - first_s):
                self._begun[container_id] = now_s
                begun.append(container_id)
        # A start that the agent never took, e.g. for a full disk, is written again.
        self._begun = {
            one: at_s
            for one, at_s in self._begun.items()
            if one in running or now_s - at_s < UNKNOWN_S
        }
        self._roll(running & groups.keys(), now_s)
        return begun, ended

    def _ask_kubelet(self, now_s: float) -> None:
        self._asked_s = now_s
        try:
            listed = self._node.kubelet.devices()
        except ClusterError as error:
            if str(error) != self.fault:
                _log.warning("%s", error)
            self.fault = str(error)
            return
        self._answered_s, self.fault = now_s, ""
        self._devices = {(one.namespace, one.pod, one.container): one for one in listed}

    def _begin(self, group: ContainerGroup, waited_s: float) -> bool:
        """Write the start of a container once it is known; True when it was written."""
        found = self._node.find(group.container_id)
        if found is None:
            if waited_s < UNKNOWN_S or self._node.watch.fault == "":
                return False  # a sandbox, or not known yet
            pod = Pod(group.pod_uid, "", f"pod {group.pod_uid}", PodOwner("Pod", group.pod_uid))
            found = _FoundContainer(pod, PodContainer("", group.container_id))
        pod, container = found
        devices = self._devices.get((pod.namespace, pod.name, container.name))
        if devices is None and self.fault and waited_s < KUBELET_PATIENCE_S:
            return False
        gpus, unknown = self._node.gpu_numbers(devices.devices if devices else ())
        parts = self._node.gpu_parts(devices.devices if devices else ())
        instances = [name.partition("::")[0] for _, name in (devices.devices if devices else ())]
        job = f"{pod.namespace}/{pod.owner.kind}/{pod.owner.name}"
        self._write(
            group.container_id,
            "start",
            {
                "scheduler": SCHEDULER,
                "job": job,
                "name": pod.name,
                "namespace": pod.namespace,
                "user": pod.user,
                "account": pod.project,
                "pod": pod.name,
                "pod_uid": pod.uid,
                "container": container.name,
                "owner_kind": pod.owner.kind,
                "owner": pod.owner.name,
                "cpus": f"{container.cpus:.3f}",
                "cpu_s": f"{_cpu_s(group.folder / 'cpu.stat'):.6f}",
                "gpus": ",".join(map(str, gpus)),
                "gpu_parts": ",".join(f"{n}={part:.6f}" for n, part in parts.items()),
                "gpu_instances": ",".join(x for x in instances if _INSTANCE.fullmatch(x)),
                "gpus_unknown": ",".join(unknown)[:LONGEST],
                "devices_unknown": self.fault[:LONGEST] if devices is None else "",
            },
        )
        return True

    def _roll(self, running: set[str], now_s: float) -> None:
        """End and begin the run of a container that has run for long: a service never ends."""
        for container_id in running:
            since_s = self._begun.setdefault(container_id, now_s)
            if now_s - since_s > self._node.context.config.unallocated_hours * 3_600:
                group = self._node._groups.get(container_id)
                if group is not None:
                    self._write_end(container_id)
                    self._begin(group, float("inf"))
                    self._begun[container_id] = now_s

    def _write_end(self, container_id: str) -> None:
        status = self._node.exit_status(container_id)
        self._write(container_id, "end", {} if status is None else {"exit": str(status)})

    def _write(self, container_id: str, kind: str, facts: Mapping[str, str]) -> None:
        context = self._node.context
        lines = {
            "event": kind,
            "uptime_s": f"{context.uptime_s() or ''}",
            "boot": context.host.boot_id,
            "container_id": container_id,
            **facts,
            "whole": "yes",
        }
        text = "".join(f"{name}={value}\n" for name, value in lines.items() if value)
        name = f"{round(context.clock.wall_s() * 1e9)}-{container_id}-{kind}"
        atomic_write(self._events / name, text, mode=0o600)


def _cpu_s(path: Path) -> float:
    """Return the CPU time of a group so far: it may be older than the agent."""
    try:
        words = path.read_text("ascii", "replace").split()
        return int(words[1]) / 1e6 if words[0] == "usage_usec" else 0.0
    except (OSError, ValueError, IndexError):
        return 0.0


def api_address(given: KubernetesConfig) -> ApiAddress:
    """Return the API server of a configuration; in a pod, the one that every pod is given."""
    if given.api is None:
        return ApiAddress.in_cluster()
    return ApiAddress(url=given.api, token_file=given.token_file, ca_file=given.ca_file)
