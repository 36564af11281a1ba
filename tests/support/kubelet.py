"""A stand-in for the kubelet: its PodResources socket with real gRPC, and control groups of pods.

The server is grpcio's and its messages are protobuf's own, made from the descriptor of
k8s.io/kubelet/pkg/apis/podresources/v1, so that the tested client does not decode its own encoding.
"""

from __future__ import annotations

import threading
import time
from concurrent import futures
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "v1"
TEXT, INT64, MESSAGE, UINT64 = 9, 3, 11, 4
ONE, MANY = 1, 3
MESSAGES: dict[str, tuple[tuple[str, int, int, int, str], ...]] = {
    "ListPodResourcesRequest": (),
    "AllocatableResourcesRequest": (),
    "ListPodResourcesResponse": (("pod_resources", 1, MESSAGE, MANY, "PodResources"),),
    "AllocatableResourcesResponse": (
        ("devices", 1, MESSAGE, MANY, "ContainerDevices"),
        ("cpu_ids", 2, INT64, MANY, ""),
        ("memory", 3, MESSAGE, MANY, "ContainerMemory"),
    ),
    "PodResources": (
        ("name", 1, TEXT, ONE, ""),
        ("namespace", 2, TEXT, ONE, ""),
        ("containers", 3, MESSAGE, MANY, "ContainerResources"),
    ),
    "ContainerResources": (
        ("name", 1, TEXT, ONE, ""),
        ("devices", 2, MESSAGE, MANY, "ContainerDevices"),
        ("cpu_ids", 3, INT64, MANY, ""),
        ("memory", 4, MESSAGE, MANY, "ContainerMemory"),
        ("dynamic_resources", 5, MESSAGE, MANY, "DynamicResource"),
    ),
    "ContainerMemory": (
        ("memory_type", 1, TEXT, ONE, ""),
        ("size", 2, UINT64, ONE, ""),
        ("topology", 3, MESSAGE, ONE, "TopologyInfo"),
    ),
    "ContainerDevices": (
        ("resource_name", 1, TEXT, ONE, ""),
        ("device_ids", 2, TEXT, MANY, ""),
        ("topology", 3, MESSAGE, ONE, "TopologyInfo"),
    ),
    "TopologyInfo": (("nodes", 1, MESSAGE, MANY, "NUMANode"),),
    "NUMANode": (("ID", 1, INT64, ONE, ""),),
    "DynamicResource": (
        ("claim_name", 2, TEXT, ONE, ""),
        ("claim_namespace", 3, TEXT, ONE, ""),
        ("claim_resources", 4, MESSAGE, MANY, "ClaimResource"),
    ),
    "ClaimResource": (
        ("cdi_devices", 1, MESSAGE, MANY, "CDIDevice"),
        ("driver_name", 2, TEXT, ONE, ""),
        ("pool_name", 3, TEXT, ONE, ""),
        ("device_name", 4, TEXT, ONE, ""),
    ),
    "CDIDevice": (("name", 1, TEXT, ONE, ""),),
}


@cache
def _pool() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="podresources_v1.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label, other in fields:
            message.field.add(
                name=field,
                number=number,
                type=kind,  # type: ignore[arg-type]  # numbers of the enumeration
                label=label,  # type: ignore[arg-type]  # likewise
                type_name=f".{PACKAGE}.{other}" if other else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def message(name: str, /, **values: Any) -> Any:
    """Return a message of the API."""
    kind = message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))
    return kind(**values)


class Kubelet:
    """The kubelet of one node.

    Attributes:
        answer: raw bytes to answer with instead of the right ones.
        hang_s: seconds that every answer takes.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.pods: dict[tuple[str, str], list[Any]] = {}
        self.allocatable: list[Any] = []
        self.answer: bytes | None = None
        self.hang_s = 0.0
        self.stopped = threading.Event()
        self._server: Any = None

    def give(
        self,
        pod: str,
        container: str = "main",
        devices: tuple[str, ...] = (),
        *,
        namespace: str = "default",
        resource: str = "nvidia.com/gpu",
        claims: tuple[tuple[str, str, str], ...] = (),
        cpus: tuple[int, ...] = (),
    ) -> None:
        """Give devices to a container; claims are (claim, device, CDI name)."""
        topology = message("TopologyInfo", nodes=[message("NUMANode", ID=0)])
        found = message(
            "ContainerResources",
            name=container,
            devices=[
                message(
                    "ContainerDevices", resource_name=resource, device_ids=[one], topology=topology
                )
                for one in devices
            ],
            cpu_ids=cpus,
            memory=[message("ContainerMemory", memory_type="memory", size=2**30)],
            dynamic_resources=[
                message(
                    "DynamicResource",
                    claim_name=claim,
                    claim_namespace=namespace,
                    claim_resources=[
                        message(
                            "ClaimResource",
                            cdi_devices=[message("CDIDevice", name=cdi)] if cdi else [],
                            driver_name="gpu.nvidia.com",
                            pool_name="n1",
                            device_name=device,
                        )
                    ],
                )
                for claim, device, cdi in claims
            ],
        )
        self.pods.setdefault((namespace, pod), []).append(found)

    def take(self, pod: str, namespace: str = "default") -> None:
        self.pods.pop((namespace, pod), None)

    def __enter__(self) -> Kubelet:
        def serve(name: str) -> Any:
            def answer(request: bytes, context: Any) -> bytes:
                del request, context
                self.stopped.wait(self.hang_s) if self.hang_s else None
                return self.answer if self.answer is not None else self._truth(name)

            return grpc.unary_unary_rpc_method_handler(answer)

        names = ("List", "GetAllocatableResources")
        handler = grpc.method_handlers_generic_handler(
            "v1.PodResourcesLister", {name: serve(name) for name in names}
        )
        options = [("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(futures.ThreadPoolExecutor(4), options=options)
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix://{self.socket}")
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self._server.stop(0).wait(5)

    def _truth(self, name: str) -> bytes:
        if name == "GetAllocatableResources":
            found = message("AllocatableResourcesResponse", devices=self.allocatable)
            return bytes(found.SerializeToString())
        pods = [
            message("PodResources", name=pod, namespace=namespace, containers=containers)
            for (namespace, pod), containers in list(self.pods.items())
        ]
        return bytes(message("ListPodResourcesResponse", pod_resources=pods).SerializeToString())


def cgroup_of(
    root: Path, uid: str, container: str, *, qos: str = "burstable", driver: str = "systemd",
    runtime: str = "cri-containerd",
) -> Path:  # fmt: skip
    """Return the folder of a container's group, named as by kubelet and runtime."""
    if driver == "systemd":
        head = "kubepods" if qos == "guaranteed" else f"kubepods-{qos}"
        middle = () if qos == "guaranteed" else (f"{head}.slice",)
        pod = f"{head}-pod{uid.replace('-', '_')}.slice"
        return root.joinpath("kubepods.slice", *middle, pod, f"{runtime}-{container}.scope")
    middle = () if qos == "guaranteed" else (qos,)
    name = f"crio-{container}" if runtime == "crio" else container
    return root.joinpath("kubepods", *middle, f"pod{uid}", name)


def make_group(folder: Path, cpu_s: float = 0.0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    use_cpu(folder, cpu_s)


def use_cpu(folder: Path, cpu_s: float) -> None:
    """Set the CPU time of a group."""
    usage = int(cpu_s * 1e6)
    text = f"usage_usec {usage}\nuser_usec {usage}\nsystem_usec 0\n"
    temporary = folder / f".new-{time.monotonic_ns()}"
    temporary.write_text(text)
    temporary.replace(folder / "cpu.stat")


def remove_group(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
