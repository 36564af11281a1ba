"""Client of the Kubernetes API server: plain HTTPS with a service account's token."""

import http.client
import json
import os
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from wattloop.core.errors import ConfigError, KubernetesAway, KubernetesError
from wattloop.core.text import plain

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet puts token, certificate and namespace of a pod's service account."""
LARGEST_ANSWER_B = 32 * 1024 * 1024
LARGEST_EVENT_B = 4 * 1024 * 1024
"""One object; etcd stores at most 1.5 MiB."""
PAGE = 250
MOST_PAGES = 400
MERGE = "application/merge-patch+json"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAddress:
    """Address of an API server, and the files of the account that asks it.

    Attributes:
        url: `https://host:6443`; plain http only on this machine, as of `kubectl proxy`.
        token_file: read at every request: the kubelet renews it. None sends no token.
        ca_file: certificates that the server is checked against; the system's by default.
    """

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            known = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
        except ValueError:
            known = False
        if not known or parts.username or parts.password or parts.query or parts.fragment:
            # not quoted: a URL that holds a password must not reach a log
            raise ConfigError("Kubernetes API: write its address as https://host:6443, no more")
        if parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise ConfigError(
                f"Kubernetes API http://{parts.hostname}: a token over http could be read on the "
                "way; give https, or 'kubectl proxy' on this machine"
            )

    @classmethod
    def in_cluster(cls, environment: Mapping[str, str] | None = None) -> "ApiAddress":
        """Return the address that every pod is given."""
        env = os.environ if environment is None else environment
        host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise ConfigError(
                "no API server: this is not a pod; name one with --api https://host:6443, or run "
                "'kubectl proxy' and give --api http://127.0.0.1:8001"
            )
        shown = f"[{host}]" if ":" in host else host
        return cls(
            url=f"https://{shown}:{port}", token_file=ACCOUNT / "token", ca_file=ACCOUNT / "ca.crt"
        )

    @property
    def namespace(self) -> str:
        """Return the namespace of this pod; `default` outside of one."""
        try:
            return (ACCOUNT / "namespace").read_text("utf-8").strip() or "default"
        except OSError:
            return "default"

    def token(self) -> str:
        if self.token_file is None:
            return ""
        try:
            text = self.token_file.read_text("ascii").strip()
        except (OSError, ValueError) as error:
            raise KubernetesAway(f"{self.token_file}: {type(error).__name__}") from None
        if not text.isprintable() or " " in text:
            raise KubernetesError(f"{self.token_file}: is not a token")
        return text


class KubernetesClient:
    """Client of one API server over one connection; used by one thread."""

    def __init__(self, address: ApiAddress) -> None:
        self.address = address
        parts = urlsplit(address.url)
        self._scheme, self._prefix = parts.scheme, parts.path.rstrip("/")
        self._host, self._port = parts.hostname or "", parts.port
        self._connection: http.client.HTTPConnection | None = None
        self.total_calls = 0

    def another(self, timeout_s: float | None = None) -> "KubernetesClient":
        """Return a client of the same server for another thread."""
        given = self.address
        return KubernetesClient(given if timeout_s is None else replace(given, timeout_s=timeout_s))

    def get(self, path: str, **query: str) -> Json:
        return self._request("GET", path, query)

    def create(self, path: str, body: Json) -> Json:
        return self._request("POST", path, {}, body)

    def replace(self, path: str, body: Json) -> Json:
        """Replace an object; with its resourceVersion, only if it has not changed (409)."""
        return self._request("PUT", path, {}, body)

    def patch(self, path: str, body: Json) -> Json:
        """Change the named fields (JSON merge patch); None removes one."""
        return self._request("PATCH", path, {}, body, MERGE)

    def list(self, path: str, **query: str) -> tuple[list[Json], str]:
        """Return all objects of a list, page by page, and its resourceVersion.

        Raises:
            KubernetesError: refused, or an answer that is not a list.
        """
        found: list[Json] = []
        more, version = "", ""
        for _ in range(MOST_PAGES):
            page = {"limit": str(PAGE), **query, **({"continue": more} if more else {})}
            answer = self._request("GET", path, page)
            items, about = answer.get("items"), answer.get("metadata")
            if not isinstance(items, list) or not isinstance(about, dict):
                raise KubernetesAway(f"Kubernetes: {path} is not a list")
            found += [item for item in items if isinstance(item, dict)]
            version, more = (
                str(about.get("resourceVersion") or ""),
                str(about.get("continue") or ""),
            )
            if not more:
                return found, version
        raise KubernetesError(f"Kubernetes: {path} has more than {MOST_PAGES * PAGE} objects")

    def watch(self, path: str, version: str, for_s: float, **query: str) -> Iterator[Json]:
        """Return changes since a resourceVersion as they come, for some time.

        Raises:
            KubernetesError: status 410 when the version is too old: list again.
        """
        asked = {
            **{"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"},
            **{"timeoutSeconds": str(max(1, int(for_s))), **query},
        }
        answer = self._open("GET", path, asked, None, "")
        try:
            if self._connection is not None and self._connection.sock is not None:
                self._connection.sock.settimeout(for_s + self.address.timeout_s)  # it may be quiet
            self._check(answer, path)
            until_s = time.monotonic() + for_s + self.address.timeout_s
            while time.monotonic() < until_s:
                line = answer.readline(LARGEST_EVENT_B)
                if not line:
                    return
                event = self._parsed(line, path, LARGEST_EVENT_B)
                if event.get("type") == "ERROR":
                    status = event.get("object")
                    code = status.get("code") if isinstance(status, dict) else 0
                    raise KubernetesError(
                        f"Kubernetes: {path}: the watch ended with {code}",
                        code if isinstance(code, int) else 0,
                    )
                yield event
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise KubernetesAway(f"Kubernetes: {path}: {type(error).__name__}") from None
        finally:
            self.close()  # the rest of the stream would be taken for the next answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None = None,
        kind: str = "application/json",
    ) -> Json:
        fresh = self._connection is None
        try:
            answer = self._open(method, path, query, body, kind)
        except KubernetesAway:
            if fresh or method == "POST":  # a lost answer may have created it
                raise
            answer = self._open(method, path, query, body, kind)  # an idle connection was closed
        try:
            self._check(answer, path)
            data = answer.read(LARGEST_ANSWER_B + 1)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise KubernetesAway(f"Kubernetes: {path}: {type(error).__name__}") from None
        return self._parsed(data, path, LARGEST_ANSWER_B)

    def _open(
        self, method: str, path: str, query: Mapping[str, str], body: Json | None, kind: str
    ) -> http.client.HTTPResponse:
        self.total_calls += 1
        token = self.address.token()
        headers = {"Accept": "application/json", "User-Agent": "wattloop"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = kind
        target = self._prefix + path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        try:
            if self._connection is None:
                self._connection = self._connected()
            self._connection.request(method, target, data, headers)
            return self._connection.getresponse()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            # the error's own text may quote a header: only its kind is said
            raise KubernetesAway(f"Kubernetes API {self._host}: {_reason(error)}") from None

    def _connected(self) -> http.client.HTTPConnection:
        timeout_s, ca_file = self.address.timeout_s, self.address.ca_file
        if self._scheme == "http":
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            trusted = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        except OSError as error:
            raise KubernetesAway(f"{ca_file}: {type(error).__name__}") from None
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout_s, context=trusted
        )

    def _check(self, answer: http.client.HTTPResponse, path: str) -> None:
        """Raise for an answer that is not a success; a redirect is not followed."""
        if 200 <= answer.status < 300:
            return
        try:
            text = answer.read(20_000)
        except (OSError, http.client.HTTPException):
            text = b""
        self.close()
        message = f"Kubernetes: {path}: {answer.status} {_detail(text)}"
        if answer.status >= 500 or answer.status in (408, 429):
            raise KubernetesAway(message, answer.status)
        raise KubernetesError(message, answer.status)

    def _parsed(self, data: bytes, path: str, most_b: int) -> Json:
        if len(data) >= most_b:
            self.close()
            raise KubernetesAway(f"Kubernetes: {path}: the answer is longer than {most_b:,} bytes")
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            self.close()
            raise KubernetesAway(f"Kubernetes: {path}: the answer is not JSON") from None
        if not isinstance(found, dict):
            raise KubernetesAway(f"Kubernetes: {path}: the answer is not an object")
        return found


def segment(name: str) -> str:
    """Return a name as one part of a path, whatever it contains."""
    return quote(name, safe="") if name not in (".", "..", "") else "%00"


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    return getattr(error, "strerror", None) or type(error).__name__


def _detail(data: bytes) -> str:
    try:
        text = str(json.loads(data)["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        text = ""
    return " ".join(plain(text).split())[:300]
