"""Parameters theta_H of ADEPT: bounds, stages of table 4.2, and shipped values."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu

# The thesis states the bounds of beta ([0, 1]) and of the GEMM's time factor (1e-4 to 50); the
# others are ours. A range of more than two decades is searched on a logarithmic scale.


@dataclass(frozen=True, slots=True)
class Parameter:
    """One entry of theta_H.

    Attributes:
        low, high: bounds.
        start: value when it is not free, or when no point depends on it.
        meaning: in words, with its unit.
    """

    low: float
    high: float
    start: float
    meaning: str

    @property
    def logarithmic(self) -> bool:
        """Return whether its logarithm is searched."""
        return self.low > 0 and self.high / self.low > 100


PARAMETERS: Mapping[str, Parameter] = {
    "beta_gemm": Parameter(0.01, 1.0, 0.7, "share of the peak that a large product reaches"),
    "beta_conv": Parameter(0.01, 1.0, 0.5, "share of the peak that a large convolution reaches"),
    "beta_alu": Parameter(0.01, 1.0, 0.5, "share of the peak that other arithmetic reaches"),
    "gemm_time": Parameter(1e-4, 50.0, 1.0, "C_GEMM: factor of the time of products"),
    "conv_time": Parameter(1e-4, 50.0, 1.0, "C_Conv: factor of the time of convolutions"),
    "alu_time": Parameter(1e-4, 50.0, 1.0, "C_ALU: factor of the time of other arithmetic"),
    "memory_time": Parameter(0.01, 50.0, 1.0, "C_mem: factor of the time of memory traffic"),
    "optimizer_time": Parameter(0.01, 50.0, 1.0, "C_opt: factor of the optimizer's time"),
    "r_gemm_m": Parameter(1e-3, 1e5, 10.0, "R_M: reference of M, in tiles"),
    "r_gemm_n": Parameter(1e-3, 1e5, 10.0, "R_N: reference of N, in tiles"),
    "r_gemm_k": Parameter(1e-3, 1e5, 10.0, "R_K: reference of K, in tiles"),
    "r_conv_channels": Parameter(1e-3, 1e4, 10.0, "R_C,Conv: reference of channels, in blocks"),
    "r_conv_pixels": Parameter(1.0, 1e5, 100.0, "R_Spatial,Conv: reference of pixels"),
    "r_alu_elements": Parameter(1e3, 1e12, 1e7, "R_elem: reference of elements"),
    "miss_base": Parameter(0.01, 1.0, 0.3, "lambda_miss,base: least share of traffic to memory"),
    "launch_s": Parameter(1e-8, 1e-4, 5e-6, "t_kern,avg: seconds of a kernel launch"),
    "fixed_s": Parameter(1e-6, 0.02, 1e-3, "T_fixed: seconds of every step"),
    "hop_s": Parameter(1e-7, 1e-3, 5e-6, "L_hop: seconds of one hop in the ring"),
    "link_share": Parameter(0.05, 1.0, 0.8, "BW_eff as a share of the link's bandwidth, one way"),
    "static_share": Parameter(0.05, 0.8, 0.2, "P_static as a share of the power limit"),
    "power_scale": Parameter(0.1, 2.0, 1.0, "C_P,global: factor of power above P_static"),
    "overhead_use": Parameter(0.0, 1.0, 0.0, "U of launches, fixed time and communication"),
    "albert_gemm": Parameter(0.01, 50.0, 1.0, "factor of the time of ALBERT's products"),
    "albert_alu": Parameter(0.01, 50.0, 1.0, "factor of the time of ALBERT's other arithmetic"),
    "albert_memory": Parameter(0.01, 50.0, 1.0, "factor of the time of ALBERT's memory traffic"),
    "bf16_gemm": Parameter(0.01, 50.0, 1.0, "factor of the time of products under BF16"),
    "bf16_conv": Parameter(0.01, 50.0, 1.0, "factor of the time of convolutions under BF16"),
    "bf16_alu": Parameter(0.01, 50.0, 1.0, "factor of the time of other arithmetic under BF16"),
}


ALBERT = ("albert_gemm", "albert_alu", "albert_memory")


BF16 = ("bf16_gemm", "bf16_conv", "bf16_alu")


STAGES: Mapping[str, tuple[str, ...]] = {
    "S1": (),
    "S2": ALBERT[:1],
    "S3": ALBERT[:2],
    "S4": ALBERT,
    "S5": ALBERT + BF16[:1],
    "S6": ALBERT + BF16[:2],
    "S7": ALBERT + BF16,
}
"""Stage of table 4.2 -> scalars that are free in addition to the global parameters."""


FOLDER = Path(__file__).parent / "constants"


def shipped_constants(gpu: Gpu) -> Mapping[str, object]:
    """Return the shipped constants of that GPU.

    Raises:
        ConfigError: no constants for it; names the GPUs that have a file.
    """
    path = FOLDER / f"{gpu.name}.json"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in FOLDER.glob("*.json")))
        raise ConfigError(
            f"estimator adept: fitted for {known}, not for {gpu.name}; give a file of its "
            "constants as calibration, or take kernels"
        )
    found: Mapping[str, object] = json.loads(path.read_text(encoding="utf-8"))["constants"]
    return found


def save_shipped(gpu: Gpu, constants: Mapping[str, object], fitted_to: str) -> Path:
    """Write the file of a GPU, with the data of its fit."""
    path = FOLDER / f"{gpu.name}.json"
    content = {"model": "adept", "gpu": gpu.name, "fitted_to": fitted_to, "constants": constants}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path
