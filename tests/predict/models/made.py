"""Workloads and a GPU made by hand, with round figures."""

from wattloop.hardware.gpus import Gpu
from wattloop.predict.prediction import Placement
from wattloop.predict.workload.operation import Kind, Operation, Phase
from wattloop.predict.workload.workload import Workload

GPU = Gpu(
    name="round",
    product="Round GPU",
    vendor="nvidia",
    architecture="hopper",
    matrix_flops={"tf32": 500e12, "bf16": 1000e12},
    vector_flops={"fp32": 50e12},
    memory_bytes=100e9,
    memory_bytes_s=5e12,
    l2_bytes=50e6,
    sms=100,
    base_clock_mhz=1500,
    boost_clock_mhz=2000,
    tdp_w=700,
    cap_min_w=200,
    cap_max_w=700,
    idle_w=80,
    link_bytes_s=900e9,
    link_gpus=8,
    pcie_bytes_s=64e9,
)
PLACE = Placement(GPU)


def gemm(
    m: int, n: int, k: int, dtype: str = "fp32", count: int = 1, phase: Phase = Phase.FORWARD
) -> Operation:
    """Return one product with its FLOPs and bytes."""
    size = 2 if dtype == "bf16" else 4
    return Operation(
        op="aten.mm",
        kind=Kind.GEMM,
        phase=phase,
        dtype=dtype,
        flops=2.0 * m * n * k,
        bytes_read=float(size * (m * k + k * n)),
        bytes_written=float(size * m * n),
        dims=(1, m, n, k),
        count=count,
        detail={"layout": "nn", "bias": False},
    )


def conv(channels: int, side: int, batch: int, dtype: str = "fp32", count: int = 1) -> Operation:
    """Return a 3x3 convolution that keeps its size."""
    size = 2 if dtype == "bf16" else 4
    pixels = batch * side * side
    return Operation(
        op="aten.convolution",
        kind=Kind.CONV,
        phase=Phase.FORWARD,
        dtype=dtype,
        flops=2.0 * pixels * channels * channels * 9,
        bytes_read=float(size * (pixels * channels + 9 * channels * channels)),
        bytes_written=float(size * pixels * channels),
        dims=(1, pixels, channels, channels * 9),
        count=count,
        detail={
            "direction": "forward",
            "n": batch,
            "c_in": channels,
            "h": side,
            "w": side,
            "c_out": channels,
            "k_h": 3,
            "k_w": 3,
            "stride": (1, 1),
            "padding": (1, 1),
            "dilation": (1, 1),
            "groups": 1,
            "channels_last": False,
            "transposed": False,
        },
    )


def addition(elements: int, count: int = 1, phase: Phase = Phase.FORWARD) -> Operation:
    """Return one addition of two fp32 tensors."""
    return Operation(
        op="aten.add",
        kind=Kind.ELEMENTWISE,
        phase=phase,
        flops=float(elements),
        bytes_read=8.0 * elements,
        bytes_written=4.0 * elements,
        count=count,
        detail={"elements": elements},
    )


def workload(
    *operations: Operation,
    precision: str = "fp32",
    name: str = "made",
    parameters: int = 1_000_000,
    accumulate: int = 1,
) -> Workload:
    """Return a step of these operations."""
    return Workload(
        name=name,
        operations=operations,
        precision=precision,
        optimizer="adamw",
        optimizer_style="foreach",
        batch=8,
        accumulate=accumulate,
        parameters=parameters,
        parameter_bytes=4.0 * parameters,
        gradient_bytes=4.0 * parameters,
        optimizer_bytes=8.0 * parameters,
    )
