"""Sweep a virtual 8-GPU node over power caps and GPU counts, and print a paper's table.

The node stands for the one of Koszczal et al. (Euro-Par 2023 Workshops): eight Quadro RTX 6000
training Xception under caps of 100 to 260 W, measured at the socket. Everything is simulated, at
once; `wattloop sweep examples/virtual_node.yaml` does the same as real processes in real time.

    python examples/sweep_virtual_node.py
"""

from wattloop.accounting.energy_delay import Point, gain_minus_loss_pct, objective
from wattloop.virtual.node import CardLimits, node_named, steady_outcome

NODE = node_named("node004")
CAPS_W = range(100, 261, 10)
DEFAULT_W = 260
METRICS = (  # title, metric, k, cap and gain in the paper
    ("Energy", "energy", 2.0, 160, 25.39),
    ("Energy gain minus time loss", "gain_minus_loss", 2.0, 170, 15.03),
    ("EDP", "edp", 2.0, 170, 17.32),
    ("EDS (k = 1.5)", "eds", 1.5, 200, 2.26),
    ("EDS (k = 2.0)", "eds", 2.0, 170, 7.52),
)


def swept(gpus: int) -> dict[int, Point]:
    """Return cap -> time and node energy of the whole training."""
    points = {}
    for cap_w in CAPS_W:
        outcome = steady_outcome(NODE, NODE.job, gpus, CardLimits(limit_w=cap_w))
        points[cap_w] = Point(outcome.time_s, outcome.node_energy_j)
    return points


def best(points: dict[int, Point], metric: str, k: float) -> tuple[int, float]:
    """Return the best cap and its gain over the default one, in percent."""
    reference = points[DEFAULT_W]
    value = objective(metric, reference, k)
    cap_w = min(points, key=lambda cap: value(points[cap]))
    if metric == "gain_minus_loss":
        return cap_w, gain_minus_loss_pct(points[cap_w], reference)
    return cap_w, 100 * (1 - value(points[cap_w]) / value(reference))


def main() -> None:
    sweeps = {gpus: swept(gpus) for gpus in (1, 2, 4, 8)}

    print("Table 1: best power caps, 8 GPUs (simulated; the paper's in brackets)")
    for title, metric, k, paper_w, paper_pct in METRICS:
        cap_w, gain = best(sweeps[8], metric, k)
        print(f"  {title:<28} {gain:6.2f} % at {cap_w} W   ({paper_pct:5.2f} % at {paper_w} W)")

    print("\nLargest energy gain by GPUs in use (the others idle)")
    for gpus, points in sweeps.items():
        cap_w, gain = best(points, "energy", 2.0)
        print(f"  {gpus} GPUs {gain:6.2f} % at {cap_w} W")

    print("\nFigure 7: training time and speed-up")
    for cap_w in (260, 170):
        times = {gpus: points[cap_w].time_s for gpus, points in sweeps.items()}
        cells = [f"{gpus}: {t:6.1f} s ({times[1] / t:.2f}x)" for gpus, t in times.items()]
        print(f"  {cap_w} W  " + "   ".join(cells))


if __name__ == "__main__":
    main()
