"""Pods of a node: their containers, owners and control groups."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.errors import ClusterError, KubernetesError
from wattloop.core.files import atomic_write_json
from wattloop.core.process import BackgroundThread
from wattloop.fleet.kubernetes.api_client import Json, KubernetesClient, segment

CAP = "wattloop.dev/power-cap"
NO_SAVE = "wattloop.dev/no-save"
USER, PROJECT = "wattloop.dev/user", "wattloop.dev/project"
LONGEST = 200
MOST_PODS = 2_000
"""A kubelet runs at most some hundred."""
WATCH_S = 30.0
"""A watch of a server that vanished without a word is noticed after so long."""
DELETED_S = 120.0
AGAIN_S = 2.0
_log = logging.getLogger("wattloop.agent")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ID = re.compile(r"[0-9a-f]{64}")
_QUANTITY = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(m|k|)")
OWNERS = {
    "ReplicaSet": ("apis/apps/v1", "replicasets"),
    "Job": ("apis/batch/v1", "jobs"),
    "RayCluster": ("apis/ray.io/v1", "rayclusters"),
}
"""Kinds that others own: a Deployment a ReplicaSet, a CronJob or RayJob a Job, a RayJob a
RayCluster. Any other controller of a pod is its owner."""
MOST_OWNERS = 4


class PodOwner(NamedTuple):
    """The object that a pod works for, e.g. (PyTorchJob, bert)."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container of a pod.

    Attributes:
        container_id: 64 hexadecimal digits, the same in the runtime's control group; empty before
            the container starts.
        cpus: CPUs that it requests.
        exit_code: of a container that has ended.
        before: the container that this one replaced, after a restart.
    """

    name: str
    container_id: str = ""
    cpus: float = 0.0
    exit_code: int | None = None
    before: tuple[str, int | None] = ("", None)

    def exit_of(self, container_id: str) -> int | None:
        """Return the exit code of this container or of the one before; None if unknown."""
        if container_id == self.container_id:
            return self.exit_code
        return self.before[1] if container_id == self.before[0] else None


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of this node, by the API server."""

    uid: str
    namespace: str
    name: str
    owner: PodOwner
    cap: str = ""
    no_save: bool = False
    user: str = ""
    project: str = ""
    containers: tuple[PodContainer, ...] = ()


def parse_pod(data: Any, owner: PodOwner | None = None) -> Pod | None:
    """Return a pod from its object; None where it has no name. Every text is made plain."""
    about = _dict(data, "metadata")
    uid, name, namespace = (_text(about.get(key)) for key in ("uid", "name", "namespace"))
    if not (uid and name and namespace):
        return None
    spec, status = _dict(data, "spec"), _dict(data, "status")
    cpus = {
        _text(one.get("name")): parse_cpus(_dict(_dict(one, "resources"), "requests").get("cpu"))
        for one in (*_dicts(spec, "initContainers"), *_dicts(spec, "containers"))
    }
    ran = {}
    for one in (*_dicts(status, "initContainerStatuses"), *_dicts(status, "containerStatuses")):
        ran[_text(one.get("name"))] = one
    containers = []
    for key, number in cpus.items():
        said = ran.get(key, {})
        ended = _dict(_dict(said, "state"), "terminated")
        before = _dict(_dict(said, "lastState"), "terminated")
        containers.append(
            PodContainer(
                key, _id(said), number, _exit_code(ended), (_id(before), _exit_code(before))
            )
        )
    notes = _dict(about, "annotations")
    return Pod(
        uid,
        namespace,
        name,
        owner or controller(data) or PodOwner("Pod", name),
        cap=_text(notes.get(CAP)),
        no_save=_text(notes.get(NO_SAVE)).lower() == "true",
        user=_text(notes.get(USER)),
        project=_text(notes.get(PROJECT)),
        containers=tuple(containers[:100]),
    )


def _id(said: Mapping[str, Any]) -> str:
    found = _text(said.get("containerID")).rpartition("/")[2]
    return found if _ID.fullmatch(found) else ""


def _exit_code(ended: Mapping[str, Any]) -> int | None:
    code = ended.get("exitCode")
    return code if type(code) is int and 0 <= code < 256 else None


def controller(data: Any) -> PodOwner | None:
    """Return the controller of an object by its own words."""
    for one in _dicts(_dict(data, "metadata"), "ownerReferences"):
        if one.get("controller") is True:
            return PodOwner(_text(one.get("kind")), _text(one.get("name")))
    return None


def parse_cpus(value: Any) -> float:
    """Return CPUs of a quantity such as `500m` or `2`; 0 for others."""
    found = _QUANTITY.fullmatch(str(value if value is not None else ""))
    if found is None:
        return 0.0
    return float(found[1]) * {"m": 1e-3, "k": 1e3, "": 1.0}[found[2]]


class OwnerResolver:
    """Owners of pods, from controller to controller; each is asked for once.

    Without permission, the owner is the last one that is known. A ReplicaSet whose name ends with
    its pods' template hash is named after its Deployment, so that needs no permission.
    """

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client
        self._known: dict[tuple[str, str, str], PodOwner] = {}

    def owner(self, data: Json) -> PodOwner | None:
        found = controller(data)
        about = _dict(data, "metadata")
        namespace, labels = _text(about.get("namespace")), _dict(about, "labels")
        for _ in range(MOST_OWNERS):
            if found is None or found.kind not in OWNERS:
                break
            tail = f"-{_text(labels.get('pod-template-hash'))}"
            if found.kind == "ReplicaSet" and len(tail) > 1 and found.name.endswith(tail):
                return PodOwner("Deployment", found.name.removesuffix(tail))
            above = self._above(namespace, found)
            if above == found:
                break
            found = above
        return found

    def _above(self, namespace: str, owner: PodOwner) -> PodOwner:
        key = (namespace, *owner)
        if key not in self._known:
            group, plural = OWNERS[owner.kind]
            path = f"/{group}/namespaces/{segment(namespace)}/{plural}/{segment(owner.name)}"
            try:
                above = controller(self._client.get(path))
            except KubernetesError as error:
                if error.is_away:
                    return owner  # asked again for the next pod
                above = None
            if len(self._known) >= 10 * MOST_PODS:
                self._known.clear()
            self._known[key] = above or owner
        return self._known[key]


class PodWatch(BackgroundThread):
    """Thread that has the pods of this node as the API server does: one list, then a watch.

    The last known pods are on disk as well: an agent that starts while the API server is away
    knows them.
    """

    def __init__(self, client: KubernetesClient, node: str, file: Path) -> None:
        super().__init__("wattloop-pods", patience_s=0.0)
        self._client, self._file = client, file
        self._query = {"fieldSelector": f"spec.nodeName={node}"}
        self._owners = OwnerResolver(client.another())
        self._lock = threading.Lock()
        self._pods: dict[str, Pod] = _load(file)
        self._version = ""
        self._deleted_s: dict[str, float] = {}
        self.fault = ""
        """Why the API server does not answer; empty when it does."""
        self.is_current = False
        """Whether this process has listed the pods."""

    def pods(self) -> dict[str, Pod]:
        """Return pods by their uid."""
        with self._lock:
            return dict(self._pods)

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self.follow()
            except ClusterError as error:
                if getattr(error, "status", 0) == 410:
                    self._version = ""  # its history is gone: list again
                    continue
                self._failed(str(error))
                self._stop.wait(AGAIN_S)
            except Exception as error:  # noqa: BLE001 - measuring must not stop for it
                self._version = ""
                self._failed(f"{type(error).__name__}: {error}")
                _log.exception("pods")
                self._stop.wait(AGAIN_S)

    def follow(self, watch_s: float = WATCH_S) -> None:
        """Watch for some time from where the last watch ended; list the pods before the first."""
        version = self._version or self.refresh()
        self._version = version
        for event in self._client.watch("/api/v1/pods", version, watch_s, **self._query):
            if self._stop.is_set():
                return
            self.fault = ""
            self._apply(event)
        self.fault = ""

    def refresh(self) -> str:
        """List the pods; return the version of the list."""
        items, version = self._client.list("/api/v1/pods", **self._query)
        found = {}
        for item in items[:MOST_PODS]:
            pod = parse_pod(item, self._owners.owner(item))
            if pod is not None:
                found[pod.uid] = pod
        self._set(found)
        self._deleted_s.clear()
        self.fault, self.is_current = "", True
        return version

    def _apply(self, event: Json) -> None:
        item = event.get("object")
        kind = event.get("type")
        if isinstance(item, dict) and (version := _dict(item, "metadata").get("resourceVersion")):
            self._version = str(version)
        if kind not in ("ADDED", "MODIFIED", "DELETED") or not isinstance(item, dict):
            return
        pod = parse_pod(item, self._owners.owner(item))
        if pod is None:
            return
        found, now_s = self.pods(), time.monotonic()
        # A deleted pod stays for a while: the end of its containers is still to be seen.
        if kind == "DELETED":
            self._deleted_s.setdefault(pod.uid, now_s)
        if kind != "DELETED" or pod.uid in found:
            found[pod.uid] = pod
        for uid in [u for u, at_s in self._deleted_s.items() if now_s - at_s > DELETED_S]:
            del self._deleted_s[uid]
            found.pop(uid, None)
        if len(found) <= MOST_PODS:
            self._set(found)

    def _set(self, found: dict[str, Pod]) -> None:
        with self._lock:
            changed, self._pods = found != self._pods, found
        if changed:
            try:
                atomic_write_json(self._file, [asdict(pod) for pod in found.values()], mode=0o600)
            except OSError as error:
                _log.warning("%s: %s", self._file, error.strerror)

    def _failed(self, text: str) -> None:
        if text != self.fault:
            _log.warning("%s", text)
        self.fault = text


def _load(file: Path) -> dict[str, Pod]:
    try:
        data = json.loads(file.read_text("utf-8"))
        pods = [
            Pod(
                **{
                    **one,
                    "owner": PodOwner(*one["owner"]),
                    "containers": tuple(
                        PodContainer(**{**c, "before": tuple(c.get("before", ("", None)))})
                        for c in one["containers"]
                    ),
                }
            )
            for one in data
        ]
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return {pod.uid: pod for pod in pods}


# Control groups. The kubelet makes one group per class of service and pod, the runtime one per
# container in it. With systemd: kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod
# <uid with _>.slice/cri-containerd-<id>.scope (crio-<id>.scope, docker-<id>.scope); with cgroupfs:
# kubepods/burstable/pod<uid>/<id> (crio-<id>). kind and minikube have them below a group of their
# own, so the tree is searched a few levels deep.

_POD = re.compile(r"(?:.*-)?pod([0-9a-f]{8}(?:[_-]?[0-9a-f]{4}){3}[_-]?[0-9a-f]{12})(?:\.slice)?")
_CONTAINER = re.compile(r"(?:[a-z]+(?:-[a-z]+)*-)?([0-9a-f]{64})(?:\.scope)?")
_ROOT = re.compile(r"(?:.*-)?kubepods(?:\.slice)?")
DEPTH = 3


class ContainerGroup(NamedTuple):
    """Control group of a running container."""

    pod_uid: str
    container_id: str
    folder: Path


def container_groups(root: Path) -> Iterator[ContainerGroup]:
    """Return the control groups of all containers under a root, sandboxes included."""
    for top in _tops(root, DEPTH):
        for pod in _pods(top):
            found = _POD.fullmatch(pod.name)
            uid = _dashed(found[1]) if found else ""
            for folder in _folders(pod):
                named = _CONTAINER.fullmatch(folder.name)
                if named is not None and not folder.name.startswith("crio-conmon"):
                    yield ContainerGroup(uid, named[1], folder)


def _tops(folder: Path, depth: int) -> Iterator[Path]:
    for each in _folders(folder):
        if _ROOT.fullmatch(each.name):
            yield each
        elif depth > 1 and each.name.endswith((".slice", "kubelet", "docker")):
            yield from _tops(each, depth - 1)


def _pods(top: Path) -> Iterator[Path]:
    """Return the groups of pods: guaranteed ones lie directly in the top group."""
    for each in _folders(top):
        if _POD.fullmatch(each.name):
            yield each
        elif "burstable" in each.name or "besteffort" in each.name:
            yield from (one for one in _folders(each) if _POD.fullmatch(one.name))


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _dashed(text: str) -> str:
    """Return a uid with dashes; a static pod's is a hash without any."""
    plain = re.sub("[_-]", "", text)
    parts = (plain[:8], plain[8:12], plain[12:16], plain[16:20], plain[20:])
    return "-".join(parts) if len(text) > 32 else plain


def _dict(data: Any, name: str) -> Mapping[str, Any]:
    found = data.get(name) if isinstance(data, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _dicts(data: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = data.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    return _CONTROL.sub(" ", value[: 2 * LONGEST]).encode("utf-8", "replace").decode()[:LONGEST]
