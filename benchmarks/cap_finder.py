"""Rate at which few probes find the best power cap, on measured curves of V100 and A40.

    python benchmarks/cap_finder.py [--quick] [--json FILE]

The curves are those of the Zeus library's artifact (NSDI 2023); the folder with
zeus_nsdi23/power_{v100,a40}.csv is named by WATTLOOP_SHARED_DATA.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from bars import Bar, Page, Table, arguments, publish
from cap_bounds import bounds_table
from cap_noise import probes_table, searched
from cap_noise import share as share_of
from cap_rivals import GaussianProcess, GoldenSection, LearnedElsewhere, RandomCaps
from wattloop.cap.evaluation import MeasuredCurve, read_curves, replays, share_within
from wattloop.cap.finder import CapFinder

ROOT = Path(__file__).resolve().parent.parent
GPUS = ("v100", "a40")
METRICS = {
    "energy": ("energy", 2.0, 95.0),
    "edp": ("edp", 2.0, 95.0),
    "eds2": ("eds", 2.0, 95.0),
    "eds1.5": ("eds", 1.5, 93.0),
    "ed2p": ("ed2p", 2.0, 85.0),
}
BETTER_AT_5PCT = ("energy", "edp", "eds2")

TEXT = """
Each curve is one workload and batch size at every power limit (V100: 7, A40: 5 or 9). Responsive
curves only: average power at the highest cap more than 1.1 times that at the lowest
({responsive} of {all}: {v100} on V100, {a40} on A40). A search may read the reference (the highest
cap) and three more, and with noise above 2% as many as the section on noise says; its choice is
right when the true metric there is within 2% of the best point of the curve. Noise is relative,
Gaussian, and independent for every reading of time and of power; with noise every curve is searched
{seeds} times.

Nothing was learned from these curves: the finder's prior is a family of physical curves with wide
ranges (ADR 0018), so both GPUs and all workloads are left out of it. Its constants of method (how
far real curves deviate from the family, how a probe is chosen) were first set while looking at
these two tables (about 30 configurations), then checked on curves of random virtual cards, from
which what changed since was chosen (21 more configurations; 16 of them, most only other draws of
the family, were seen on these tables, too). Tables of other GPUs are the real
test: `wattloop cap evaluate --table`. With {responsive}
curves one curve is {step:.0f} points, and a share of 95% has a standard error of {error:.0f}
points; another draw of the family moves a share by 2 points. With noise, a difference to
`exhaustive` has a standard error of about 2 points from the draws of noise alone, and of 3 to 4 if
these curves are taken as a sample of others.

Baselines: `exhaustive` tries every cap once and takes the smallest reading, as the Zeus library
does; golden section with at most 5 probes; random and a Gaussian process without physics with 4
probes; `learned` is our finder with the measured curves of the other GPU, without the workload at
hand, in place of the physical family. Above 2% noise ours has more
probes than those of four or five: next to them belongs the column *four probes* of the section on
noise.
"""


def main() -> int:
    parser = arguments("how often few probes find the best power cap")
    args = parser.parse_args()
    folder = Path(os.environ.get("WATTLOOP_SHARED_DATA") or ROOT.parent / "shared" / "data")
    files = {gpu: folder / "zeus_nsdi23" / f"power_{gpu}.csv" for gpu in GPUS}
    missing = [str(path) for path in files.values() if not path.is_file()]
    if missing:
        print(
            f"{', '.join(missing)} is not there; name the folder that holds zeus_nsdi23 with "
            "WATTLOOP_SHARED_DATA",
            file=sys.stderr,
        )
        return 2
    curves = {gpu: read_curves(path) for gpu, path in files.items()}
    publish(_page(curves, seeds=1 if args.quick else 8), args)
    return 0


def _page(curves: dict[str, list[MeasuredCurve]], seeds: int) -> Page:
    full = seeds > 1
    responsive = {g: [c for c in found if c.responsive] for g, found in curves.items()}
    every = [curve for found in responsive.values() for curve in found]
    bars: list[Bar] = []
    probes: list[int] = []
    shares_3 = {}
    for name, (metric, k, limit) in METRICS.items():
        done = list(replays(every, metric, k, 0.0))
        probes += [r.probes for r in done]
        shares_3[name] = _share(every, metric, k, 0.0, 1, _ours(metric, k, 0.0, 3))
        bars.append(
            Bar(
                f"within_2pct_{name}",
                100 * (share_within([r.regret for r in done]) or 0.0),
                "%",
                limit,
                {
                    "golden section": _share(every, metric, k, 0.0, 1, _golden(metric, k)),
                    "Gaussian process": _share(every, metric, k, 0.0, 1, _gp(metric, k, 0.0)),
                    "random": _random(every, metric, k),
                    "learned": _learned(responsive, metric, k),
                },
                at_least=True,
            )
        )
    bars.append(Bar("median_probes", median(probes), "", 4.0))
    for noise, names, least in ((0.02, tuple(METRICS), 0.0), (0.05, tuple(METRICS), 10.0)):
        for name in names:
            metric, k, _ = METRICS[name]
            done = searched(tuple(every), metric, k, noise, seeds)
            ours = share_of(done)
            tried = 100 * (share_within([r.exhaustive_regret for r in done]) or 0.0)
            golden = _share(every, metric, k, noise, seeds, _golden(metric, k))
            process = _share(every, metric, k, noise, seeds, _gp(metric, k, noise))
            barred = least if noise < 0.03 or name in BETTER_AT_5PCT else None
            bars.append(
                Bar(
                    f"noise{100 * noise:.0f}_{name}_points_over_exhaustive",
                    ours - tried,
                    "points",
                    barred,
                    {
                        "wattloop %": ours,
                        "exhaustive %": tried,
                        "golden section %": golden,
                        "Gaussian process %": process,
                    },
                    at_least=True,
                )
            )
    for name, share in shares_3.items():
        bars.append(Bar(f"three_probes_{name}", share, "%"))
    bars.append(Bar("ask_and_tell", _cpu_ms(every[0]), "ms of CPU"))
    all_curves = sum(map(len, curves.values()))
    flat = [c for found in curves.values() for c in found if not c.responsive]
    barred_metrics = {name: METRICS[name][:2] for name in BETTER_AT_5PCT[: None if full else 1]}
    pairs = {name: METRICS[name][:2] for name in METRICS}
    probes_used = probes_table(tuple(every), pairs, (0.02, 0.05), seeds)
    bounds = bounds_table(responsive, barred_metrics, 0.05, seeds, each=4 if full else 1)
    return Page(
        "cap_finder",
        "The best power cap with few probes",
        bars,
        [probes_used, bounds, _per_gpu(responsive), _flat(flat)],
        TEXT.format(
            responsive=len(every),
            all=all_curves,
            v100=len(responsive["v100"]),
            a40=len(responsive["a40"]),
            seeds=seeds,
            step=100 / len(every),
            error=100 * (0.95 * 0.05 / len(every)) ** 0.5,
        ),
        packages=("wattloop", "numpy"),
    )


Make = Callable[[MeasuredCurve], CapFinder]


def _share(
    curves: Sequence[MeasuredCurve], metric: str, k: float, noise: float, seeds: int, make: Make
) -> float:
    done = replays(curves, metric, k, noise, seeds=seeds, make=make)
    return 100 * (share_within([r.regret for r in done]) or 0.0)


def _ours(metric: str, k: float, noise: float, most: int) -> Make:
    return lambda curve: CapFinder(curve.caps_w, metric, k, noise=noise, most_probes=most)


def _golden(metric: str, k: float) -> Make:
    return lambda curve: GoldenSection(curve.caps_w, metric, k, 5)  # type: ignore[return-value] # same interface


def _gp(metric: str, k: float, noise: float) -> Make:
    return lambda curve: GaussianProcess(curve.caps_w, metric, k, 4, noise)  # type: ignore[return-value] # same interface


def _random(curves: Sequence[MeasuredCurve], metric: str, k: float, draws: int = 20) -> float:
    shares = [
        _share(curves, metric, k, 0.0, 1, lambda c, s=seed: RandomCaps(c.caps_w, metric, k, 4, s))  # type: ignore[misc] # same interface
        for seed in range(draws)
    ]
    return sum(shares) / draws


def _learned(responsive: dict[str, list[MeasuredCurve]], metric: str, k: float) -> float:
    right = total = 0.0
    for gpu, found in responsive.items():
        others = [c for other, cs in responsive.items() if other != gpu for c in cs]

        def make(curve: MeasuredCurve, others: list[MeasuredCurve] = others) -> CapFinder:
            known = tuple(c for c in others if c.key[:2] != curve.key[:2])
            return LearnedElsewhere(known, curve.caps_w, metric, k, noise=0.0)

        right += _share(found, metric, k, 0.0, 1, make) * len(found)
        total += len(found)
    return right / total


def _per_gpu(responsive: dict[str, list[MeasuredCurve]]) -> Table:
    rows = []
    for gpu, found in responsive.items():
        row: list[object] = [gpu, len(found)]
        for metric, k, _ in METRICS.values():
            done = list(replays(found, metric, k, 0.0))
            share = 100 * (share_within([r.regret for r in done]) or 0.0)
            worst = 100 * max(r.regret for r in done)
            row.append(f"{share:.0f}% (worst {worst:.1f}%)")
        rows.append(row)
    return Table(
        "Each GPU, without noise",
        ("GPU", "curves", *METRICS),
        rows,
        "Share of curves within 2% of the best point, and the largest regret.",
    )


def _flat(curves: Sequence[MeasuredCurve]) -> Table:
    rows = []
    for metric, k, _ in METRICS.values():
        done = list(replays(curves, metric, k, 0.0))
        lowest = sum(r.cap_w == r.curve.caps_w[0] for r in done)
        rows.append((f"{metric} {k:g}", len(done), lowest, median(r.probes for r in done)))
    return Table(
        "Flat curves",
        ("metric", "curves", "lowest cap chosen", "median probes"),
        rows,
        "No cap changes the power of these workloads, so any is right and the lowest wins.",
    )


def _cpu_ms(curve: MeasuredCurve) -> float:
    """Return the CPU time of one ask and tell."""
    list(replays([curve], "edp", 2.0, 0.0))
    begin_s = time.process_time()
    done = [r for _ in range(10) for r in replays([curve], "edp", 2.0, 0.0)]
    return 1e3 * (time.process_time() - begin_s) / sum(r.probes for r in done)


if __name__ == "__main__":
    sys.exit(main())
