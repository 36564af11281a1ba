"""Jobs, Workloads and nodes of Kubernetes, in the form that the driver's view has for Slurm's."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from wattloop.core.errors import KubernetesError
from wattloop.core.text import plain
from wattloop.fleet.kubernetes.api_client import Json, KubernetesClient, segment
from wattloop.fleet.kubernetes.pods import CAP
from wattloop.schedule.driver.inventory import ReleasedJob, SchedulerJob, SchedulerNode

# A Job is managed when it has the label; the user submits it suspended. What the driver did is
# written on the object itself, so that the next driver, and `wattloop k8s release`, know it
# without a state file.

MANAGED = "wattloop.dev/managed"
RELEASED = "wattloop.dev/released-at"
SUSPENDED = "wattloop.dev/suspended-at"
DESCRIBED = "wattloop.dev/job"
PREEMPTIBLE = "wattloop.dev/preemptible"
START_BY = "wattloop.dev/start-by"
"""Latest start of a Job that may wait for green power: a time, or one after its submission."""
CONTROLLER = "wattloop.dev/power-gate"
"""Controller of the AdmissionChecks that gate Kueue's Workloads."""
PRODUCT = "nvidia.com/gpu.product"
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "wattloop.dev/virtual-gpu")
PARTITION, OTHER = "kubernetes", "other"
KUEUE = "/apis/kueue.x-k8s.io"
MOST_GPUS = 4_096
_PRODUCT = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,62}")
_NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"


class QueuedObject(NamedTuple):
    """An object behind a job of the view."""

    item: Json
    path: str
    check: str = ""
    """Name of the AdmissionCheck of a Workload; empty for a Job."""


class KubernetesQueue:
    """What the driver's poller asks: jobs and nodes, each by few lists.

    Args:
        namespaces: whose Jobs are managed; all unless given.
        kueue: gate Kueue's Workloads as well.
    """

    def __init__(
        self, client: KubernetesClient, namespaces: Iterable[str] = (), *, kueue: bool = False
    ) -> None:
        self.client, self._namespaces, self.kueue = client, tuple(namespaces), kueue
        self.objects: dict[str, QueuedObject] = {}
        self.products: dict[str, str] = {}
        """Node -> its label with the product name of its GPUs."""
        self._version = ""

    @property
    def total_calls(self) -> int:
        return self.client.total_calls

    def nodes(self) -> list[SchedulerNode]:
        items, _ = self.client.list("/api/v1/nodes")
        found = []
        for item in items:
            name = plain(_get(item, "metadata", "name") or "")
            product = _get(item, "metadata", "labels", PRODUCT)
            product = product if isinstance(product, str) and _PRODUCT.fullmatch(product) else ""
            self.products[name] = product
            conditions = _list(item, "status", "conditions")
            is_ready = any(
                c.get("type") == "Ready" and c.get("status") == "True" for c in conditions
            )
            is_up = is_ready and _get(item, "spec", "unschedulable") is not True
            gpus = _gpus(_get(item, "status", "allocatable"))
            if gpus:
                found.append(SchedulerNode(name, product.lower(), gpus, (PARTITION,), is_up))
        return found

    def jobs(self) -> list[SchedulerJob]:
        """Return managed Jobs and Workloads, and whatever else has GPUs."""
        placed = self._placed()
        self.objects = {}
        found = [self._job(item, placed) for item in self._managed_jobs()]
        if self.kueue:
            found += self._workloads(placed)
        for owner, nodes in placed.items():  # not ours, but their GPUs are in use
            key = "/".join(owner)
            gpus = sum(nodes.values())
            found.append(
                SchedulerJob(
                    key=f"Pod/{key}",
                    state="RUNNING",
                    user=owner[0],
                    name=owner[2],
                    partition=OTHER,
                    gpus=gpus,
                    placed=tuple(nodes.items()),
                    may_requeue=False,
                )
            )
        return [job for job in found if job is not None]

    def released(self) -> dict[str, ReleasedJob]:
        """Return the jobs that a driver has released, by their annotations."""
        found = {}
        for key, each in self.objects.items():
            at_s = seconds(_get(each.item, "metadata", "annotations", RELEASED))
            if each.check:
                at_s = seconds(_check_of(each).get("lastTransitionTime"))
            if at_s and not is_held(each):
                gpus = sum(count * gpus for count, gpus, _ in _pod_sets(each.item))
                user = str(_get(each.item, "metadata", "namespace"))
                found[key] = ReleasedJob(key=key, user=user, why="start", gpus=gpus, at_s=at_s)
        return found

    def held(self) -> list[QueuedObject]:
        """Return everything that waits for a driver, fresh from the API server."""
        self.jobs()
        return [each for each in self.objects.values() if is_held(each)]

    def kueue_path(self) -> str:
        """Return the path of Kueue's API in the version that the server prefers."""
        if not self._version:
            preferred = _get(self.client.get(KUEUE), "preferredVersion", "version")
            known = isinstance(preferred, str) and re.fullmatch(r"v\d+(beta\d+)?", preferred)
            self._version = str(preferred) if known else "v1beta1"
        return f"{KUEUE}/{self._version}"

    def checks(self) -> list[Json]:
        """Return the AdmissionChecks that name this driver as their controller."""
        items, _ = self.client.list(f"{self.kueue_path()}/admissionchecks")
        return [one for one in items if _get(one, "spec", "controllerName") == CONTROLLER]

    def _managed_jobs(self) -> list[Json]:
        query = {"labelSelector": f"{MANAGED}=true"}
        if not self._namespaces:
            return self.client.list("/apis/batch/v1/jobs", **query)[0]
        found: list[Json] = []
        for name in self._namespaces:
            found += self.client.list(f"/apis/batch/v1/namespaces/{segment(name)}/jobs", **query)[0]
        return found

    def _placed(self) -> dict[tuple[str, str, str], dict[str, int]]:
        """Return (namespace, kind, name) of owners -> node -> GPUs of their pods there."""
        items, _ = self.client.list("/api/v1/pods", fieldSelector=_NOT_ENDED)
        found: dict[tuple[str, str, str], dict[str, int]] = {}
        for item in items:
            node, gpus = _get(item, "spec", "nodeName"), _pod_gpus(_get(item, "spec"))
            if not isinstance(node, str) or not node or not gpus:
                continue
            namespace = str(_get(item, "metadata", "namespace"))
            owner = _controller(item) or ("Pod", str(_get(item, "metadata", "name")))
            nodes = found.setdefault((namespace, *owner), {})
            nodes[plain(node)] = nodes.get(plain(node), 0) + gpus
        return found

    def _job(
        self, item: Json, placed: dict[tuple[str, str, str], dict[str, int]]
    ) -> SchedulerJob | None:
        namespace, name = _get(item, "metadata", "namespace"), _get(item, "metadata", "name")
        if not isinstance(namespace, str) or not isinstance(name, str):
            return None
        nodes = placed.pop((namespace, "Job", name), {})
        if _is_true(item, "Complete") or _is_true(item, "Failed"):
            return None
        if _get(item, "metadata", "ownerReferences") and self.kueue and not nodes:
            return None  # its owner's Workload is gated
        path = f"/apis/batch/v1/namespaces/{segment(namespace)}/jobs/{segment(name)}"
        return self._entered(f"Job/{namespace}/{name}", QueuedObject(item, path), nodes)

    def _workloads(self, placed: dict[tuple[str, str, str], dict[str, int]]) -> list[SchedulerJob]:
        names = {str(_get(one, "metadata", "name")) for one in self.checks()}
        if not names:
            return []
        items, _ = self.client.list(f"{self.kueue_path()}/workloads")
        found = []
        for item in items:
            namespace, name = _get(item, "metadata", "namespace"), _get(item, "metadata", "name")
            check = next(
                (c["name"] for c in _list(item, "status", "admissionChecks")
                 if c.get("name") in names), "",
            )  # fmt: skip
            ours = isinstance(namespace, str) and isinstance(name, str) and bool(check)
            if not ours or (self._namespaces and namespace not in self._namespaces):
                continue
            owner = _controller(item) or ("Workload", str(name))
            nodes = placed.pop((str(namespace), *owner), {})
            if _is_true(item, "Finished") or not _is_true(item, "QuotaReserved"):
                continue
            path = f"{self.kueue_path()}/namespaces/{segment(str(namespace))}/workloads/"
            queued = QueuedObject(item, path + segment(str(name)), check)
            found.append(self._entered(f"Workload/{namespace}/{name}", queued, nodes))
        return found

    def _entered(self, key: str, queued: QueuedObject, nodes: Mapping[str, int]) -> SchedulerJob:
        item = queued.item
        self.objects[key] = queued
        about, notes = item["metadata"], _get(item, "metadata", "annotations") or {}
        sets = _pod_sets(item)
        product = next((found for _, _, found in sets if found), "")
        limit = _get(item, "spec", "activeDeadlineSeconds")
        comment = notes.get(DESCRIBED)
        started_s = seconds(_get(item, "status", "startTime")) or seconds(notes.get(RELEASED))
        return SchedulerJob(
            key=key,
            state="RUNNING" if nodes else "PENDING",
            user=plain(about["namespace"]),
            name=plain(about["name"]),
            account=plain(about["namespace"]),
            partition=PARTITION,
            comment=plain(comment)[:1_100] if isinstance(comment, str) else "",
            # released, and not placed yet: the driver counts its GPUs
            reservation="" if is_held(queued) else PARTITION,
            gpus=sum(nodes.values())
            or min(sum(count * gpus for count, gpus, _ in sets), MOST_GPUS),
            gpu_type=product.lower(),
            placed=tuple(nodes.items()),
            submit_s=seconds(about.get("creationTimestamp")),
            start_s=started_s if nodes else 0.0,
            time_limit_s=float(limit) if isinstance(limit, int) and 0 < limit < 10**8 else None,
            may_requeue=notes.get(PREEMPTIBLE) == "true" and not queued.check,
        )


def is_held(queued: QueuedObject) -> bool:
    """Return True while a Job is suspended, or a Workload waits for its check."""
    if not queued.check:
        return _get(queued.item, "spec", "suspend") is True
    return _check_of(queued).get("state") in ("Pending", "Retry")


def _check_of(queued: QueuedObject) -> Mapping[str, Any]:
    checks = _list(queued.item, "status", "admissionChecks")
    return next((one for one in checks if one.get("name") == queued.check), {})


def release_patch(
    queued: QueuedObject, why: str, *, cap_w: float | None = None, product: str = ""
) -> tuple[str, Json]:
    """Return path and merge patch that let an object start.

    A cap and a kind of GPU go into the pods' template, which may change while a Job is suspended;
    what the user asked for stays.
    """
    item = queued.item
    if queued.check:
        checks = [dict(c) for c in _list(item, "status", "admissionChecks")]
        for check in checks:
            if check.get("name") == queued.check:
                check |= {"state": "Ready", "message": why, "lastTransitionTime": stamp()}
        # the list is replaced as a whole: only if it is unchanged since it was read
        about = {"resourceVersion": _get(item, "metadata", "resourceVersion")}
        return f"{queued.path}/status", {"metadata": about, "status": {"admissionChecks": checks}}
    about = {"annotations": {RELEASED: stamp(), SUSPENDED: None}}
    spec: Json = {"suspend": False}
    template: Json = {}
    if cap_w is not None and not _get(item, "spec", "template", "metadata", "annotations", CAP):
        template["metadata"] = {"annotations": {CAP: f"{cap_w:.0f}W"}}
    if product and not _get(item, "spec", "template", "spec", "nodeSelector", PRODUCT):
        template["spec"] = {"nodeSelector": {PRODUCT: product}}
    if template:
        spec["template"] = template
    return queued.path, {"metadata": about, "spec": spec}


def suspend_patch(queued: QueuedObject) -> tuple[str, Json]:
    """Return path and merge patch that stop a Job; its controller deletes the pods."""
    about = {"annotations": {SUSPENDED: stamp(), RELEASED: None}}
    return queued.path, {"metadata": about, "spec": {"suspend": True}}


def release_all(queue: KubernetesQueue, why: str, tries: int = 5) -> tuple[list[str], list[str]]:
    """Release everything that waits; return what was released and what was refused, and why."""
    released, refused = list[str](), list[str]()
    for _ in range(tries):
        refused = []
        for queued in queue.held():
            about = queued.item["metadata"]
            name = f"{about.get('namespace')}/{about.get('name')}"
            path, patch = release_patch(queued, why)
            try:
                queue.client.patch(path, patch)
            except KubernetesError as error:
                if error.is_away:
                    raise
                if error.status != 404:  # deleted meanwhile
                    refused.append(f"{plain(name)}: {error}")
            else:
                released.append(plain(name))
        if not refused:
            break
    return released, refused


def stamp(now_s: float | None = None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s))


def seconds(text: Any) -> float:
    """Return seconds since 1970 of a time such as `2026-01-01T00:00:00Z`; 0 for others."""
    found = re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", text) if isinstance(text, str) else None
    if found is None:
        return 0.0
    try:
        return float(calendar.timegm(time.strptime(found.group(), "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return 0.0


def _pod_sets(item: Json) -> list[tuple[int, int, str]]:
    """Return (pods, GPUs of each, wanted product) of a Job or a Workload."""
    sets = _list(item, "spec", "podSets")
    templates = [(s.get("count"), s.get("template")) for s in sets] or [
        (_get(item, "spec", "parallelism"), _get(item, "spec", "template"))
    ]
    found = []
    for count, template in templates:
        spec = _get(template, "spec")
        pods = count if isinstance(count, int) and 0 <= count <= MOST_GPUS else 1
        product = _get(spec, "nodeSelector", PRODUCT)
        wanted = product if isinstance(product, str) and _PRODUCT.fullmatch(product) else ""
        found.append((pods, _pod_gpus(spec), wanted))
    return found


def _pod_gpus(spec: Any) -> int:
    containers = _list(spec, "containers")
    return min(sum(_gpus(_get(one, "resources", "limits")) for one in containers), MOST_GPUS)


def _gpus(resources: Any) -> int:
    if not isinstance(resources, Mapping):
        return 0
    counts = (str(resources.get(name) or "") for name in GPU_RESOURCES)
    return sum(int(text) for text in counts if re.fullmatch(r"\d{1,4}", text))


def _controller(item: Json) -> tuple[str, str] | None:
    for one in _list(item, "metadata", "ownerReferences"):
        if one.get("controller") is True:
            return str(one.get("kind")), str(one.get("name"))
    return None


def _is_true(item: Json, condition: str) -> bool:
    return any(
        one.get("type") == condition and one.get("status") == "True"
        for one in _list(item, "status", "conditions")
    )


def _get(data: Any, *path: str) -> Any:
    for name in path:
        data = data.get(name) if isinstance(data, Mapping) else None
    return data


def _list(data: Any, *path: str) -> list[Mapping[str, Any]]:
    found = _get(data, *path)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
