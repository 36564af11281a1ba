"""The kubelet's PodResources API (gRPC, v1): devices that it gave to the containers of a node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError, KubernetesAway
from wattloop.core.text import plain

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
SERVICE = "/v1.PodResourcesLister/"
ASK_S = 5.0
LARGEST_ANSWER_B = 16 * 1024 * 1024
"""Of a node with 250 pods the answer has some 50 KiB."""
MOST_DEVICES = 4_096


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """Devices of one container.

    Attributes:
        devices: (resource or driver, identifier), of device plugins and of resource claims.
        claims: names of the claims that it shares with other containers or pods.
        cpus: CPUs that it has exclusively.
    """

    namespace: str
    pod: str
    container: str
    devices: tuple[tuple[str, str], ...] = ()
    claims: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()


@dataclass(slots=True)
class KubeletClient:
    """Client of the kubelet's socket. No call waits longer than `timeout_s`."""

    socket: str = SOCKET
    timeout_s: float = ASK_S
    _channel: Any = field(default=None, repr=False)

    def devices(self) -> list[ContainerDevices]:
        """Return the devices of all containers of the node.

        Raises:
            KubernetesAway: the kubelet does not answer, or not with sense.
        """
        return parse_list(self._ask("List"))

    def allocatable(self) -> list[tuple[str, str]]:
        """Return (resource, identifier) of all devices that the kubelet may give to pods."""
        found = []
        for number, value in _fields(self._ask("GetAllocatableResources")):
            if number == 1:
                found += _plugin_devices(value)
        return found

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _ask(self, method: str) -> bytes:
        try:
            import grpc
        except ImportError:
            raise ConfigError(
                "kubernetes: grpcio is missing; install it with: pip install 'wattloop[kubernetes]'"
            ) from None
        if self._channel is None:
            options = [
                ("grpc.max_receive_message_length", LARGEST_ANSWER_B),
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", 500),
                ("grpc.max_reconnect_backoff_ms", 5_000),
            ]
            self._channel = grpc.insecure_channel(f"unix://{self.socket}", options)
        call = self._channel.unary_unary(SERVICE + method, None, None)
        try:
            return bytes(call(b"", timeout=self.timeout_s))
        except grpc.RpcError as error:
            said = ""
            with suppress(Exception):
                said = f"{error.code().name}: {plain(error.details())[:200]}"
            raise KubernetesAway(f"kubelet {self.socket}: {said or 'no answer'}") from None


# The messages are few and flat, so their fields are read from the wire format itself: it is fixed
# for ever, and nothing has to be generated. k8s.io/kubelet/pkg/apis/podresources/v1/api.proto:
#
#   ListPodResourcesResponse {1: PodResources}   PodResources {1: name 2: namespace 3: containers}
#   ContainerResources {1: name 2: ContainerDevices 3: cpu_ids 4: memory 5: DynamicResource}
#   ContainerDevices {1: resource_name 2: device_ids 3: topology}
#   DynamicResource {2: claim_name 3: claim_namespace 4: ClaimResource}
#   ClaimResource {1: CDIDevice {1: name} 2: driver_name 3: pool_name 4: device_name}


class _Field(NamedTuple):
    number: int
    value: bytes | int


def parse_list(data: bytes) -> list[ContainerDevices]:
    """Parse a `ListPodResourcesResponse`.

    Raises:
        KubernetesAway: it is not one.
    """
    found: list[ContainerDevices] = []
    try:
        for number, pod in _fields(data):
            if number != 1:
                continue
            names = {n: _text(v) for n, v in _fields(pod) if n in (1, 2)}
            for place, container in _fields(pod):
                if place == 3:
                    found.append(_container(container, names.get(2, ""), names.get(1, "")))
    except (ValueError, TypeError, IndexError) as error:
        raise KubernetesAway(f"kubelet: the answer is not a list of pods ({error})") from None
    return found


def _container(data: bytes | int, namespace: str, pod: str) -> ContainerDevices:
    name, devices, claims, cpus = "", list[tuple[str, str]](), list[str](), list[int]()
    for number, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number == 2:
            devices += _plugin_devices(value)
        elif number == 3:
            cpus += [value] if isinstance(value, int) else list(_varints(value))
        elif number == 5:
            fields = list(_fields(value))
            claims += [_text(v) for n, v in fields if n == 2]
            devices += [_claimed(v) for n, v in fields if n == 4]
        if len(devices) > MOST_DEVICES or len(cpus) > 65_536:
            raise ValueError("a container with more devices than a node can have")
    return ContainerDevices(namespace, pod, name, tuple(devices), tuple(claims), tuple(cpus))


def _plugin_devices(data: bytes | int) -> list[tuple[str, str]]:
    fields = list(_fields(data))
    resource = next((_text(v) for n, v in fields if n == 1), "")
    return [(resource, _text(v)) for n, v in fields if n == 2]


def _claimed(data: bytes | int) -> tuple[str, str]:
    """Return driver and identifier of a claimed device: its CDI name has the UUID if any has."""
    fields = list(_fields(data))
    driver = next((_text(v) for n, v in fields if n == 2), "")
    name = next((_text(v) for n, v in fields if n == 4), "")
    for number, value in fields:
        if number == 1:
            cdi = next((_text(v) for n, v in _fields(value) if n == 1), "").rpartition("=")[2]
            if cdi.startswith(("GPU-", "MIG-")):
                return driver, cdi
    return driver, name


def _text(value: bytes | int) -> str:
    if isinstance(value, int):
        raise TypeError("a number where a text belongs")
    return plain(value[:1_000].decode("utf-8", "replace"))


def _fields(data: bytes | int) -> Iterator[_Field]:
    """Return the fields of a message: numbers, and the bytes of texts and messages."""
    if isinstance(data, int):
        raise TypeError("a number where a message belongs")
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield _Field(number, value)
        elif kind == 2:
            length, at = _varint(data, at)
            if length > len(data) - at:
                raise ValueError("a field that is longer than its message")
            yield _Field(number, data[at : at + length])
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of type {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number that does not end")


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value
