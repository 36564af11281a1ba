"""Tables of the benchmark of policies."""

from collections.abc import Mapping, Sequence

import numpy as np

from bars import Table
from policies_runs import Case, Found, mean, miss_percent
from wattloop.schedule.metrics.metrics import Metrics

__all__ = ["all_policies", "by_age", "by_factor", "by_load", "by_user", "lost_work", "philly_table"]

HEADER = (
    "policy", "jobs/h", "energy", "per job", "mean JCT", "p95 JCT", "misses", "peak",
    "preemptions", "wasted", "Jain JCT", "Jain share",
)  # fmt: skip


def all_policies(title: str, found: Found, cases: Sequence[Case], text: str = "") -> Table:
    """Table with a row per policy: means over seeds, energy and throughput with standard
    deviation.
    """
    return Table(title, HEADER, [_row(case.policy, found[case]) for case in cases], text)


def philly_table(title: str, rows: Mapping[str, Metrics], text: str) -> Table:
    """Table with a row per policy, of one simulation."""
    return Table(title, HEADER, [_row(name, [each]) for name, each in rows.items()], text)


def by_factor(
    found: Found,
    cases: Mapping[tuple[str, float, float], Case],
    bounds: Mapping[tuple[float, float], tuple[int, int]],
) -> Table:
    """Table of misses as deadlines get tighter, with the misses that no schedule could avoid."""
    policies = list(dict.fromkeys(policy for policy, _, _ in cases))
    places = sorted({(rate, factor) for _, rate, factor in cases}, key=lambda at: (at[0], -at[1]))
    rows = []
    for rate, factor in places:
        due, kept = bounds[rate, factor]
        shown = [
            f"{miss_percent(found[cases[policy, rate, factor]]):.1f}%"
            if (policy, rate, factor) in cases
            else ""
            for policy in policies
        ]
        rows.append((f"{rate:g}", f"{factor:g}", due, due - kept, *shown))
    return Table(
        "Deadlines",
        ("rate", "factor", "fell due", "no schedule could keep", *policies),
        rows,
        "Urgent jobs, a tenth of all, have to be done within `factor` times their best run time. "
        "No schedule could keep: counted by a program that knows the future and forgets all other "
        "jobs (`benchmarks/policies_bound.py`), so that more may be impossible, not less.",
    )


def lost_work(found: Found, cases: Mapping[str, Case]) -> Table:
    """Table of the cost of preemption, by the work that a stopped job keeps."""
    rows = [
        (
            keeps,
            f"{mean(found[case], 'preemptions'):.1f}",
            f"{mean(found[case], 'wasted_kwh'):.2f} kWh",
            f"{miss_percent(found[case]):.1f}%",
            f"{mean(found[case], 'throughput_per_h'):.2f}",
            f"{mean(found[case], 'jct_mean_s'):.0f} s",
        )
        for keeps, case in cases.items()
    ]
    return Table(
        "What a stopped job keeps",
        ("keeps", "preemptions", "wasted", "misses", "jobs/h", "mean JCT"),
        rows,
        "AuraChronos at 2x deadlines. The thesis says both: all but the last iteration (5.3.2.4), "
        "and nothing (5.6.4), which is the scenario's.",
    )


def by_age(found: Found, cases: Sequence[Case]) -> Table:
    """Table of the effect of the weight of age, which the thesis does not give."""
    # the same seeds for all: some cases have more, for other tables
    seeds = min(len(found[case]) for case in cases)
    rows = []
    for case in cases:
        metrics = found[case][:seeds]
        rows.append(
            (
                case.policy,
                f"{mean(metrics, 'throughput_per_h'):.2f}",
                f"{mean(metrics, 'energy_kwh'):.1f} kWh",
                f"{mean(metrics, 'jct_mean_s'):.0f} s",
                f"{mean(metrics, 'jct_p99_s'):.0f} s",
                f"{miss_percent(metrics):.1f}%",
            )
        )
    header = ("policy", "jobs/h", "energy", "mean JCT", "p99 JCT", "misses")
    return Table("Weight of age", header, rows, "ADR 0031 fixes 1 and 1/600 s.")


def by_load(
    found: Found, cases: Mapping[tuple[str, float], Case], least: Mapping[float, float]
) -> Table:
    """Table of Helios against Pollux from an idle cluster to an overloaded one."""
    rows = []
    for rate in sorted({rate for _, rate in cases}):
        pollux, zeus, helios = (found[cases[name, rate]] for name in ("pollux", "zeus", "helios"))
        base_kwh = mean(pollux, "energy_kwh")
        rows.append(
            (
                f"{rate:g}",
                f"{mean(pollux, 'throughput_per_h'):.2f}",
                f"{mean(helios, 'throughput_per_h'):.2f}",
                f"{base_kwh:.1f} kWh",
                _change(mean(zeus, "energy_kwh"), base_kwh),
                _change(mean(helios, "energy_kwh"), base_kwh),
                _change(least[rate], base_kwh),
                f"{mean(pollux, 'jct_mean_s'):.0f} s",
                _change(mean(zeus, "jct_mean_s"), mean(pollux, "jct_mean_s")),
                _change(mean(helios, "jct_mean_s"), mean(pollux, "jct_mean_s")),
                f"{miss_percent(helios):.1f}%",
            )
        )
    header = (
        "rate", "jobs/h, Pollux", "jobs/h, Helios", "energy, Pollux", "Zeus", "Helios",
        "least possible", "JCT, Pollux", "JCT, Zeus", "JCT, Helios", "misses, Helios",
    )  # fmt: skip
    return Table(
        "Load",
        header,
        rows,
        "Least possible: the jobs that Pollux got done, each on the placement and cap that the "
        "linear program of `benchmarks/policies_energy_bound.py` gives it, without any waiting or "
        "packing, on a cluster whose idle GPUs draw what they draw.",
    )


def by_user(found: Found, cases: Sequence[Case]) -> Table:
    """Table of fairness where one of five users submits half of all jobs."""
    return all_policies(
        "One of five users submits half of all jobs",
        found,
        cases,
        "Thesis 5.5.2.5. `-as-printed` are the formulas as printed, which favour heavy users.",
    )


def _row(name: str, metrics: Sequence[Metrics]) -> tuple[str, ...]:
    throughput = [each.throughput_per_h for each in metrics]
    energy = [each.energy_kwh for each in metrics]
    return (
        name,
        _spread(throughput, 2),
        f"{_spread(energy, 1)} kWh",
        f"{sum(energy) / max(sum(each.jobs_done for each in metrics), 1):.3f} kWh",
        f"{mean(metrics, 'jct_mean_s'):,.0f} s",
        f"{mean(metrics, 'jct_p95_s'):,.0f} s",
        f"{miss_percent(metrics):.1f}%",
        f"{max(each.peak_power_w for each in metrics):,.0f} W",
        f"{mean(metrics, 'preemptions'):.1f}",
        f"{mean(metrics, 'wasted_kwh'):.2f} kWh",
        f"{mean(metrics, 'jain_jct'):.3f}",
        f"{mean(metrics, 'jain_share'):.3f}",
    )


def _spread(values: Sequence[float], digits: int) -> str:
    if len(values) < 2:
        return f"{values[0]:,.{digits}f}"
    return f"{np.mean(values):,.{digits}f} +- {np.std(values, ddof=1):.{digits}f}"


def _change(value: float, base: float) -> str:
    return f"{100 * (value / base - 1):+.1f}%"
