"""Comparison of our figures with the thesis's, and why they differ where they do."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bars import Table
from policies_runs import mean, miss_percent
from wattloop.schedule.metrics.metrics import Metrics

__all__ = ["Ours", "against_the_thesis"]

NEAR = 0.1
"""Share by which a figure may differ and still be the same."""
JAIN = {"pollux": (1.0, 1.0), "zeus": (1.0, 1.0), "themis": (0.8, 0.9), "hades": (0.8, 0.9)}
"""Figure 5.7: Jain's index of users' mean completion times."""
JAIN_NEAR = 0.05
Seeds = Sequence[Metrics]


class Ours(NamedTuple):
    """Inputs of the table, at one rate."""

    pollux: Seeds
    rigid: Seeds
    zeus: Seeds
    chronos: Seeds
    aurachronos: Seeds
    charon: Seeds
    themis: Seeds
    hades: Seeds


def against_the_thesis(stated: Ours, lower: Ours, imbalanced: Mapping[str, Seeds]) -> Table:
    """Table with a row per figure of the thesis: at its stated rate, and at the rate its figures
    fit.

    Args:
        stated: all policies at 0.005 jobs/s.
        lower: the same at 0.003.
        imbalanced: policy -> seeds with one user who submits half of all jobs, at the stated rate.
    """
    rows = []
    for name, thesis, unit, figure, reason in _FIGURES:
        a, b = figure(stated), figure(lower)
        is_same = abs(a - thesis) <= NEAR * abs(thesis)
        why = "" if is_same else reason(stated, lower)
        rows.append((name, f"{thesis:g}{unit}", f"{a:.4g}{unit}", f"{b:.4g}{unit}", why))
    for policy, (low, high) in JAIN.items():
        found = mean(imbalanced[policy], "jain_jct")
        said = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        is_same = low - JAIN_NEAR <= found <= high + JAIN_NEAR
        why = "" if is_same else "the load is what makes users wait (docs/adr/0032)"
        rows.append((f"{policy}, Jain of JCT, imbalanced", said, f"{found:.3f}", "", why))
    header = ("", "thesis", "0.005 jobs/s", "0.003 jobs/s", "why they differ")
    return Table("Next to the thesis's figures", header, rows)


def _throughput(seeds: Seeds) -> float:
    return mean(seeds, "throughput_per_h")


def _energy_change(ours: Seeds, base: Seeds) -> float:
    return 100 * (mean(ours, "energy_kwh") / mean(base, "energy_kwh") - 1)


def _arrivals(stated: Ours, lower: Ours) -> str:
    came, fewer = (mean(each.pollux, "jobs") / 10 for each in (stated, lower))
    return (
        f"0.005 jobs/s are {came:.1f} jobs/h, and nearly all are done; the thesis's figure fits "
        f"0.003 ({fewer:.1f} arrive)"
    )


def _rigid(stated: Ours, lower: Ours) -> str:
    ratio = _throughput(stated.pollux) / max(_throughput(stated.rigid), 1e-9)
    few = _throughput(lower.pollux) / max(_throughput(lower.rigid), 1e-9)
    return (
        f"malleable is {ratio:.1f} times rigid at 0.005 and {few:.1f} at 0.003: throughput differs "
        "only where rigid jobs cannot keep up with arrivals"
    )


def _zeus(stated: Ours, lower: Ours) -> str:
    del lower
    slower = 100 * (mean(stated.zeus, "jct_mean_s") / mean(stated.pollux, "jct_mean_s") - 1)
    return (
        "all-reduce costs next to nothing in our oracle, so that 8 GPUs have both the least time "
        f"and the least energy-delay product, and both policies choose them (JCT {slower:+.1f}%)"
    )


def _misses(stated: Ours, lower: Ours) -> str:
    return (
        f"Pollux misses {miss_percent(stated.pollux):.0f}% at 0.005 and "
        f"{miss_percent(lower.pollux):.0f}% at 0.003: it follows the load, and the thesis's load "
        "is between the two"
    )


def _charon(stated: Ours, lower: Ours) -> str:
    return (
        f"the more jobs wait, the fuller the budget: {_throughput(stated.charon):.1f} at 0.005, "
        f"{_throughput(lower.charon):.1f} at 0.003; idle GPUs (1,000 W) count in our budget"
    )


def _saved(stated: Ours, lower: Ours) -> str:
    done = 100 * _throughput(stated.charon) / _throughput(stated.pollux)
    return (
        f"the budget is above idle power by 3,500 W and used to the full while jobs wait; "
        f"{done:.0f}% of Pollux's jobs are done at 0.005, "
        f"{100 * _throughput(lower.charon) / _throughput(lower.pollux):.0f}% at 0.003"
    )


def _aura(stated: Ours, lower: Ours) -> str:
    fewer = _throughput(stated.pollux) - _throughput(stated.aurachronos)
    stops = f"{mean(stated.aurachronos, 'preemptions'):.1f} preemptions in 10 h"
    cost = f"cost {fewer:.2f} jobs/h" if fewer >= 0.05 else "cost no throughput"
    return f"{_arrivals(stated, lower)}; {stops} {cost}"


def _hades(stated: Ours, lower: Ours) -> str:
    del lower
    faster = _throughput(stated.hades) - _throughput(stated.themis)
    return f"as for Zeus: both choose the same placements; throughput differs by {faster:+.2f}"


def _energy(stated: Ours, lower: Ours) -> str:
    return _arrivals(stated, lower) + "; idle GPUs count, 10 kWh in 10 h"


_FIGURES = (
    ("Pollux, malleable", 10.9, " jobs/h", lambda o: _throughput(o.pollux), _arrivals),
    ("Pollux, rigid", 4.7, " jobs/h", lambda o: _throughput(o.rigid), _rigid),
    ("Pollux, energy", 57, " kWh", lambda o: mean(o.pollux, "energy_kwh"), _energy),
    ("Zeus, throughput", 11.0, " jobs/h", lambda o: _throughput(o.zeus), _arrivals),
    ("Zeus, energy against Pollux", -10.5, "%", lambda o: _energy_change(o.zeus, o.pollux), _zeus),
    ("Pollux, misses", 15, "%", lambda o: miss_percent(o.pollux), _misses),
    ("Zeus, misses", 9, "%", lambda o: miss_percent(o.zeus), _misses),
    ("AuraChronos, misses (below)", 1, "%", lambda o: miss_percent(o.aurachronos), lambda *_: ""),
    ("AuraChronos, throughput", 8.8, " jobs/h", lambda o: _throughput(o.aurachronos), _aura),
    ("Charon, peak power (at most)", 4500, " W",
     lambda o: max(each.peak_power_w for each in o.charon), lambda *_: ""),
    ("Charon, throughput", 8.3, " jobs/h", lambda o: _throughput(o.charon), _charon),
    ("Charon, energy against Pollux (below)", -50, "%",
     lambda o: _energy_change(o.charon, o.pollux), _saved),
    ("Hades, energy against Themis", -2, "%",
     lambda o: _energy_change(o.hades, o.themis), _hades),
)  # fmt: skip
