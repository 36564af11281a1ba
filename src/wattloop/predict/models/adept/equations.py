"""Equations 4.7 to 4.15 of the thesis, for every row and every candidate of parameters at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattloop.predict.models.adept.features import Features

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
class Step:
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


def step_of(features: Features, parameters: Parameters, saturation: str = "sigmoid") -> Step:
    """Return T_step and mean power with their terms."""
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
    return Step(
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


def _operation_times(f: Features, p: Parameters, saturation: str) -> tuple[Array, Array, Array]:
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


def _phase_w(f: Features, p: Parameters, use: float | Array) -> Array:
    """Return (4.14) P_c = P_static + U_c (P_TDP - P_static) C_P."""
    static_w = p["static_share"] * f.limit_w
    return np.asarray(static_w + use * (f.limit_w - static_w) * p["power_scale"])
