"""Speed-up of data-parallel training over 2 to 8 A100, with only the link fitted.

    python benchmarks/predict_scaling.py [--quick] [--json FILE]

Reads `cluster/elasticflow_throughputs.csv` of the folder that WATTLOOP_SHARED_DATA names. `--quick`
traces no network, so it knows nothing of the host's time.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bars import Bar, Page, Table, arguments, publish
from predict_scaling_model import (
    A100,
    HOST_BOUND,
    MOST_GPUS,
    PARAMETERS,
    Predict,
    Row,
    Scaling,
    Times,
    host_times,
    read,
)
from wattloop.predict.communication import ring_of
from wattloop.predict.prediction import Placement

ROOT = Path(__file__).resolve().parent.parent
THESIS_BYTES_S = 293e9
"""What the thesis takes for four A100 after its remark on bus bandwidth."""
BANDWIDTHS = (8e9, 12e9, 16e9, 25e9, 35e9, 50e9, 75e9, 100e9, 150e9, 225e9)
LATENCIES = (2e-6, 5e-6, 10e-6, 20e-6)
"""A hop within a node takes no longer."""

TEXT = """
{rows} rows of ElasticFlow's table (ASPLOS 2023): steps per second of {networks} networks on 2, 4
and 8 A100, global batches of 32 to 256. The error is |predicted speed-up / measured speed-up - 1|;
the speed-up is over one GPU with the same global batch, so each GPU's batch shrinks as GPUs are
added.

Given are the single-GPU rows. Time of a smaller batch on one GPU is the line through the two
nearest single-GPU batches of that network, and at least the time the host needs to dispatch it: the
kernels model's for the operator calls of the rebuilt network, with the host's speed read off one
single-GPU row that the host bounds ({host}).
On top comes the exchange of gradients (`predict.communication`): a ring, buckets of 25 MB, hidden
behind backward (two thirds of the step) and slowing it a little. The link alone is fitted,
bandwidth and latency on a grid of {grid} pairs, on the other networks (both ResNet-50 together).
The grid ends at 20 us a hop, which no link within a node exceeds; that end was set after a grid up
to 200 us had given 9.8%.

Baselines: `perfect scaling`; `no communication` (the smaller batch's time alone); `without overlap`
(equation 4.8 added to the step, link of the data sheet at what NCCL reaches); `thesis`: the same at
{thesis:.0f} GB/s, which is what its remark on bus bandwidth makes of four A100.

What is left is mostly a slowdown in proportion to the number of GPUs (about 2% for each), even of
large batches that hardly communicate: GPUs of a node share its processors, memory and data
loading. None of these models knows that, and `without overlap` is nearer to it than it should be.
"""


def main() -> int:
    args = arguments(__doc__ or "").parse_args()
    folder = Path(os.environ.get("WATTLOOP_SHARED_DATA") or ROOT.parent / "shared" / "data")
    path = folder / "cluster" / "elasticflow_throughputs.csv"
    if not path.is_file():
        print(
            f"{path} is not there; name the folder that holds cluster with WATTLOOP_SHARED_DATA",
            file=sys.stderr,
        )
        return 2
    times = read(path)
    host_s = {} if args.quick else host_times(times)
    publish(page(times, host_s), args)
    return 0


def page(times: Times, host_s: Mapping[str, float]) -> Page:
    """Make the page: errors of the model and of simpler ones, and the fitted link."""
    rows = [row for row in times if row.gpus > 1]
    scaling = Scaling(times, host_s)
    sheet = ring_of(Placement(A100, gpus=MOST_GPUS))
    links = {network: fitted(times, scaling, network) for network in PARAMETERS}

    def ours(row: Row) -> float:
        return scaling.step_s(row, *links[row.network])

    rivals: dict[str, Predict] = {
        "perfect scaling": lambda row: times[Row(row.network, row.batch, 1)] / row.gpus,
        "no communication": lambda row: scaling.alone_s(row.network, row.batch // row.gpus),
        "without overlap": lambda row: scaling.added_s(row, sheet.bytes_s, sheet.hop_s),
        "thesis": lambda row: scaling.added_s(row, THESIS_BYTES_S, sheet.hop_s),
        "link of the data sheet": lambda row: scaling.step_s(row, sheet.bytes_s, sheet.hop_s),
    }
    bars = [_bar("speedup_error", times, rows, ours, rivals, 15.0)]
    for gpus in (2, 4, 8):
        some = [row for row in rows if row.gpus == gpus]
        bars.append(_bar(f"speedup_error_{gpus}_gpus", times, some, ours, rivals, None))
    return Page(
        "predict_scaling",
        "Training over several GPUs, predicted from one",
        bars,
        [
            _by_network(times, rows, ours, rivals, links, host_s),
            _rows_table(times, rows, ours),
        ],
        TEXT.format(
            rows=len(rows),
            networks=len({row.network for row in rows}),
            host=f"{HOST_BOUND[0]}, batch {HOST_BOUND[1]}",
            grid=len(BANDWIDTHS) * len(LATENCIES),
            thesis=THESIS_BYTES_S / 1e9,
        ),
        packages=("wattloop", "numpy") if not host_s else ("wattloop", "numpy", "torch"),
    )


def fitted(times: Times, scaling: Scaling, without: str) -> tuple[float, float]:
    """Return bandwidth and latency of the link that suit the other networks."""
    family = without.partition("_")[0]
    others = [r for r in times if r.gpus > 1 and r.network.partition("_")[0] != family]

    def error(link: tuple[float, float]) -> float:
        return mean_error(times, others, lambda row: scaling.step_s(row, *link))

    return min(product(BANDWIDTHS, LATENCIES), key=error)


def errors(times: Times, rows: Sequence[Row], predict: Predict) -> npt.NDArray[np.float64]:
    """Return signed errors of the speed-up."""
    return np.array([times[row] / predict(row) - 1 for row in rows])


def mean_error(times: Times, rows: Sequence[Row], predict: Predict) -> float:
    return 100 * float(np.abs(errors(times, rows, predict)).mean())


def _bar(
    name: str,
    times: Times,
    rows: Sequence[Row],
    ours: Predict,
    rivals: Mapping[str, Predict],
    limit: float | None,
) -> Bar:
    baselines = {title: mean_error(times, rows, rival) for title, rival in rivals.items()}
    return Bar(name, mean_error(times, rows, ours), "%", limit, baselines)


def _by_network(
    times: Times,
    rows: Sequence[Row],
    ours: Predict,
    rivals: Mapping[str, Predict],
    links: Mapping[str, tuple[float, float]],
    host_s: Mapping[str, float],
) -> Table:
    found = []
    for network, (bytes_s, hop_s) in links.items():
        some = [row for row in rows if row.network == network]
        if not some:
            continue
        off = errors(times, some, ours)
        found.append(
            (
                network,
                f"{PARAMETERS[network] / 1e6:.1f} M",
                len(some),
                f"{100 * np.abs(off).mean():.1f}%",
                f"{100 * off.mean():+.1f}%",
                f"{mean_error(times, some, rivals['without overlap']):.1f}%",
                f"{1e3 * host_s[network]:.0f} ms" if network in host_s else "not traced",
                f"{bytes_s / 1e9:g} GB/s, {1e6 * hop_s:g} us",
            )
        )
    return Table(
        "By network",
        ("network", "parameters", "rows", "error", "bias", "without overlap", "host", "link found"),
        found,
        "The link is that of the other networks; bias above zero: the speed-up was overestimated.",
    )


def _rows_table(times: Times, rows: Sequence[Row], ours: Predict) -> Table:
    shown = []
    for row in sorted(rows, key=lambda r: -abs(times[r] / ours(r) - 1))[:12]:
        alone_s = times[Row(row.network, row.batch, 1)]
        measured, predicted = alone_s / times[row], alone_s / ours(row)
        shown.append(
            (
                row.network,
                row.batch,
                row.gpus,
                f"{measured:.2f}x",
                f"{predicted:.2f}x",
                f"{100 * (predicted / measured - 1):+.0f}%",
            )
        )
    header = ("network", "global batch", "GPUs", "measured", "predicted", "error")
    return Table("Worst rows", header, shown)


if __name__ == "__main__":
    sys.exit(main())
