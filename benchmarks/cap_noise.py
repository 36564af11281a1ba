"""Searches with noisy readings: as shipped, with a number of probes that depends on noise, and
with four.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean, median

from bars import Table
from wattloop.cap.evaluation import MeasuredCurve, Replayed, replays, share_within
from wattloop.cap.finder import CapFinder

__all__ = ["probes_table", "searched", "share"]

TEXT = """
Up to 2% of noise four probes are all. Above, the search goes on while its choice is expected to be
more than 1% from the best and one more probe to lower that by at least 0.1 points; it never makes
more probes than there are caps, and may read a cap again. Both constants were chosen on made-up
curves (ADR 0018), before these tables were looked at with them. *Four probes* is the same finder
held to four (`--probes 4`); *exhaustive* reads every cap once.
"""


@cache
def searched(
    curves: tuple[MeasuredCurve, ...],
    metric: str,
    k: float,
    noise: float,
    seeds: int,
    most: int | None = None,
) -> tuple[Replayed, ...]:
    """Run every search with the shipped finder, or with a limit of probes."""

    def make(curve: MeasuredCurve) -> CapFinder:
        return CapFinder(curve.caps_w, metric, k, noise=noise, most_probes=most)

    return tuple(replays(curves, metric, k, noise, seeds=seeds, make=make))


def share(done: Sequence[Replayed]) -> float:
    """Return the percentage of searches within 2% of the best."""
    return 100 * (share_within([replayed.regret for replayed in done]) or 0.0)


def probes_table(
    curves: tuple[MeasuredCurve, ...],
    metrics: Mapping[str, tuple[str, float]],
    noises: Sequence[float],
    seeds: int,
) -> Table:
    """Table of shares and probes for each noise."""
    rows: list[list[object]] = []
    for noise in noises:
        for name, (metric, k) in metrics.items():
            ours = searched(curves, metric, k, noise, seeds)
            four = searched(curves, metric, k, noise, seeds, 4)
            probes = [replayed.probes for replayed in ours]
            tried = [replayed.exhaustive_regret for replayed in ours]
            rows.append(
                [
                    f"{100 * noise:.0f}%",
                    name,
                    share(ours),
                    f"{fmean(probes):.1f}",
                    f"{median(probes):g}",
                    max(probes),
                    share(four),
                    f"{fmean(replayed.probes for replayed in four):.1f}",
                    100 * (share_within(tried) or 0.0),
                    f"{fmean(len(replayed.curve.caps_w) for replayed in ours):.1f}",
                ]
            )
    return Table(
        "What noise costs in probes",
        (
            "noise",
            "metric",
            "wattloop %",
            "mean probes",
            "median",
            "most",
            "four probes %",
            "mean probes",
            "exhaustive %",
            "mean probes",
        ),
        rows,
        TEXT,
    )
