"""Promises about kubelets and API servers that lie, hang or flood, and about hostile pods."""

import ipaddress
import json
import logging
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fleet.kubernetes.conftest import GPU_W, UUIDS, PodNode
from tests.support.kubelet import Kubelet, message
from tests.support.kubernetes_api import ALL, KubernetesApi, pod
from wattloop.core.errors import ConfigError, KubernetesAway, KubernetesError
from wattloop.fleet.kubernetes.api_client import ApiAddress, KubernetesClient, segment
from wattloop.fleet.kubernetes.pod_resources import KubeletClient, parse_list
from wattloop.fleet.kubernetes.pods import parse_cpus, parse_pod

SECRET = "eyJhbGciOi.secret-token.sig"


def client_of(api: KubernetesApi, tmp_path: Path | None = None, **known: Any) -> KubernetesClient:
    if tmp_path is not None:
        known["token_file"] = tmp_path / "token"
        known["token_file"].write_text(SECRET)
    return KubernetesClient(ApiAddress(url=api.url, **known))


# -- the kubelet ---------------------------------------------------------------------------


def test_the_kubelets_answer_is_read_as_protobuf_wrote_it(kubelet: Kubelet) -> None:
    kubelet.give("a", "main", ("GPU-1", "GPU-2"), cpus=(0, 3, 300), namespace="ml")
    kubelet.give("a", "side", claims=(("claim", "gpu-3", ""),), namespace="ml")
    kubelet.allocatable = [
        message("ContainerDevices", resource_name="nvidia.com/gpu", device_ids=["GPU-1"])
    ]
    client = KubeletClient(str(kubelet.socket))
    main, side = client.devices()
    assert (main.namespace, main.pod, main.container) == ("ml", "a", "main")
    assert main.devices == (("nvidia.com/gpu", "GPU-1"), ("nvidia.com/gpu", "GPU-2"))
    assert main.cpus == (0, 3, 300)
    assert side.devices == (("gpu.nvidia.com", "gpu-3"),)
    assert side.claims == ("claim",)
    assert client.allocatable() == [("nvidia.com/gpu", "GPU-1")]
    client.close()


def test_a_kubelet_that_hangs_costs_its_time_limit_and_nothing_else(kubelet: Kubelet) -> None:
    kubelet.hang_s = 60.0
    begun_s = time.monotonic()
    with pytest.raises(KubernetesAway, match="DEADLINE_EXCEEDED"):
        KubeletClient(str(kubelet.socket), timeout_s=0.2).devices()
    assert time.monotonic() - begun_s < 30


def test_a_kubelet_that_answers_too_much_is_refused(kubelet: Kubelet) -> None:
    """17 MB stand for 500: the limit holds before the answer is read."""
    kubelet.answer = b"\x0a" * (17 * 1024 * 1024)
    with pytest.raises(KubernetesAway, match="RESOURCE_EXHAUSTED"):
        KubeletClient(str(kubelet.socket)).devices()


def test_no_kubelet_is_said(tmp_path: Path) -> None:
    with pytest.raises(KubernetesAway, match="UNAVAILABLE"):
        KubeletClient(str(tmp_path / "none.sock"), timeout_s=1.0).devices()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_list_or_refused(data: bytes) -> None:
    try:
        parse_list(data)
    except KubernetesAway:
        return


def test_a_kubelet_that_gives_one_card_to_two_pods_does_not_make_energy(node: PodNode) -> None:
    """Each gets half; a card that does not exist is reported as unknown."""
    node.start()
    one, two = node.run_pod("one", gpus=(0,)), node.run_pod("two", gpus=(0,))
    node.kubelet.give("three", devices=("GPU-none", UUIDS[1]))
    three = node.run_pod("three")
    node.kubelet.pods[("default", "three")] = node.kubelet.pods[("default", "three")][:1]
    node.look()
    node.work(4, rest=1.0)
    for container in (one, two, three):
        node.end_pod(container)
    node.look()
    node.work(3, rest=1.0)
    from tests.fleet.kubernetes.test_node import energy_j

    for container in (one, two):
        assert energy_j(node.end_of(container), "gpu:0") == pytest.approx(2 * GPU_W[0], rel=0.1)
        assert any("gpu:0 is shared" in x for x in node.end_of(container)["result"]["warnings"])
    warnings = node.end_of(three)["result"]["warnings"]
    assert any("GPU-none" in text for text in warnings)
    assert energy_j(node.end_of(three), "gpu:1") == pytest.approx(4 * GPU_W[1], rel=0.1)


def test_while_the_kubelet_is_silent_pods_wait_a_little_and_are_then_measured(
    node: PodNode,
) -> None:
    node.start()
    node.kubelet.answer = b"\xff\xff"
    container = node.run_pod("one", gpus=(0,))
    assert node.look() == ([], [])
    node.work(11, rest=1.0)
    assert node.look() == ([container], [])
    node.work(1, rest=1.0)
    node.end_pod(container)
    node.look()
    node.work(3, rest=1.0)
    assert any("which devices" in text for text in node.end_of(container)["result"]["warnings"])


# -- the API server ------------------------------------------------------------------------


def test_a_token_is_in_the_header_only(
    api: KubernetesApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in an address nor in a log, whatever goes wrong; renewed without a restart."""
    api.tokens = {SECRET: ALL}
    caplog.set_level(logging.DEBUG)
    client = client_of(api, tmp_path)
    client.list("/api/v1/pods")
    (tmp_path / "token").write_text("another")
    with pytest.raises(KubernetesError, match="401") as refused:
        client.list("/api/v1/pods")
    (tmp_path / "token").write_text(f"{SECRET}\nX-Injected: yes")
    with pytest.raises(KubernetesError) as strange:
        client.list("/api/v1/pods")
    said = " ".join((caplog.text, str(refused.value), str(strange.value), *api.requests))
    assert SECRET not in said
    assert "another" not in said


def made_certificate(
    folder: Path, name: str, issuer: tuple[Any, Any] | None = None, *, days: int = 1, **host: Any
) -> tuple[Any, Any]:
    """Write NAME.crt and NAME.key: an authority, or the certificate of a host that one signed."""
    x509 = pytest.importorskip("cryptography.x509", reason="cryptography is not installed")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    by, signer = (subject, key) if issuer is None else (issuer[0].subject, issuer[1])
    made = (
        x509.CertificateBuilder(by, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=3))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(issuer is None, None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
        )
    )
    if issuer is None:
        usage = dict.fromkeys(
            ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
            False,
        ) | dict.fromkeys(("key_agreement", "encipher_only", "decipher_only"), False)
        sign = x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True)
        made = made.add_extension(sign, critical=True)
    else:
        address = host.get("address", "127.0.0.1")
        names = [x509.IPAddress(ipaddress.ip_address(address))]
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = made.sign(signer, hashes.SHA256())
    plain_text = serialization.NoEncryption()
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain_text)
    )
    return certificate, key


def test_a_token_goes_only_to_a_server_with_a_certificate_of_the_cluster(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another authority, another host or a certificate that has expired: no request is sent."""
    (tmp_path / "token").write_text(SECRET)
    cluster, stranger = (made_certificate(tmp_path, name) for name in ("cluster", "stranger"))
    made_certificate(tmp_path, "api", cluster)
    made_certificate(tmp_path, "false", stranger)
    made_certificate(tmp_path, "elsewhere", cluster, address="10.1.2.3")
    made_certificate(tmp_path, "old", cluster, days=-1)
    caplog.set_level(logging.DEBUG)
    for name, why in (
        ("api", ""),
        ("false", "certificate is not trusted"),
        ("elsewhere", "certificate is not trusted"),
        ("old", "certificate is not trusted"),
    ):
        tls = (tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
        with KubernetesApi(tokens={SECRET: ALL}, tls=tls) as api:
            address = ApiAddress(
                url=api.url,
                token_file=tmp_path / "token",
                ca_file=tmp_path / "cluster.crt",
                timeout_s=5.0,
            )
            if not why:
                client = KubernetesClient(address)
                assert client.list("/api/v1/pods")[0] == []
                client.close()
                without = replace(address, ca_file=None)  # the system's do not know it
                with pytest.raises(KubernetesAway, match="certificate is not trusted"):
                    KubernetesClient(without).list("/api/v1/pods")
                assert len(api.requests) == 1
                continue
            with pytest.raises(KubernetesAway, match=why) as refused:
                KubernetesClient(address).list("/api/v1/pods")
            assert api.requests == []
            assert SECRET not in f"{refused.value} {caplog.text}"


def test_a_server_without_tls_sees_no_token(tmp_path: Path) -> None:
    """All bytes that leave before the server has proved its name are a hello."""
    (tmp_path / "token").write_text(SECRET)
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            connection, _ = server.accept()
            with connection:
                seen.append(connection.recv(65_536))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                with suppress(OSError):  # the client hangs up
                    seen.append(connection.recv(65_536))

        thread = threading.Thread(target=listen)
        thread.start()
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        address = ApiAddress(url=url, token_file=tmp_path / "token", timeout_s=5.0)
        with pytest.raises(KubernetesAway):
            KubernetesClient(address).get("/api/v1/pods")
        thread.join(10)
    assert seen and SECRET.encode() not in b"".join(seen)


@pytest.mark.parametrize(
    "url",
    ["ftp://h", "https://user:pass@h", "http://example.org:8080", "https://h?token=x", "h", ""],
)
def test_addresses_that_would_leak_a_token_are_refused(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ApiAddress(url=url)
    assert "pass" not in str(refused.value)


def test_what_rbac_denies_is_said_once_and_asked_again(api: KubernetesApi, tmp_path: Path) -> None:
    api.tokens = {SECRET: [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]}
    client = client_of(api, tmp_path)
    assert client.list("/api/v1/pods")[0] == []
    with pytest.raises(KubernetesError, match=r"403.*forbidden") as denied:
        client.list("/api/v1/nodes")
    assert denied.value.status == 403
    assert not denied.value.is_away


def flood(size_b: int, begin: bytes = b"") -> Any:
    """Answer with many bytes."""

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", str(size_b))
        handler.end_headers()
        sent, piece = 0, b" " * 65_536
        try:
            handler.wfile.write(begin)
            while sent < size_b:
                sent += handler.wfile.write(piece)
        except OSError:
            handler.close_connection = True
        return True

    return answer


def test_500_megabytes_are_refused_after_32(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scaled down a hundred times; the limit that ships is checked as well."""
    from wattloop.fleet.kubernetes import api_client

    assert api_client.LARGEST_ANSWER_B == 32 * 1024 * 1024
    monkeypatch.setattr(api_client, "LARGEST_ANSWER_B", 320_000)
    monkeypatch.setattr(api_client, "LARGEST_EVENT_B", 40_000)
    api.fault = flood(5_000_000)
    client = client_of(api)
    with pytest.raises(KubernetesAway, match="longer than"):
        client.list("/api/v1/pods")
    with pytest.raises(KubernetesAway, match="longer than"):
        list(client.watch("/api/v1/pods", "1", 1.0))
    api.fault = None
    assert client.list("/api/v1/pods")[0] == []  # the connection is not confused


@pytest.mark.parametrize("answer", [b"", b"no", b"[]", b"{}", b"[" * 100_000, b'{"items": 3}'])
def test_answers_without_sense_are_refused(api: KubernetesApi, answer: bytes) -> None:
    def fault(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(answer)))
        handler.end_headers()
        handler.wfile.write(answer)
        return True

    api.fault = fault
    with pytest.raises(KubernetesAway):
        client_of(api).list("/api/v1/pods")


def test_a_server_that_hangs_costs_its_time_limit(api: KubernetesApi) -> None:
    api.fault = lambda handler: time.sleep(60.0) or True  # type: ignore[func-returns-value]  # it sleeps
    begun_s = time.monotonic()
    with pytest.raises(KubernetesAway):
        client_of(api, timeout_s=0.2).list("/api/v1/pods")
    assert time.monotonic() - begun_s < 30


def test_a_watch_that_is_gone_is_listed_again(node: PodNode) -> None:
    node.start()
    client = client_of(node.api)
    _, version = client.list("/api/v1/pods")
    node.run_pod("late")
    node.api.state.compact()
    with pytest.raises(KubernetesError) as gone:
        list(client.watch("/api/v1/pods", version, 1.0))
    assert gone.value.status == 410
    node.source.watch.refresh()
    assert [one.name for one in node.source.watch.pods().values()] == ["late"]


def test_a_watch_brings_what_changes_and_lists_come_in_pages(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wattloop.fleet.kubernetes.api_client.PAGE", 2)
    for number in range(5):
        api.add(pod(f"p{number}", node="n1" if number else "n2"))
    client = client_of(api)
    found, version = client.list("/api/v1/pods", fieldSelector="spec.nodeName=n1")
    assert len(found) == 4
    api.add(pod("late"))
    api.remove("pods", "default", "p1")
    watched = client.watch("/api/v1/pods", version, 1.0, fieldSelector="spec.nodeName=n1")
    assert [(e["type"], e["object"]["metadata"]["name"]) for e in watched] == [
        ("ADDED", "late"), ("DELETED", "p1"),
    ]  # fmt: skip


def test_an_agent_that_starts_while_the_api_server_is_away_knows_its_pods(node: PodNode) -> None:
    node.start()
    container = node.run_pod("one", gpus=(0,))
    node.look()
    node.work(1, rest=1.0)
    node.kill()
    node.api.fault = lambda handler: handler.send_error(503) or True  # type: ignore[func-returns-value]  # it answers
    node.start()
    assert node.source.find(container) is not None
    node.end_pod(container)
    assert node.follower.check() == ([], [container])


# -- pods ----------------------------------------------------------------------------------

HOSTILE = [
    "a\nwhole=yes\ngpus=0,1",
    "\x1b[2Jx",
    "x" * 100_000,
    "'; DROP TABLE runs; --",
    "<script>alert(1)</script>",
    "../../../etc/passwd",
    "\u202eevil",
    "\ud800",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_change_no_other_fact(node: PodNode, text: str) -> None:
    """An API server that does not check names could claim GPUs through a line break."""
    node.start()
    container = node.run_pod("plain")
    key = "/pods/default/plain"
    item = json.loads(json.dumps(node.api.state.objects[key]))
    item["metadata"]["name"] = text
    item["metadata"]["annotations"] = {"wattloop.dev/power-cap": text}
    item["metadata"]["ownerReferences"] = [{"controller": True, "kind": text, "name": text}]
    node.api.state.objects[key] = item
    node.look()
    node.work(1, rest=1.0)
    (run,) = node.agent.open_runs.runs.values()  # type: ignore[union-attr]  # it runs
    assert run.plan.job == container
    assert run.plan.gpus == ()
    for value in run.plan.facts.values():
        assert len(value) <= 200
        assert value.isprintable()
    node.end_pod(container)
    node.look()
    node.work(3, rest=1.0)
    assert node.end_of(container)["status"] == "finished"


@pytest.mark.parametrize(
    "data",
    [None, 3, [], {}, {"metadata": []}, {"metadata": {"uid": 1, "name": [], "namespace": {}}}],
)
def test_what_is_not_a_pod_is_none(data: Any) -> None:
    assert parse_pod(data) is None


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("500m", 0.5), ("2", 2.0), ("1.5", 1.5), ("-1", 0.0), ("1e9", 0.0), (None, 0.0), ([], 0.0)],
)
def test_cpu_quantities(text: Any, cpus: float) -> None:
    assert parse_cpus(text) == cpus


def test_names_stay_one_part_of_a_path() -> None:
    assert segment("a/b?c=d#e") == "a%2Fb%3Fc%3Dd%23e"
    assert segment("..") == "%00"
