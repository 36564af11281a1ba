"""What makers publish of their GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Gpu"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """Facts of one GPU model.

    Attributes:
        name: short name, such as `h200`; the key of the table.
        product: name as the driver prints it.
        vendor: `nvidia` or `amd`.
        architecture: `kepler`, `pascal`, `volta`, `turing`, `ampere`, `ada`, `hopper`, `cdna`,
            `cdna2`, `cdna3`.
        matrix_flops: dense peak of the matrix units by dtype (`tf32`, `bf16`, `fp16`, `fp8`,
            `fp64`); a dtype they lack is absent.
        vector_flops: peak of the ordinary units by dtype (`fp32`, `fp16`, `bf16`, `fp64`).
        memory_bytes, memory_bytes_s: size and bandwidth of the GPU's memory.
        l2_bytes: last-level cache.
        sms: streaming multiprocessors or compute units.
        base_clock_mhz, boost_clock_mhz: of the SMs; the peaks hold at boost.
        tdp_w, cap_min_w, cap_max_w: factory power limit and the range it may be set to.
        idle_w: drawn with a context open and nothing to do; None when nobody published it.
        link_bytes_s: NVLink or Infinity Fabric of one GPU, both directions together; 0 for none.
        pcie_bytes_s: one direction.
        sources: field -> where its figure comes from (`*` for all others).
    """

    name: str
    product: str
    vendor: str
    architecture: str
    matrix_flops: Mapping[str, float]
    vector_flops: Mapping[str, float]
    memory_bytes: float
    memory_bytes_s: float
    l2_bytes: float
    sms: int
    base_clock_mhz: float
    boost_clock_mhz: float
    tdp_w: float
    cap_min_w: float
    cap_max_w: float
    idle_w: float | None
    link_bytes_s: float
    pcie_bytes_s: float
    sources: Mapping[str, str] = field(default_factory=dict)
