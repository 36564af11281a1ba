"""A stand-in for the Kubernetes API server: lists, watches, patches, conflicts, schemas, RBAC.

No package carries kube-apiserver, so this one answers as the documentation of the API says:
objects are checked against the official schemas of Kubernetes 1.37 (strictly: unknown fields are
refused) where the package `kubernetes-validate` is installed; a write with an old resourceVersion
is a conflict (409); a watch from a version that was compacted is gone (410); a token may do what
its rules say and nothing else (403). With a state file it survives `kill -9`, as etcd does.

    python tests/support/kubernetes_api.py --port 0 --state FILE [--token NAME=SECRET=RULES.json]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import ssl
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

Json = dict[str, Any]
KINDS = {
    "pods": "Pod",
    "nodes": "Node",
    "events": "Event",
    "jobs": "Job",
    "leases": "Lease",
    "replicasets": "ReplicaSet",
    "rayclusters": "RayCluster",
    "workloads": "Workload",
    "admissionchecks": "AdmissionCheck",
}
CLUSTER_WIDE = ("nodes", "admissionchecks")
PATH = re.compile(
    r"/(?:api|apis/(?P<group>[a-z0-9.-]+))/(?P<version>v[0-9a-z]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>status))?"
)
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
SCHEMA = "v1.37.0-local-strict"
KEPT = 1_000
"""Changes that a watch may begin from; older ones are compacted."""
Rules = list[Mapping[str, list[str]]]
ALL: Rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]


class ApiError(Exception):
    """An answer that is not a success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason

    def status(self) -> Json:
        about = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        return {**about, "message": str(self), "reason": self.reason, "code": self.code}


def schemas_installed() -> bool:
    try:
        import kubernetes_validate  # noqa: F401 - only whether it is there
    except ImportError:
        return False
    return True


@cache
def validator(kind: str, api_version: str) -> Any:
    """Return the official schema of a kind; None for kinds of other projects (Kueue, Ray)."""
    if not schemas_installed():
        return None
    import kubernetes_validate
    from jsonschema.validators import Draft202012Validator
    from referencing import Registry, Resource

    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / SCHEMA
    short = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    file = folder / f"{kind.lower()}-{short}.json"
    if not file.is_file():
        return None
    schema = json.loads(file.read_text())
    registry: Any = Resource.from_contents(schema) @ Registry()
    registry = (
        Resource.from_contents(json.loads((folder / "_definitions.json").read_text())) @ registry
    )
    return Draft202012Validator(schema, registry=registry)


def merged(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


class ApiState:
    """Objects of a cluster, their versions, and the changes that a watch shows."""

    def __init__(self, file: Path | None = None) -> None:
        self.lock = threading.Condition()
        self._file = file
        self.version = 1
        self.objects: dict[str, Json] = {}
        """`group/plural/namespace/name` -> object."""
        self.changes: deque[tuple[int, str, str, Json]] = deque(maxlen=KEPT)
        self.oldest = 0
        self.after_write: list[Callable[[str, str, Json], None]] = []
        if file is not None and file.exists():
            data = json.loads(file.read_text())
            self.version, self.objects = data["version"], data["objects"]
            self.oldest = self.version  # a new server has no history: watches list again

    def write(self, kind: str, key: str, item: Json) -> Json:
        """Add a change; the caller has the lock."""
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            self.objects.pop(key, None)
        else:
            self.objects[key] = item
        if len(self.changes) == KEPT:
            self.oldest = self.changes[0][0]
        self.changes.append((self.version, kind, key, json.loads(json.dumps(item))))
        if self._file is not None:
            temporary = self._file.with_suffix(".new")
            temporary.write_text(json.dumps({"version": self.version, "objects": self.objects}))
            os.replace(temporary, self._file)  # noqa: PTH105 - as atomic as etcd
        self.lock.notify_all()
        for act in self.after_write:
            act(kind, key, item)
        return item

    def compact(self) -> None:
        """Forget all changes: the next watch from an old version is gone."""
        with self.lock:
            self.oldest = self.version
            self.changes.clear()
            self.lock.notify_all()


class KubernetesApi:
    """The server in a thread of this process.

    Args:
        tokens: secret -> rules of RBAC; None allows every request.
        tls: certificate and key, for https.
    """

    def __init__(
        self,
        state: ApiState | None = None,
        tokens: Mapping[str, Rules] | None = None,
        port: int = 0,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        self.state = state or ApiState()
        self.tokens = tokens
        self.requests: list[str] = []
        """Method and target of every request, as a proxy would log them."""
        self.denied: list[str] = []
        self.fault: Callable[[BaseHTTPRequestHandler], bool] | None = None
        """Called before an answer; True when it has answered itself."""
        api = self

        class Handler(_Handler):
            server_api = api

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.scheme = "http"
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.scheme = "https"
        self.closed = False
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> KubernetesApi:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True
        with self.state.lock:
            self.state.lock.notify_all()
        self.server.shutdown()
        self.server.server_close()

    # -- calls of an administrator ----------------------------------------------------------

    def add(self, item: Json) -> Json:
        """Create an object, checked like any other."""
        group, _, _ = item["apiVersion"].rpartition("/")
        plural = next(p for p, kind in KINDS.items() if kind == item["kind"])
        namespace = item["metadata"].get("namespace", "")
        with self.state.lock:
            return self._create(group, plural, namespace, json.loads(json.dumps(item)))

    def change(self, plural: str, namespace: str, name: str, patch: Json, group: str = "") -> Json:
        key = f"{group}/{plural}/{namespace}/{name}"
        with self.state.lock:
            item = merged(self.state.objects[key], patch)
            check(item)
            return self.state.write("MODIFIED", key, item)

    def remove(self, plural: str, namespace: str, name: str, group: str = "") -> None:
        key = f"{group}/{plural}/{namespace}/{name}"
        with self.state.lock:
            self.state.write("DELETED", key, self.state.objects[key])

    def get(self, plural: str, namespace: str, name: str, group: str = "") -> Json:
        with self.state.lock:
            return json.loads(
                json.dumps(self.state.objects[f"{group}/{plural}/{namespace}/{name}"])
            )

    def all(self, plural: str, group: str = "") -> list[Json]:
        with self.state.lock:
            begins = f"{group}/{plural}/"
            return [o for key, o in self.state.objects.items() if key.startswith(begins)]

    # -- requests --------------------------------------------------------------------------

    def authorize(self, token: str, verb: str, group: str, plural: str) -> None:
        if self.tokens is None:
            return
        if token not in self.tokens:
            raise ApiError(401, "Unauthorized", "Unauthorized")

        def allows(rule: Mapping[str, list[str]]) -> bool:
            wanted = (("apiGroups", group), ("resources", plural), ("verbs", verb))
            return all(word in rule[name] or "*" in rule[name] for name, word in wanted)

        if not any(allows(rule) for rule in self.tokens[token]):
            self.denied.append(f"{verb} {group}/{plural}")
            raise ApiError(403, "Forbidden", f'{plural} is forbidden: cannot {verb} in "{group}"')

    def answer(
        self, method: str, path: str, query: Mapping[str, str], body: Any, token: str
    ) -> Json:
        found = PATH.fullmatch(path)
        if path == "/apis/kueue.x-k8s.io":  # discovery is open to every account
            preferred = {"groupVersion": "kueue.x-k8s.io/v1beta1", "version": "v1beta1"}
            about = {"kind": "APIGroup", "apiVersion": "v1", "name": "kueue.x-k8s.io"}
            return {**about, "versions": [preferred], "preferredVersion": preferred}
        if found is None:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        group, plural = found["group"] or "", found["plural"]
        namespace, name = unquote(found["namespace"] or ""), unquote(found["name"] or "")
        verb = {"GET": "get" if name else "list", "POST": "create", "PUT": "update",
                "PATCH": "patch", "DELETE": "delete"}[method]  # fmt: skip
        self.authorize(token, verb, group, f"{plural}/status" if found["sub"] else plural)
        if plural not in KINDS:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        key = f"{group}/{plural}/{namespace}/{name}"
        with self.state.lock:
            if method == "GET" and not name:
                return self.listed(group, found["version"], plural, namespace, query)
            if method == "POST":
                return self._create(group, plural, namespace, body)
            old = self.state.objects.get(key)
            if old is None:
                raise ApiError(404, "NotFound", f'{plural} "{name}" not found')
            if method == "GET":
                return old
            if method == "DELETE":
                return self.state.write("DELETED", key, old)
            new = merged(old, body) if method == "PATCH" else body
            return self._update(key, old, new, status=found["sub"] is not None)

    def _create(self, group: str, plural: str, namespace: str, item: Json) -> Json:
        about = item.setdefault("metadata", {})
        if "name" not in about:
            about["name"] = about.get("generateName", "") + secrets.token_hex(3)
        if not NAME.fullmatch(about["name"]):
            raise ApiError(422, "Invalid", f"metadata.name: invalid value {about['name']!r}")
        if plural not in CLUSTER_WIDE:
            about.setdefault("namespace", namespace or "default")
        key = f"{group}/{plural}/{about.get('namespace', '')}/{about['name']}"
        if key in self.state.objects:
            raise ApiError(409, "AlreadyExists", f'{plural} "{about["name"]}" already exists')
        about.setdefault("uid", str(uuid.uuid4()))
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        about.setdefault("creationTimestamp", stamp)
        check(item)
        return self.state.write("ADDED", key, item)

    def _update(self, key: str, old: Json, new: Any, *, status: bool) -> Json:
        if not isinstance(new, dict):
            raise ApiError(400, "BadRequest", "not an object")
        said = new.get("metadata", {}).get("resourceVersion")
        if said and said != old["metadata"]["resourceVersion"]:
            raise ApiError(
                409, "Conflict", "the object has been modified; please apply your changes"
            )
        new = json.loads(json.dumps(new))
        if status:
            new = {**old, "status": new.get("status", {})}
        elif "status" in old:
            new["status"] = old["status"]  # only the sub-resource changes it
        new["metadata"] = {**new["metadata"], "uid": old["metadata"]["uid"]}
        check(new)
        if new["kind"] == "Job":
            # A template may change only while the Job is suspended, as in the real API server.
            was, now = old["spec"], new["spec"]
            if was["template"] != now["template"] and not was.get("suspend"):
                raise ApiError(422, "Invalid", "spec.template: field is immutable")
        return self.state.write("MODIFIED", key, new)

    def listed(
        self, group: str, version: str, plural: str, namespace: str, query: Mapping[str, str]
    ) -> Json:
        begins = f"{group}/{plural}/" + (f"{namespace}/" if namespace else "")
        keys = sorted(k for k in self.state.objects if k.startswith(begins) and
                      selected(self.state.objects[k], query))  # fmt: skip
        limit, start = int(query.get("limit") or 0), int(query.get("continue") or 0)
        page = keys[start : start + limit] if limit else keys
        more = {"continue": str(start + limit)} if limit and start + limit < len(keys) else {}
        return {
            "apiVersion": f"{group}/{version}" if group else version,
            "kind": f"{KINDS[plural]}List",
            "metadata": {"resourceVersion": str(self.state.version), **more},
            "items": [self.state.objects[key] for key in page],
        }

    def watched(self, path: str, query: Mapping[str, str]) -> Iterator[Json]:
        """Return changes until the time is up; a match that no longer matches is deleted."""
        found = PATH.fullmatch(path)
        assert found is not None
        begins = f"{found['group'] or ''}/{found['plural']}/"
        begins += f"{unquote(found['namespace'])}/" if found["namespace"] else ""
        seen = int(query.get("resourceVersion") or self.state.version)
        until_s = time.monotonic() + float(query.get("timeoutSeconds") or 300)
        while not self.closed:
            with self.state.lock:
                if seen < self.state.oldest:
                    gone = ApiError(410, "Expired", "too old resource version")
                    yield {"type": "ERROR", "object": gone.status()}
                    return
                fresh = [c for c in self.state.changes if c[0] > seen]
                if not fresh:
                    left_s = until_s - time.monotonic()
                    if left_s <= 0:
                        return
                    self.state.lock.wait(min(left_s, 1.0))
            for version, kind, key, item in fresh:
                seen = version
                if key.startswith(begins) and selected(item, query):
                    yield {"type": kind, "object": item}


def check(item: Json) -> None:
    """Refuse an object that the official schema does not allow."""
    if not isinstance(item, dict) or "kind" not in item or "apiVersion" not in item:
        raise ApiError(400, "BadRequest", "kind and apiVersion are required")
    schema = validator(item["kind"], item["apiVersion"])
    if schema is not None:
        error = next(schema.iter_errors(item), None)
        if error is not None:
            place = ".".join(map(str, error.path))
            raise ApiError(422, "Invalid", f"{item['kind']}: {place}: {error.message[:300]}")


def selected(item: Json, query: Mapping[str, str]) -> bool:
    """Apply field and label selectors: `a=b`, `a!=b`, and a label's presence."""
    for name in ("fieldSelector", "labelSelector"):
        for part in filter(None, query.get(name, "").split(",")):
            path, operator, wanted = re.fullmatch(r"([^=!]+)(!=|==?|)(.*)", part).groups()  # type: ignore[union-attr]  # a test's own
            labels = item["metadata"].get("labels", {})
            found: Any = labels.get(path) if name == "labelSelector" else item
            if name == "fieldSelector":
                for word in path.split("."):
                    found = found.get(word) if isinstance(found, dict) else None
            if operator == "" and found is None:
                return False
            if operator and ((found or "") == wanted) == (operator == "!="):
                return False
    return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_api: KubernetesApi

    def _serve(self) -> None:
        api, parts = self.server_api, urlsplit(self.path)
        if api.closed:  # a killed server does not answer on earlier connections
            self.close_connection = True
            return
        api.requests.append(f"{self.command} {self.path}")
        length = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(length) if length else b""
        if api.fault is not None and api.fault(self):
            return
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        query = dict(parse_qsl(parts.query))
        try:
            if query.get("watch") == "true":
                self._watch(parts.path, query, token)
                return
            body = json.loads(data) if data else None
            code = 201 if self.command == "POST" else 200
            with api.state.lock:
                text = json.dumps(api.answer(self.command, parts.path, query, body, token))
        except ApiError as error:
            code, text = error.code, json.dumps(error.status())
        self._send(code, text.encode())

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - names of the base

    def _send(self, code: int, data: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, path: str, query: Mapping[str, str], token: str) -> None:
        found = PATH.fullmatch(path)
        if found is None:
            raise ApiError(404, "NotFound", path)
        self.server_api.authorize(token, "watch", found["group"] or "", found["plural"])
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in self.server_api.watched(path, query):
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Log nothing, since `requests` has the requests."""


def pod(
    name: str,
    *,
    namespace: str = "default",
    node: str = "n1",
    containers: Mapping[str, str] | None = None,
    cpus: str = "1",
    gpus: int = 0,
    owner: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    phase: str = "Running",
    runtime: str = "containerd",
) -> Json:
    """Return the object of a pod on a node; `containers` maps names to container ids."""
    containers = {"main": secrets.token_hex(32)} if containers is None else containers
    requests = {"cpu": cpus, **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    about: Json = {"name": name, "namespace": namespace, "uid": str(uuid.uuid4())}
    if annotations:
        about["annotations"] = dict(annotations)
    if labels:
        about["labels"] = dict(labels)
    if owner:
        ref = {"apiVersion": "v1", "controller": True, "uid": str(uuid.uuid4())}
        about["ownerReferences"] = [{**ref, **owner}]
    began = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": about,
        "spec": {
            "nodeName": node,
            "containers": [
                {"name": one, "image": "busybox", "resources": {"requests": requests, **limits}}
                for one in containers
            ],
        },
        "status": {
            "phase": phase,
            "containerStatuses": [
                {
                    **{"name": one, "image": "busybox", "imageID": "", "ready": True},
                    **{"restartCount": 0, "state": began},
                    **({"containerID": f"{runtime}://{number}"} if number else {}),
                }
                for one, number in containers.items()
            ],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--state", type=Path)
    args = parser.parse_args()
    with KubernetesApi(ApiState(args.state), port=args.port) as api:
        sys.stdout.write(f"{api.url}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
