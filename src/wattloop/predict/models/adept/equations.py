"""Parameters of ADEPT with bounds and shipped values, and equations 4.7 to 4.15."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu
from wattloop.predict.models.adept.features import AdeptFeatures


# The thesis states the bounds of beta ([0, 1]) and of the GEMM's time factor (1e-4 to 50); the
# others are ours. A range of more than two decades is searched on a logarithmic scale.
@dataclass(frozen=True, slots=True)
class AdeptParameter:
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
        return self.low > 0 and self.high / self.low > 100


PARAMETERS: Mapping[str, AdeptParameter] = {
    "beta_gemm": AdeptParameter(0.01, 1.0, 0.7, "share of the peak that a large product reaches"),
    "beta_conv": AdeptParameter(
        0.01, 1.0, 0.5, "share of the peak that a large convolution reaches"
    ),
    "beta_alu": AdeptParameter(0.01, 1.0, 0.5, "share of the peak that other arithmetic reaches"),
    "gemm_time": AdeptParameter(1e-4, 50.0, 1.0, "C_GEMM: factor of the time of products"),
    "conv_time": AdeptParameter(1e-4, 50.0, 1.0, "C_Conv: factor of the time of convolutions"),
    "alu_time": AdeptParameter(1e-4, 50.0, 1.0, "C_ALU: factor of the time of other arithmetic"),
    "memory_time": AdeptParameter(0.01, 50.0, 1.0, "C_mem: factor of the time of memory traffic"),
    "optimizer_time": AdeptParameter(0.01, 50.0, 1.0, "C_opt: factor of the optimizer's time"),
    "r_gemm_m": AdeptParameter(1e-3, 1e5, 10.0, "R_M: reference of M, in tiles"),
    "r_gemm_n": AdeptParameter(1e-3, 1e5, 10.0, "R_N: reference of N, in tiles"),
    "r_gemm_k": AdeptParameter(1e-3, 1e5, 10.0, "R_K: reference of K, in tiles"),
    "r_conv_channels": AdeptParameter(
        1e-3, 1e4, 10.0, "R_C,Conv: reference of channels, in blocks"
    ),
    "r_conv_pixels": AdeptParameter(1.0, 1e5, 100.0, "R_Spatial,Conv: reference of pixels"),
    "r_alu_elements": AdeptParameter(1e3, 1e12, 1e7, "R_elem: reference of elements"),
    "miss_base": AdeptParameter(
        0.01, 1.0, 0.3, "lambda_miss,base: least share of traffic to memory"
    ),
    "launch_s": AdeptParameter(1e-8, 1e-4, 5e-6, "t_kern,avg: seconds of a kernel launch"),
    "fixed_s": AdeptParameter(1e-6, 0.02, 1e-3, "T_fixed: seconds of every step"),
    "hop_s": AdeptParameter(1e-7, 0.1, 5e-6, "L_hop: seconds of one hop in the ring"),
    "link_share": AdeptParameter(
        0.05, 1.0, 0.8, "BW_eff as a share of the link's bandwidth, one way"
    ),
    "static_share": AdeptParameter(0.05, 0.8, 0.2, "P_static as a share of the power limit"),
    "power_scale": AdeptParameter(0.1, 2.0, 1.0, "C_P,global: factor of power above P_static"),
    "overhead_use": AdeptParameter(0.0, 1.0, 0.0, "U of launches, fixed time and communication"),
    "albert_gemm": AdeptParameter(0.01, 50.0, 1.0, "factor of the time of ALBERT's products"),
    "albert_alu": AdeptParameter(
        0.01, 50.0, 1.0, "factor of the time of ALBERT's other arithmetic"
    ),
    "albert_memory": AdeptParameter(
        0.01, 50.0, 1.0, "factor of the time of ALBERT's memory traffic"
    ),
    "bf16_gemm": AdeptParameter(0.01, 50.0, 1.0, "factor of the time of products under BF16"),
    "bf16_conv": AdeptParameter(0.01, 50.0, 1.0, "factor of the time of convolutions under BF16"),
    "bf16_alu": AdeptParameter(
        0.01, 50.0, 1.0, "factor of the time of other arithmetic under BF16"
    ),
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
    path = FOLDER / f"{gpu.name}.json"
    content = {"model": "adept", "gpu": gpu.name, "fitted_to": fitted_to, "constants": constants}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


# Saturation: five functions of a dimension over its reference. All are increasing and at most 1.
# The sigmoid of equation 4.12 starts at one half, because sizes are positive; the others start at
# 0.
Array = NDArray[np.float64]


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _tanh(x: Array) -> Array:
    return np.asarray(np.tanh(x))


def _arctan(x: Array) -> Array:
    return np.asarray(np.arctan(x) * (2 / np.pi))


def _softsign(x: Array) -> Array:
    return x / (1 + x)


def _algebraic(x: Array) -> Array:
    return np.asarray(x / np.sqrt(1 + x * x))


SATURATIONS: Mapping[str, Callable[[Array], Array]] = {
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "arctan": _arctan,
    "softsign": _softsign,
    "algebraic": _algebraic,
}
"""Name -> S_sat."""


# A parameter is a number or a column (candidates x 1); features are rows. Results are rows, or
# candidates x rows.
Parameters = Mapping[str, float | Array]


@dataclass(frozen=True, slots=True)
class AdeptStep:
    """Terms of equation 4.7 in seconds, and of 4.15 in watts."""

    gemm_s: Array
    conv_s: Array
    alu_s: Array
    compute_s: Array
    memory_s: Array
    pass_s: Array
    optimizer_s: Array
    communication_s: Array
    launch_s: Array
    fixed_s: Array
    step_s: Array
    power_w: Array


def step_of(
    features: AdeptFeatures, parameters: Parameters, saturation: str = "sigmoid"
) -> AdeptStep:
    f, p = features, parameters
    gemm_s, conv_s, alu_s = _operation_times(f, p, saturation)
    # T_comp,FB: the sum over classes of operations
    compute_s = gemm_s + conv_s + alu_s
    # (4.13) T_mem = V / BW min(1, max(lambda, W_set / L2)) C_mem
    miss = np.minimum(1.0, np.maximum(p["miss_base"], f.working_set))
    memory_s = f.memory_s * miss * p["memory_time"] * _where(f.albert, p["albert_memory"])
    busy_s = np.maximum(compute_s, memory_s)
    pass_s = busy_s * f.passes
    optimizer_s = np.maximum(f.optimizer_compute_s, f.optimizer_memory_s) * p["optimizer_time"]
    # (4.8) T_comm = 2 (N - 1) L_hop + 2 (N - 1) / N size / BW_eff
    hops = 2 * (f.gpus - 1)
    communication_s = hops * p["hop_s"] + hops / f.gpus * f.gradient_s / p["link_share"]
    launch_s = f.kernels * p["launch_s"]
    fixed_s = p["fixed_s"] + 0 * f.kernels
    # (4.7)
    step_s = pass_s + optimizer_s + communication_s + launch_s + fixed_s
    energy_j = (
        pass_s * _phase_w(f, p, _ratio(compute_s, memory_s))
        + optimizer_s * _phase_w(f, p, _ratio(f.optimizer_compute_s, f.optimizer_memory_s))
        + (communication_s + launch_s + fixed_s) * _phase_w(f, p, p["overhead_use"])
    )
    return AdeptStep(
        gemm_s=gemm_s,
        conv_s=conv_s,
        alu_s=alu_s,
        compute_s=compute_s,
        memory_s=memory_s,
        pass_s=pass_s,
        optimizer_s=optimizer_s,
        communication_s=communication_s,
        launch_s=launch_s,
        fixed_s=fixed_s,
        step_s=step_s,
        power_w=energy_j / step_s,  # (4.15)
    )


def _operation_times(
    f: AdeptFeatures, p: Parameters, saturation: str
) -> tuple[Array, Array, Array]:
    """(4.9) T_op = F / (P E) C with (4.10) E = beta S, (4.11) S = product of S_sat(D / R)."""
    saturated = SATURATIONS[saturation]

    def product(*pairs: tuple[Array, str]) -> Array:
        whole: Array = np.ones(1)
        for dimension, reference in pairs:
            whole = whole * saturated(np.asarray(dimension / p[reference]))
        # Without such an operation its dimensions are 0, and so is the numerator.
        return np.maximum(whole, 1e-12)

    gemm = product((f.tiles_m, "r_gemm_m"), (f.tiles_n, "r_gemm_n"), (f.tiles_k, "r_gemm_k"))
    conv = product((f.conv_channels, "r_conv_channels"), (f.conv_pixels, "r_conv_pixels"))
    alu = product((f.elements, "r_alu_elements"))
    gemm_s = f.gemm_s / (p["beta_gemm"] * gemm) * p["gemm_time"]
    conv_s = f.conv_s / (p["beta_conv"] * conv) * p["conv_time"]
    alu_s = f.alu_s / (p["beta_alu"] * alu) * p["alu_time"]
    return (
        gemm_s * _where(f.albert, p["albert_gemm"]) * _where(f.bf16, p["bf16_gemm"]),
        conv_s * _where(f.bf16, p["bf16_conv"]),
        alu_s * _where(f.albert, p["albert_alu"]) * _where(f.bf16, p["bf16_alu"]),
    )


def _where(applies: Array, scalar: float | Array) -> Array:
    """Return the scalar on its rows, 1 on others."""
    return np.asarray(1.0 + applies * (scalar - 1.0))


def _ratio(compute_s: Array, memory_s: Array) -> Array:
    """Return U of a computing phase: time of computing over that of memory traffic, at most 1."""
    return np.asarray(compute_s / np.maximum(np.maximum(compute_s, memory_s), 1e-30))


def _phase_w(f: AdeptFeatures, p: Parameters, use: float | Array) -> Array:
    """Return (4.14) P_c = P_static + U_c (P_TDP - P_static) C_P, at most P_TDP."""
    static_w = p["static_share"] * f.limit_w
    found = static_w + use * (f.limit_w - static_w) * p["power_scale"]
    return np.asarray(np.minimum(found, f.limit_w))
