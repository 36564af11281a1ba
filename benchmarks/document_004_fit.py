"""The published figures that the virtual node is fitted to, and the fit.

Koszczal, Dobrosolski, Matuszek and Czarnul: Performance and energy aware training of a deep neural
network in a multi-GPU environment with power capping. Euro-Par 2023 Workshops,
doi 10.1007/978-3-031-48803-0_1. Their table 1 is not used here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from wattloop.virtual.gpu import Activity
from wattloop.virtual.node import CardLimits, NodeModel, NodeOutcome, node_named, steady_outcome

__all__ = [
    "CAPS_W",
    "FIGURES",
    "GPUS",
    "PARAMETERS",
    "REFERENCE_W",
    "Fit",
    "fit",
    "fitted_node",
    "outcomes",
    "shipped_values",
]

CAPS_W = tuple(range(100, 261, 10))
GPUS = (1, 2, 4, 8)
REFERENCE_W = 260


class Figure(NamedTuple):
    """A published figure. `cap_w` is None for the largest energy gain over all caps."""

    gpus: int
    cap_w: int | None
    value: float
    tolerance: float
    """Relative for times, per cent points for gains."""
    origin: str


FIGURES = (
    Figure(1, 260, 85.6 * 4.95, 0.005, "85.6 s x speed-up 4.95"),
    Figure(2, 260, 228.0, 0.005, "figure 7"),
    Figure(4, 260, 85.6 * 4.95 / 3.3, 0.015, "speed-up 'approx. 3.3'"),
    Figure(8, 260, 85.6, 0.005, "figure 7"),
    Figure(1, 170, 477.0, 0.005, "figure 7"),
    Figure(2, 170, 256.0, 0.005, "figure 7"),
    Figure(4, 170, 477.0 / 3.3, 0.015, "speed-up 'approx. 3.3'"),
    Figure(8, 170, 93.6, 0.005, "figure 7"),
    Figure(1, None, 3.0, 0.5, "text, 'approx. 3%'"),
    Figure(2, None, 5.5, 0.5, "text, 5.5%"),
    Figure(4, None, 11.5, 0.5, "text, 11.5%"),
    Figure(8, None, 25.39, 0.25, "text, 'over 25%', and figure 2"),
)


class Parameter(NamedTuple):
    """A fitted number and its physical bounds."""

    low: float
    high: float
    unit: str
    why: str


PARAMETERS: Mapping[str, Parameter] = {
    "gpu_s": Parameter(250, 450, "s", "computation on one GPU at 2100 MHz; 424 s at 260 W"),
    "comm_s": Parameter(1, 60, "s", "communication of two GPUs"),
    "comm_growth": Parameter(0, 1, "", "from none (ring) to in proportion (one shared bus)"),
    "comm_compute": Parameter(0, 1, "", "arithmetic during communication, share of time"),
    "compute_w": Parameter(200, 700, "W", "dynamic power at 2100 MHz if nothing limited it"),
    "volt_exponent": Parameter(1, 3, "", "voltage over clock: a line to a cubic curve"),
    "host_w": Parameter(150, 700, "W", "two Xeon Silver 4210, 384 GB, board, fans at their lowest"),
    "fan_w": Parameter(0, 500, "W", "fans of an 8-GPU chassis at full heat"),
}


@dataclass(frozen=True)
class Fit:
    """Values of the parameters and the misfit: sum of (residual / tolerance)^2."""

    values: Mapping[str, float]
    misfit: float


def shipped_values(node: NodeModel | None = None) -> dict[str, float]:
    """Return the parameters of a node."""
    node = node or node_named("node004")
    job = node.job
    return {
        "gpu_s": job.gpu_s,
        "comm_s": job.comm_s,
        "comm_growth": job.comm_growth,
        "comm_compute": job.comm_activity.compute,
        "compute_w": node.card.compute_w,
        "volt_exponent": node.card.volt_exponent,
        "host_w": node.host_w,
        "fan_w": node.fan_w,
    }


def fitted_node(values: Mapping[str, float], base: NodeModel | None = None) -> NodeModel:
    """Return the shipped node, or another, with other values."""
    node = base or node_named("node004")
    card = replace(node.card, compute_w=values["compute_w"], volt_exponent=values["volt_exponent"])
    job = replace(
        node.job,
        gpu_s=values["gpu_s"],
        comm_s=values["comm_s"],
        comm_growth=values["comm_growth"],
        comm_activity=Activity(values["comm_compute"], 1.0, 1.0),
    )
    return replace(node, card=card, job=job, host_w=values["host_w"], fan_w=values["fan_w"])


def outcomes(node: NodeModel, gpus: int) -> dict[int, NodeOutcome]:
    """Return cap -> time and energy of the node's job."""
    return {cap: steady_outcome(node, node.job, gpus, CardLimits(cap)) for cap in CAPS_W}


def simulated(node: NodeModel, figures: Sequence[Figure]) -> list[float]:
    """Return the node's value of each figure."""
    by_gpus = {n: outcomes(node, n) for n in sorted({figure.gpus for figure in figures})}
    values = []
    for figure in figures:
        by_cap = by_gpus[figure.gpus]
        if figure.cap_w is not None:
            values.append(by_cap[figure.cap_w].time_s)
        else:
            least_j = min(outcome.node_energy_j for outcome in by_cap.values())
            values.append(100 * (1 - least_j / by_cap[REFERENCE_W].node_energy_j))
    return values


def residuals(node: NodeModel, figures: Sequence[Figure] = FIGURES) -> np.ndarray:
    """Return (simulated - published) in units of each figure's tolerance."""
    parts = []
    for figure, value in zip(figures, simulated(node, figures), strict=True):
        scale = 1.0 if figure.cap_w is None else figure.value
        parts.append((value - figure.value) / scale / figure.tolerance)
    return np.array(parts)


def fit(
    figures: Sequence[Figure] = FIGURES,
    fixed: Mapping[str, float] | None = None,
    starts: int = 6,
    seed: int = 1,
    base: NodeModel | None = None,
) -> Fit:
    """Fit by bounded least squares from the shipped values and from random points within the
    bounds.
    """
    from scipy.optimize import least_squares

    fixed = fixed or {}
    names = [name for name in PARAMETERS if name not in fixed]
    low = np.array([PARAMETERS[name].low for name in names])
    high = np.array([PARAMETERS[name].high for name in names])

    def misfit(point: np.ndarray) -> np.ndarray:
        values = {**dict(zip(names, point, strict=True)), **fixed}
        return residuals(fitted_node(values, base), figures)

    random = np.random.default_rng(seed)
    shipped = shipped_values()
    points = [np.array([shipped[name] for name in names])]
    points += [low + (high - low) * random.uniform(0.1, 0.9, len(names)) for _ in range(starts)]
    best = None
    for point in points:
        inside = np.clip(point, low + 1e-6 * (high - low), high - 1e-6 * (high - low))
        found = least_squares(
            misfit, inside, bounds=(low, high), x_scale=high - low, diff_step=1e-3, max_nfev=50
        )
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    values = {**dict(zip(names, map(float, best.x), strict=True)), **fixed}
    return Fit({name: values[name] for name in PARAMETERS}, 2 * float(best.cost))
