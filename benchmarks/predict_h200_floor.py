"""Remaining host-bound error of a model that knows each network's calls.

Rows of one network, under autocast or without, make the same calls whatever their batch size: to
the host they are one number. `by_other_rows` takes it from the other such rows, as measured;
`in_hindsight` from the rows themselves, which no prediction can. The GPU's time is ours in both,
and a step takes the longer of the two.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from bars import Bar
from predict_errors import Outcome, mean_error

__all__ = ["drawn_again", "floor_bars"]

DRAWS = 4000


def floor_bars(outcomes: Sequence[Outcome]) -> list[Bar]:
    """Bars of both floors over all host-bound rows, with the prediction on the same rows."""
    groups = _same_calls(outcomes)
    every = [o for rows in groups for o in rows]
    if not every:
        return []
    seen = [_error(o, _best_host_s(rows)) for rows in groups for o in rows]
    several = [(o, rows) for rows in groups for o in rows if len(rows) > 1]
    bars = [
        Bar(
            "host_bound_in_hindsight", 100 * fmean(seen), "%", None,
            {"kernels": mean_error(every, "time")},
            note=f"{len(every)} host-bound rows, those of the same calls by one host time "
            f"({len(groups)} in all) that fits best to the rows themselves",
        )
    ]  # fmt: skip
    bars.append(
        Bar(
            "host_bound_worst_in_hindsight", 100 * max(map(_least_worst, groups)), "%", None,
            {"kernels": 100 * max(abs(o.error("time")) for o in every)},
            note="the worst of these rows, by the host times that make the worst row best",
        )
    )  # fmt: skip
    if several:
        others = [_error(o, _best_host_s([x for x in rows if x is not o])) for o, rows in several]
        ours = mean_error([o for o, _ in several], "time")
        bars.append(
            Bar(
                "host_bound_by_other_rows", 100 * fmean(others), "%", None, {"kernels": ours},
                note=f"{len(several)} host-bound rows by the time that fits best to other rows, "
                "which make the same calls",
            )
        )  # fmt: skip
    return bars


def drawn_again(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Return the range of nine in ten mean errors under resampling of the networks."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for o in outcomes:
        groups[o.judged.point.group].append(o)
    rng, networks = random.Random(0), list(groups.values())
    means = sorted(
        mean_error([o for rows in rng.choices(networks, k=len(networks)) for o in rows], "time")
        or 0.0
        for _ in range(DRAWS)
    )
    return means[DRAWS // 20], means[-DRAWS // 20]


def _same_calls(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    found: dict[tuple[str, bool], list[Outcome]] = defaultdict(list)
    for o in outcomes:
        if o.host_bound:
            found[o.judged.point.group, o.row.precision == "bf16"].append(o)
    return list(found.values())


def _best_host_s(rows: Sequence[Outcome]) -> float:
    """Return the host time with the least mean error, which bends only at steps and GPU times."""
    times = [time for o in rows for time in (o.row.step_s, _gpu_s(o))]
    return min(times, key=lambda host_s: sum(_error(o, host_s) for o in rows))


def _least_worst(rows: Sequence[Outcome]) -> float:
    """Error of the worst row at the host time at which it is least: two rows are equally wrong."""
    measured = [o.row.step_s for o in rows]
    times = [2 * a * b / (a + b) for a in measured for b in measured]
    return min(max(_error(o, host_s) for o in rows) for host_s in times)


def _error(o: Outcome, host_s: float) -> float:
    return abs(max(host_s, _gpu_s(o)) / o.row.step_s - 1)


def _gpu_s(o: Outcome) -> float:
    return o.judged.prediction.gpu_s or 0.0
