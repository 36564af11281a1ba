"""A small workload, made by hand: no torch is needed to predict it."""

from typing import Any

from wattloop.predict.workload.operation import Kind, Operation, Phase
from wattloop.predict.workload.workload import Workload

LAYERS = 3


def small_workload(**changes: Any) -> Workload:
    """Return three equal layers of one product and one sum each, and an optimizer."""
    operations = []
    for layer in range(LAYERS):
        for phase, count in ((Phase.FORWARD, 1), (Phase.BACKWARD, 2)):
            operations.append(
                Operation(
                    op="aten.mm",
                    kind=Kind.GEMM,
                    phase=phase,
                    module=f"layers.{layer}.linear",
                    dtype="bf16",
                    inputs=((4096, 1024), (1024, 1024)),
                    outputs=((4096, 1024),),
                    flops=2.0 * 4096 * 1024 * 1024,
                    bytes_read=2.0 * (4096 * 1024 + 1024 * 1024),
                    bytes_written=2.0 * 4096 * 1024,
                    dims=(1, 4096, 1024, 1024),
                    count=count,
                    detail={"layout": "nt", "bias": False},
                )
            )
        operations.append(
            Operation(
                op="aten.add",
                kind=Kind.ELEMENTWISE,
                phase=Phase.FORWARD,
                module=f"layers.{layer}",
                bytes_read=4.0 * 2 * 4096 * 1024,
                bytes_written=4.0 * 4096 * 1024,
                outputs=((4096, 1024),),
                detail={"elements": 4096 * 1024},
            )
        )
    operations.append(
        Operation(
            op="aten._fused_adamw_",
            kind=Kind.FOREACH,
            phase=Phase.OPTIMIZER,
            bytes_read=4.0 * 4 * LAYERS * 1024 * 1024,
            bytes_written=4.0 * 3 * LAYERS * 1024 * 1024,
            detail={
                "tensors": LAYERS,
                "elements": LAYERS * 1024 * 1024,
                "optimizer": "adamw",
                "fused": True,
            },
        )
    )
    operations.append(
        Operation(op="aten.view", kind=Kind.VIEW, phase=Phase.FORWARD, kernels=0, count=7)
    )
    facts: dict[str, Any] = {
        "name": "small",
        "precision": "bf16",
        "optimizer": "adamw",
        "optimizer_style": "fused",
        "batch": 32,
        "parameters": LAYERS * 1024 * 1024,
        "parameter_bytes": 12.0 * 2**20,
        "gradient_bytes": 12.0 * 2**20,
        "optimizer_bytes": 24.0 * 2**20,
        "activation_bytes": 50.0 * 2**20,
        "peak_bytes": 100.0 * 2**20,
        "modules": LAYERS,
        **changes,
    }
    return Workload(operations=tuple(operations), **facts)
