"""A GPU and small workloads for the tests of the kernels model and its calibration."""

from dataclasses import replace

from wattloop.hardware.gpus import gpu_named
from wattloop.predict.workload import Operation, Phase, Workload, costs

__all__ = ["H200", "step_of", "transformer_step"]

H200 = gpu_named("h200")


def step_of(*operations: Operation, **fields: object) -> Workload:
    """Return a workload of these operations."""
    return Workload("made", operations, **fields)  # type: ignore[arg-type]  # a test's own fields


def transformer_step(
    batch: int = 16, length: int = 256, width: int = 768, layers: int = 6, dtype: str = "bf16"
) -> Workload:
    """Return forward, backward and AdamW of a plain transformer, in a dozen operations."""
    tokens, heads = batch * length, width // 64
    ops: list[Operation] = []
    for n, k in ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width)):
        ops.append(costs.gemm(1, tokens, n, k, dtype=dtype, layout="nt", bias=True, count=layers))
        for m, columns, inner, layout in ((tokens, k, n, "nn"), (n, k, tokens, "tn")):
            product = costs.gemm(1, m, columns, inner, dtype=dtype, layout=layout, count=layers)
            ops.append(replace(product, phase=Phase.BACKWARD))
    for direction in ("forward", "backward"):
        attention = costs.attention(
            direction, batch, heads, heads, length, length, 64, causal=True, masked=False,
            dtype=dtype, algorithm="flash" if dtype == "bf16" else "efficient", count=layers,
        )  # fmt: skip
        norm = costs.norm(direction, "layer", tokens, width, dtype="fp32", count=2 * layers)
        ops += [attention, norm]
    ops.append(costs.elementwise(tokens * 4 * width, 1, 1, dtype, op="aten.gelu", count=layers))
    sizes = [n * width for n in (3 * width, width, 4 * width, 4 * width)] * layers
    ops += costs.optimizer_step("adamw", sizes)
    return Workload(
        "transformer", tuple(ops), precision=dtype, optimizer="adamw", optimizer_style="foreach",
        batch=batch, parameters=sum(sizes), gradient_bytes=4.0 * sum(sizes), modules=20 * layers,
    )  # fmt: skip
