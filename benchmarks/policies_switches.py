"""Helios with its switches, next to Pollux with the same, and the bound of each.

    python benchmarks/policies_switches.py [--seeds 50] [--quick] [--keep FILE [--minutes N]]

The thesis's scenario on GPUs that can sleep (`thesis-sleep`). Nothing was chosen on these seeds.
"""

from collections.abc import Sequence

from bars import Bar, Page, Table, arguments, publish
from policies_energy_bound import least_kwh
from policies_runs import Case, Found, mean, miss_percent, pieces, run_all
from policies_yardstick import Yardstick, yardstick
from wattloop.schedule.scenarios.file import load_scenario

RATES = (0.001, 0.002, 0.003, 0.005)
PLAIN, ASLEEP = "pollux", "pollux{sleep: true}"
SLEEP, RESIZE = "helios{sleep: true}", "helios{resize: true, sleep: true}"
POLICIES = (PLAIN, ASLEEP, "helios", SLEEP, RESIZE)
ASKED = {0.001: 25.0, 0.002: 25.0, 0.003: 25.0, 0.005: 15.0}
ELASTIC = {"keeps": "nothing", "resize": "30 s"}
TEXT = """
The thesis's cluster (8 A100, 8 H100) for 10 hours, {seeds} seeds, estimates off by up to 10%, on
the cluster `thesis-sleep`: an idle GPU sleeps at 5 W after 15 s, and a job waits 10 s for it to
wake. **These states are assumed**: no maker publishes them for such boards
([cluster files](../clusters.md#power-down-states)). Savings are against Pollux on GPUs that never
sleep. `pollux{{sleep: true}}` shows the part that sleeping has alone; the rest is Helios'.
`resize: true` may also move running jobs, for 30 s each. Least possible: the linear program of
`benchmarks/policies_energy_bound.py`, with jobs that wait for ever, divide freely and wake GPUs at
once. Helios' settings were chosen on seeds from 1000 on.

**What an online policy could reach.** The linear program knows all arrivals, and its jobs flow like
water. The last table has a policy that does not: value iteration over the jobs on both nodes and
the waiting ones (`benchmarks/policies_yardstick.py`), for the least energy at a mean completion
time of at most {longer:.0f}% over Pollux's. It has it easier than Helios: exact estimates, no
deadlines, a known rate of arrivals. Each row adds a freedom: caps and the choice of node; moves of
running jobs between the nodes for 30 s each, as `resize: true` has them; moves that take a second.
"""
LONGER = 15.0
PRICES_W = {0.003: (700.0, 500.0, 350.0, 250.0, 170.0), 0.005: (250.0, 170.0, 120.0)}
"""Rate -> prices of a second of a job, from the fastest policy to the thriftiest."""
FIRST = "caps and nodes"
FREEDOMS = {FIRST: None, "moves for 30 s": 30.0, "moves for 1 s": 1.0}


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=50)
    args = pieces(parser)
    seeds = range(2 if args.quick else args.seeds)
    cases = {(name, rate): case(name, rate) for name in POLICIES for rate in RATES}
    found = run_all(list(cases.values()), dict.fromkeys(cases.values(), seeds), kept=args.pieces)
    tables = [by_rate(found, cases, seeds)]
    if not args.quick:
        tables.append(by_freedom(found, cases, seeds))
    bars = bars_of(found, cases, tables)
    text = TEXT.format(seeds=len(seeds), longer=LONGER)
    title = "Helios' switches: sleep and resize"
    publish(Page("policies_switches", title, bars, tables, text, ("wattloop", "scipy")), args)
    return 0


def case(policy: str, rate: float) -> Case:
    changes = {"jobs.generate.rate_per_s": rate}
    if "resize" in policy:
        changes |= {f"engine.preemption.{key}": value for key, value in ELASTIC.items()}
    return Case(policy, "thesis-sleep", "", tuple(sorted(changes.items())))


def bars_of(
    found: Found, cases: dict[tuple[str, float], Case], tables: Sequence[Table]
) -> list[Bar]:
    bars, rows = [], [row for table in tables for row in table.rows]
    for rate in RATES:
        base, ours = found[cases[PLAIN, rate]], found[cases[SLEEP, rate]]
        saved = {
            name: 100
            * (1 - mean(found[cases[name, rate]], "energy_kwh") / mean(base, "energy_kwh"))
            for name in (SLEEP, ASLEEP, "helios")
        }
        longer = 100 * (mean(ours, "jct_mean_s") / mean(base, "jct_mean_s") - 1)
        others = {"pollux asleep": saved[ASLEEP], "helios awake": saved["helios"]}
        # what nothing beats, and what the online yardstick has without moves
        limits = [row[row.index(name) + at] for row in rows if row[0] == f"{rate:g}"
                  for name, at in (("least possible, asleep", 3), (f"yardstick: {FIRST}", 1))
                  if name in row]  # fmt: skip
        note = f"least possible {limits[0]}" + "".join(
            f"; the yardstick, which knows true times and the rate: {each}" for each in limits[1:]
        )
        bars += [
            Bar(
                f"saving_{rate:g}",
                saved[SLEEP],
                "%",
                ASKED[rate],
                others,
                at_least=True,
                note=note if saved[SLEEP] < ASKED[rate] else "",
            ),
            Bar(f"jct_{rate:g}", longer, "% longer", 15),
            Bar(f"misses_{rate:g}", miss_percent(ours), "%", 1, {"pollux": miss_percent(base)}),
        ]
    return bars


def by_rate(found: Found, cases: dict[tuple[str, float], Case], seeds: Sequence[int]) -> Table:
    rows = []
    for rate in RATES:
        base = found[cases[PLAIN, rate]]
        for name in POLICIES:
            ours = found[cases[name, rate]]
            energy, jct = mean(ours, "energy_kwh"), mean(ours, "jct_mean_s")
            rows.append([
                f"{rate:g}", name, f"{mean(ours, 'throughput_per_h'):.2f}", f"{energy:.1f} kWh",
                f"{100 * (energy / mean(base, 'energy_kwh') - 1):+.1f}%",
                f"{mean(ours, 'idle_kwh'):.2f} kWh", f"{jct:.0f} s",
                f"{100 * (jct / mean(base, 'jct_mean_s') - 1):+.1f}%",
                f"{miss_percent(ours):.1f}%", f"{mean(ours, 'resizes'):.1f}",
            ])  # fmt: skip
        for label, sleeps in (("least possible, awake", False), ("least possible, asleep", True)):
            kwh = least(found[cases[PLAIN, rate]], cases[PLAIN, rate], seeds, sleeps=sleeps)
            share = f"{100 * (kwh / mean(base, 'energy_kwh') - 1):+.1f}%"
            rows.append([f"{rate:g}", label, "", f"{kwh:.1f} kWh", share, "", "", "", "", ""])
    head = ["rate", "policy", "jobs/h", "energy", "against Pollux", "idle", "mean JCT", "longer",
            "misses", "resizes"]  # fmt: skip
    return Table("Sleeping and resizing", head, rows)


def by_freedom(found: Found, cases: dict[tuple[str, float], Case], seeds: Sequence[int]) -> Table:
    """Table of the yardstick at the longest allowed completion time, and Helios."""
    rows = []
    for rate, prices_w in PRICES_W.items():
        base = found[cases[PLAIN, rate]]
        base_kwh, base_s = mean(base, "energy_kwh"), mean(base, "jct_mean_s")
        ours = found[cases[SLEEP, rate]]
        rows.append([
            f"{rate:g}", SLEEP, f"{100 * (mean(ours, 'energy_kwh') / base_kwh - 1):+.1f}%",
            f"{100 * (mean(ours, 'jct_mean_s') / base_s - 1):+.1f}%", "",
        ])  # fmt: skip
        for name, move_s in FREEDOMS.items():
            points = list[Yardstick]()
            for second_w in prices_w:
                points.append(yardstick(rate, second_w, seeds, move_s))
                if points[-1].jct_mean_s > (1 + LONGER / 100) * base_s:
                    break
            kwh, jct_s, moves = _at(points, (1 + LONGER / 100) * base_s)
            rows.append([
                f"{rate:g}", f"yardstick: {name}", f"{100 * (kwh / base_kwh - 1):+.1f}%",
                f"{100 * (jct_s / base_s - 1):+.1f}%", f"{moves:.0f}",
            ])  # fmt: skip
    head = ["rate", "policy", "energy against Pollux", "mean JCT", "moves"]
    return Table("What an online policy could reach", head, rows)


def _at(points: Sequence[Yardstick], jct_s: float) -> tuple[float, float, float]:
    """Return energy, completion time and moves on the line through the last two points."""
    if len(points) < 2 or points[-1].jct_mean_s <= jct_s:
        return points[-1].energy_kwh, points[-1].jct_mean_s, points[-1].moves
    fast, slow = points[-2:]
    part = (jct_s - fast.jct_mean_s) / (slow.jct_mean_s - fast.jct_mean_s)
    energy = fast.energy_kwh + part * (slow.energy_kwh - fast.energy_kwh)
    return energy, jct_s, fast.moves + part * (slow.moves - fast.moves)


def least(pollux: Sequence[object], of: Case, seeds: Sequence[int], *, sleeps: bool) -> float:
    """Return the least energy for as many jobs as Pollux finished, mean over seeds."""
    scenario, total = load_scenario(of.scenario, dict(of.changes)), 0.0
    for metrics, seed in zip(pollux, seeds, strict=True):
        world = scenario.world(seed)
        share = metrics.jobs_done / max(metrics.jobs, 1)  # type: ignore[attr-defined]
        parts = (world.jobs, share, world.cluster, world.truth, world.settings.horizon_s)
        total += least_kwh(*parts, sleeps=sleeps)
    return total / len(seeds)


if __name__ == "__main__":
    raise SystemExit(main())
