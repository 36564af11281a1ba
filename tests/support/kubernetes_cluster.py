"""Controllers of a Kubernetes cluster for the stand-in API server: Jobs become pods on nodes.

They behave like the real ones: a Job that is not suspended gets a pod, the scheduler binds it to a
node with free GPUs, a suspended Job loses its pods, a Job whose pod has run long enough is
complete.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from typing import Any

from wattloop.core.errors import KubernetesError
from wattloop.fleet.kubernetes.api_client import KubernetesClient

Json = dict[str, Any]
BATCH = "/apis/batch/v1"
TEMPLATE_LABEL = "batch.kubernetes.io/job-name"


def node(name: str, gpus: int = 4, product: str = "NVIDIA-A100-SXM4-40GB") -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product}},
        "status": {
            "allocatable": {"cpu": "32", "nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def job(
    name: str,
    *,
    gpus: int = 1,
    namespace: str = "default",
    managed: bool = True,
    suspend: bool = True,
    annotations: dict[str, str] | None = None,
    template_annotations: dict[str, str] | None = None,
    limit_s: int | None = 3_600,
    parallelism: int = 1,
) -> Json:
    about: Json = {"name": name, "namespace": namespace}
    if managed:
        about["labels"] = {"wattloop.dev/managed": "true"}
    if annotations:
        about["annotations"] = annotations
    inside: Json = {"labels": {TEMPLATE_LABEL: name}}
    if template_annotations:
        inside["annotations"] = template_annotations
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    container = {"name": "main", "image": "busybox", "resources": resources}
    spec: Json = {
        "suspend": suspend,
        "parallelism": parallelism,
        "template": {
            "metadata": inside,
            "spec": {"restartPolicy": "Never", "containers": [container]},
        },
    }
    if limit_s is not None:
        spec["activeDeadlineSeconds"] = limit_s
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}


class Controllers:
    """Job controller, scheduler and kubelets, one step at a time, through the API alone.

    Args:
        runs_s: how long the pod of a Job runs.
    """

    def __init__(
        self,
        client: KubernetesClient,
        runs_s: Callable[[str], float] = lambda name: 1e9,
    ) -> None:
        self._client, self._runs_s = client, runs_s

    def step(self) -> None:
        """Reconcile once; an object that changed meanwhile is handled in the next step."""
        pods = {
            (p["metadata"]["namespace"], p["metadata"]["labels"][TEMPLATE_LABEL]): p
            for p in self._client.list("/api/v1/pods", labelSelector=TEMPLATE_LABEL)[0]
        }
        jobs = self._client.list(f"{BATCH}/jobs")[0]
        for item in jobs:
            about = item["metadata"]
            pod = pods.pop((about["namespace"], about["name"]), None)
            try:
                self._job(item, pod)
            except KubernetesError as error:
                if error.is_away:
                    raise
        for pod in pods.values():
            self._delete(pod)
        self._schedule()

    def _job(self, item: Json, pod: Json | None) -> None:
        if item.get("status", {}).get("conditions"):
            if pod is not None:
                self._delete(pod)
            return
        if item["spec"].get("suspend"):
            if pod is not None:
                self._delete(pod)
                self._status(item, {"startTime": None, "active": 0})
            return
        if pod is None:
            self._create(item)
        elif pod["status"].get("startTime"):
            age_s = time.time() - float(pod["metadata"]["annotations"]["test/started"])
            if age_s > self._runs_s(item["metadata"]["name"]):
                self._delete(pod)
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                done = {"type": "Complete", "status": "True", "lastTransitionTime": now}
                self._status(item, {"conditions": [done], "succeeded": 1, "active": 0})

    def _create(self, item: Json) -> None:
        about, template = item["metadata"], json.loads(json.dumps(item["spec"]["template"]))
        ref = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}
        owner = {**ref, "name": about["name"], "uid": about["uid"]}
        template["metadata"] |= {
            "name": f"{about['name']}-{secrets.token_hex(2)}",
            "namespace": about["namespace"],
            "ownerReferences": [owner],
        }
        body = {"apiVersion": "v1", "kind": "Pod", **template, "status": {"phase": "Pending"}}
        self._client.create(f"/api/v1/namespaces/{about['namespace']}/pods", body)

    def _schedule(self) -> None:
        pods = self._client.list("/api/v1/pods")[0]
        free = {
            n["metadata"]["name"]: int(n["status"]["allocatable"]["nvidia.com/gpu"])
            for n in self._client.list("/api/v1/nodes")[0]
        }
        for pod in pods:
            if pod["spec"].get("nodeName"):
                free[pod["spec"]["nodeName"]] -= gpus_of(pod)
                if not pod["status"].get("startTime") and "test/started" in (
                    pod["metadata"].get("annotations") or {}
                ):
                    self._run(pod)
        for pod in pods:
            if pod["spec"].get("nodeName"):
                continue
            place = next((name for name, left in free.items() if left >= gpus_of(pod)), None)
            if place is not None:
                free[place] -= gpus_of(pod)
                self._bind(pod, place)

    def _bind(self, pod: Json, place: str) -> None:
        path = path_of(pod)
        started = {"annotations": {"test/started": f"{time.time():.3f}"}}
        pod = self._client.patch(path, {"metadata": started, "spec": {"nodeName": place}})
        self._run(pod)

    def _run(self, pod: Json) -> None:
        """Start the container as the kubelet does, also again if the API server was killed
        meanwhile.
        """
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        state = {
            **{"name": "main", "image": "busybox", "imageID": "", "ready": True},
            **{"restartCount": 0, "containerID": f"containerd://{secrets.token_hex(32)}"},
            "state": {"running": {"startedAt": now}},
        }
        status = {"phase": "Running", "startTime": now, "containerStatuses": [state]}
        self._client.patch(f"{path_of(pod)}/status", {"status": status})

    def _status(self, item: Json, status: Json) -> None:
        about = item["metadata"]
        path = f"{BATCH}/namespaces/{about['namespace']}/jobs/{about['name']}/status"
        self._client.patch(path, {"status": status})

    def _delete(self, pod: Json) -> None:
        """End the containers, report that as the kubelet does, and remove the pod."""
        statuses = pod["status"].get("containerStatuses", [])
        ended = [{**one, "state": {"terminated": {"exitCode": 0}}} for one in statuses]
        if ended:
            self._client.patch(f"{path_of(pod)}/status", {"status": {"containerStatuses": ended}})
        self._client._request("DELETE", path_of(pod), {})


def path_of(pod: Json) -> str:
    about = pod["metadata"]
    return f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"


def gpus_of(pod: Json) -> int:
    limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    return int(limits.get("nvidia.com/gpu", 0))
