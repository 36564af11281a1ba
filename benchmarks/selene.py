"""CO2e and money against delay: Selene and Helios with hours that differ, and each delay's bound.

    python benchmarks/selene.py [--seeds 2] [--quick] [--json FILE]

A day and a half of the thesis's jobs (`thesis-green`, `thesis-price`), all run to their end.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bars import Bar, Page, Table, arguments, publish
from policies_runs import Case, Found, mean, miss_percent, run_all
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.schedule.scenarios.scenario import World

DELAYS_H = (0, 2, 4, 6, 9, 12)
HOUR_S = 3600.0
CHANGES = (("engine.horizon", "none"), ("jobs.generate.horizon", "36 h"))


class Series(NamedTuple):
    """A series for which jobs are delayed.

    Attributes:
        scenario: its name.
        setting: name of the series in the settings of the engine.
        metric: name of the sum in the metrics.
        per_unit: units of the series in one of the metric.
        unit: for people.
    """

    scenario: str
    setting: str
    metric: str
    per_unit: float
    unit: str


CARBON = Series("thesis-green", "carbon_g_per_kwh", "carbon_kg", 1000.0, "kg")
PRICE = Series("thesis-price", "price_per_kwh", "cost", 1.0, "units")
TEXT = """
A day and a half of the thesis's jobs at 0.003 jobs/s ({seeds} seeds), all run to their end, on a
grid whose intensity goes from 120 g/kWh at noon to 320 g/kWh in the evening (**an assumed day**,
scenario `thesis-green`). A tenth of the jobs has a deadline of 3.5 times its best run time; every
other job may be delayed by the time in the first column. CO2e is of the GPUs that run jobs: what
idle GPUs draw does not depend on the policy, and would only be longer with a longer simulation.
Bound: a linear program per seed that knows the future, in which jobs of an hour run in any hour up
to the delay, divide freely and need no packing (all GPU types and numbers; for Helios all caps).
Its hours are coarse: every job has up to two hours more than the delay, so that it is below what
any schedule reaches, most of all at 0 h.

**Money**: the same jobs and delays with a price from 0.05 at noon to 0.25 in the evening instead of
an intensity (assumed, scenario `thesis-price`), which both policies then follow.

![CO2e against delay](selene.svg)
"""


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    seeds = range(1 if args.quick else args.seeds)
    delays = (0, 6) if args.quick else DELAYS_H
    carbon, price = (judged(series, seeds, delays) for series in (CARBON, PRICE))
    missed = max(carbon.missed, price.missed)
    others = {"helios": carbon.saved["helios"]}
    bars = [
        Bar("selene_6h_saving", carbon.saved["selene"], "% CO2e", None, others),
        Bar("selene_6h_money", price.saved["selene"], "%", None, {"helios": price.saved["helios"]}),
        Bar("misses", missed, "%", 1, {"pollux": carbon.pollux_missed}),
    ]
    if not args.quick:
        draw(args.docs, carbon.sums, carbon.bounds, carbon.base)
    text = TEXT.format(seeds=len(seeds))
    tables = [
        Table("CO2e against delay", [*HEAD[:2], "CO2e", *HEAD[2:]], carbon.rows),
        Table("Money against delay", [*HEAD[:2], "cost", *HEAD[2:]], price.rows),
    ]
    publish(Page("selene", "CO2e against delay", bars, tables, text, ("wattloop", "scipy")), args)
    return 0


HEAD = ["policy", "delay", "against Pollux", "bound", "mean JCT", "misses"]


class Judged(NamedTuple):
    """Sums, bounds and rows of one series, by policy and hours of delay."""

    base: float
    sums: Mapping[tuple[str, int], float]
    bounds: Mapping[tuple[str, int], float]
    rows: list[list[str]]
    saved: Mapping[str, float]
    missed: float
    pollux_missed: float


def judged(series: Series, seeds: Sequence[int], delays: Sequence[int]) -> Judged:
    """Run Pollux, Selene and Helios with each delay; find each delay's bound."""
    names = ("selene", "helios")
    cases = {(name, hours): case(series, name, hours) for name in names for hours in delays}
    pollux = Case("pollux", series.scenario, "", CHANGES)
    wanted = [pollux, *cases.values()]
    found = run_all(wanted, dict.fromkeys(wanted, seeds))
    bounds = {key: bound(series, seeds, key[1], caps=key[0] == "helios") for key in cases}
    base, unit = active(series, found, pollux), series.unit
    sums = {key: active(series, found, each) for key, each in cases.items()}
    rows = [["pollux", "", f"{base:.2f} {unit}", "+0.0%", "", f"{hours_of(found[pollux]):.2f} h",
             f"{miss_percent(found[pollux]):.1f}%"]]  # fmt: skip
    for key, each in cases.items():
        rows.append([
            key[0], f"{key[1]} h", f"{sums[key]:.2f} {unit}",
            f"{100 * (sums[key] / base - 1):+.1f}%", f"{100 * (bounds[key] / base - 1):+.1f}%",
            f"{hours_of(found[each]):.2f} h", f"{miss_percent(found[each]):.1f}%",
        ])  # fmt: skip
    saved = {name: 100 * (1 - sums[name, 6] / base) for name in names}
    missed = max(miss_percent(found[each]) for each in cases.values())
    return Judged(base, sums, bounds, rows, saved, missed, miss_percent(found[pollux]))


def case(series: Series, name: str, hours: int) -> Case:
    return Case(f"{name}{{delay: {hours} h}}", series.scenario, "", CHANGES)


def active(series: Series, found: Found, of: Case) -> float:
    """Return the sum of running jobs: all above a cluster that idles until the last job ends."""
    world = load_scenario(series.scenario, dict(CHANGES)).world(0)
    steps, total = getattr(world.settings, series.setting), 0.0
    for each in found[of]:
        end_s, at_s, idle = each.energy_kwh * 3.6e6 / each.mean_power_w, 0.0, 0.0
        while at_s < end_s:
            next_s = min(steps.next_change_s(at_s), end_s)
            idle += steps.at(at_s) * (next_s - at_s)
            at_s = next_s
        sum_ = getattr(each, series.metric)
        total += sum_ - world.cluster.idle_w * idle / 3.6e6 / series.per_unit
    return total / len(found[of])


def hours_of(metrics: Sequence[Any]) -> float:
    return mean(metrics, "jct_mean_s") / HOUR_S


def bound(series: Series, seeds: Sequence[int], hours: int, *, caps: bool) -> float:
    """Return the least sum above idle of all jobs, each delayed by so many hours at most."""
    scenario = load_scenario(series.scenario, dict(CHANGES))
    worlds = [scenario.world(seed) for seed in seeds]
    return float(np.mean([_least(series, world, hours, caps) for world in worlds]))


def _least(series: Series, world: World, hours: int, caps: bool) -> float:
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    jobs, cluster = world.jobs, world.cluster
    arrived = (jobs.arrival_s // HOUR_S).astype(int)
    # a job may begin within its last hour of delay, and runs for about one more
    slots = int(arrived.max()) + hours + 3
    steps = getattr(world.settings, series.setting)
    least = np.array([steps.least(h * HOUR_S, (h + 1) * HOUR_S - 1) for h in range(slots)])
    idle_w = np.array([each.idle_w for each in cluster.types])
    cost, entries, sums = [], [], []
    column = row = 0
    for kind, each in enumerate(jobs.kinds):
        options = world.truth.options(each)
        keep = np.ones(len(options), dtype=bool)
        if not caps:
            tdp_w = np.array([t.tdp_w for t in cluster.types])[options.type_index]
            keep = options.cap_w >= tdp_w - 1e-6
        above_w = options.power_w - idle_w[options.type_index] * options.gpus
        # the best of each type suffices: fewer GPUs never help a schedule that divides freely
        rows = [
            _frontier(np.flatnonzero(keep & (options.type_index == t)), options.sample_s * above_w,
                      options.sample_s * options.gpus)
            for t in range(len(cluster.types))
        ]  # fmt: skip
        for hour in np.unique(arrived[jobs.kind == kind]).tolist():
            work = float(jobs.work[(jobs.kind == kind) & (arrived == hour)].sum())
            for option in np.concatenate(rows).tolist():
                for slot in range(hour, hour + hours + 3):
                    time_s = float(options.sample_s[option]) * work
                    kwh = float(above_w[option]) * time_s / 3.6e6
                    cost.append(kwh * least[slot] / series.per_unit)
                    busy = float(options.gpus[option]) * time_s
                    entries.append((int(options.type_index[option]) * slots + slot, column, busy))
                    sums.append((row, column))
                    column += 1
            row += 1
    at, columns, values = (np.array(each) for each in zip(*entries, strict=True))
    limits = np.repeat(np.array(cluster.gpus_by_type) * HOUR_S, slots)
    whole = coo_array((np.ones(column), tuple(np.array(sums).T)), shape=(row, column))
    found = linprog(
        np.array(cost),
        A_ub=coo_array((values, (at, columns)), shape=(len(limits), column)).tocsr(),
        b_ub=limits,
        A_eq=whole.tocsr(),
        b_eq=np.ones(row),
    )
    if found.status != 0:
        raise RuntimeError(f"the bound was not found: {found.message}")
    return float(found.fun)


def _frontier(rows: Any, energy: Any, gpu_s: Any) -> Any:
    """Return undominated options: no other takes less of both energy and GPU seconds."""
    order = rows[np.lexsort((gpu_s[rows], energy[rows]))]
    kept, least = [], np.inf
    for option in order.tolist():
        if gpu_s[option] < least * (1 - 1e-9):
            kept.append(option)
            least = gpu_s[option]
    return np.array(kept, dtype=int)


def draw(folder: Any, kg: Mapping[Any, float], bounds: Mapping[Any, float], base: float) -> None:
    """Draw the figure of the page."""
    from wattloop.report.figures.render import save_one

    lines = {"selene": kg, "helios": kg, "bound without caps": bounds, "bound with caps": bounds}
    key = {"bound without caps": "selene", "bound with caps": "helios"}
    points = [
        {"delay": hours, "co2e": 100 * values[key.get(line, line), hours] / base, "policy": line}
        for line, values in lines.items()
        for hours in DELAYS_H
    ]
    chart = {
        "width": 560,
        "height": 320,
        "data": {"values": points},
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "delay", "type": "quantitative", "title": "longest delay, hours"},
            "y": {
                "field": "co2e",
                "type": "quantitative",
                "title": "CO2e of jobs, % of Pollux",
                "scale": {"zero": False},
            },
            "color": {"field": "policy", "type": "nominal", "title": None, "sort": list(lines)},
            "strokeDash": {
                "condition": {"test": "indexof(datum.policy, 'bound') == 0", "value": [5, 4]},
                "value": [1, 0],
            },
        },
    }
    save_one({"co2e": chart}, folder / "selene.svg", title="CO2e against delay")


if __name__ == "__main__":
    raise SystemExit(main())
