"""Cost and result of searches on measured tables: race, grid, random, Zeus and SM2.

    python benchmarks/tune_replay.py [--quick] [--json FILE]

The tables are those of the Zeus library's artifact (NSDI 2023); the folder with zeus_nsdi23 is
named by WATTLOOP_SHARED_DATA. Takes about six minutes of one core.
"""

import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from bars import Bar, Page, Table, arguments, publish
from tune_synthetic import synthetic_workloads
from tune_traces import cap_reuse, rank_agreement
from wattloop.tune.replay.executor import CapScripts
from wattloop.tune.replay.recurring_jobs import RacePolicy, replay_problem
from wattloop.tune.replay.replay import ReplayEntry, medians, replay
from wattloop.tune.replay.tables import RecordedWorkload, read_workloads
from wattloop.tune.strategies.race.race import Race

ROOT = Path(__file__).resolve().parent.parent
FILES = ("power_v100.csv", "power_a40.csv", "train.csv", "problems.csv")
BASELINES = ("zeus", "sm2", "asha", "grid", "random", "default-cap")
NOISES_PCT = (0, 2, 5)
LIMITS = {
    "one_shot_d": 1.2,
    "explore_d": 0.5,
    "within_5pct_share": 0.9,
    "failures": 0.0,
    "cum20_over_oracle": 1.16,
    "cum50_over_oracle": 1.07,
}
UNITS = {"one_shot_d": "D", "explore_d": "D"}
CHOICES = [(runs, budget) for runs in (3.0, 6.0, 10.0) for budget in (0.5, 1.0)]
REUSED = 10
"""Runs of a job by which constants are chosen."""
FEW_SEEDS = 6
"""Where every batch size is the default once: there are seven times as many problems."""

TEXT = """
Eight problems: four workloads on two GPUs, each with its published target, limit and default batch
size. Every strategy is run {seeds} times on each by `wattloop tune replay`; a training is one of
those recorded, drawn by chance, and its energy is that of the table at its cap. D is one training
with the default batch size at the highest cap; the oracle knows the batch size and cap with the
least mean energy. Everything is counted: windows, probes of caps, trainings given up. Bars are of
medians over the problems; `failures` is the sum, `within_5pct_share` of all problems and seeds.

`zeus` is the published policy, re-implemented (exploration with pruning in two rounds, Thompson
sampling, every limit profiled for 5 s, cost = energy, stop at twice the least cost); it explores
over many runs, so its first run is the default's. `sm2` has only its batch-size half here. `asha`
is plain halving with joules as the resource. `grid` tries every batch size and cap, `random` 20 of
them. `default-cap` keeps the default batch size and finds its cap.

`worst_final_over_default_cap` and `worst_cum50_over_default_cap` are the worst problem's energy of
`race` over that of `default-cap`: of its choice, and of 50 runs with the search included. The
first run alone costs more than `default-cap` wherever there is nothing to be found (imagenet): that
is the price of looking.

How the constants were chosen. The form of the beliefs (smoothness over two doublings, errors of
comparisons, how quality slows down) was set by reasoning and on {synthetic} synthetic workloads
(`benchmarks/tune_synthetic.py`), while these tables were looked at, too: about 70 settings in all,
between which results here differ little (one shot 0.85 to 1.3 D on average, most of it imagenet).

The two options that matter, `runs` and `budget`, are chosen again below for each problem without
its GPU and without its workload. Four workloads with one default each are few, and where the
default lies decides how hard a search is: so every batch size that reaches the target is taken for
the default once. That showed why a first search missed the best by more than 5% on GPUs that it had
not seen. Most searches that missed had spent their `budget`, which was half of D: where the default
is near the best, the others cost as much per rung as they can save, and that budget ended before
early curves could tell neighbours apart. It is a whole D now. `left_out_*` is the share within 5%
over the problems of a GPU, with options that were chosen without it and without the workload, by
that share. Chosen by the least energy over ten runs instead, half of them kept half a D, and the
share from any default was 0.97 on v100 and 0.89 on a40. Tables of other workloads and GPUs are the
real test.
"""


def main() -> int:
    parser = arguments("what searches cost and find on measured tables")
    args = parser.parse_args()
    folder = Path(os.environ.get("WATTLOOP_SHARED_DATA") or ROOT.parent / "shared" / "data")
    paths = [folder / "zeus_nsdi23" / name for name in FILES]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        print(
            f"{', '.join(missing)} is not there; name the folder that holds zeus_nsdi23 with "
            "WATTLOOP_SHARED_DATA",
            file=sys.stderr,
        )
        return 2
    workloads, _ = read_workloads(paths[:2], paths[2], paths[3])
    publish(_page(workloads, quick=args.quick), args)
    return 0


def _page(workloads: Sequence[RecordedWorkload], *, quick: bool) -> Page:
    seeds = 2 if quick else 20
    scripts = {noise: CapScripts(noise / 100) for noise in NOISES_PCT}
    began = time.process_time()
    found = {
        noise: [replay(w, "race", seeds=seeds, scripts=scripts[noise]) for w in workloads]
        for noise in NOISES_PCT
    }
    race_s = (time.process_time() - began) / len(NOISES_PCT)
    names = ("zeus", "default-cap") if quick else BASELINES
    others = {
        name: [replay(w, name, seeds=seeds, scripts=scripts[0]) for w in workloads]
        for name in names
    }
    bars = _bars(found[0], others, "")
    bars += [_against(found[0], others["default-cap"], "final_over_oracle", "final")]
    bars += [_against(found[0], others["default-cap"], "cum50_over_oracle", "cum50")]
    for noise in NOISES_PCT[1:]:
        bars += _bars(found[noise], {}, f"_noise{noise}")
    bars.append(Bar("replay_cpu", race_s, "s", 60.0))
    tables = [_problems(found[0]), _strategies({"race": found[0], **others})]
    tables += [_lessons(workloads)]
    if not quick:
        table, left_out = _left_out(workloads, scripts[0], seeds)
        tables.insert(1, table)
        bars[-1:-1] = left_out
        tables.append(_synthetic(scripts[0]))
    text = TEXT.format(seeds=seeds, synthetic=40)
    return Page(
        "tune_replay",
        "What a search costs and finds",
        bars,
        tables,
        text,
        packages=("wattloop", "numpy"),
        details={"problems": [entry.to_dict() for entry in found[0]]},
    )


def _bars(
    entries: Sequence[ReplayEntry], others: dict[str, list[ReplayEntry]], suffix: str
) -> list[Bar]:
    ours = _figures(entries)
    theirs = {name: _figures(found) for name, found in others.items()}
    return [
        Bar(
            f"{name}{suffix}",
            ours[name],
            UNITS.get(name, ""),
            limit,
            {peer: figures[name] for peer, figures in theirs.items()},
            at_least=name == "within_5pct_share",
        )
        for name, limit in LIMITS.items()
    ]


def _figures(entries: Sequence[ReplayEntry]) -> dict[str, float | None]:
    """Return medians, all failures, and the share over all problems and seeds."""
    return {
        **medians(entries),
        "failures": float(sum(entry.failures for entry in entries)),
        "within_5pct_share": fmean(entry.within_5pct_share for entry in entries),
    }


def _against(
    ours: Sequence[ReplayEntry], theirs: Sequence[ReplayEntry], name: str, short: str
) -> Bar:
    ratios = [getattr(a, name) / getattr(b, name) for a, b in zip(ours, theirs, strict=True)]
    return Bar(f"worst_{short}_over_default_cap", max(ratios), "", 1.05)


def _problems(entries: Sequence[ReplayEntry]) -> Table:
    names = ("explore_d", "one_shot_d", "final_over_oracle", *list(LIMITS)[2:])
    return Table(
        "race, problem by problem",
        ["problem", "GPU", "oracle, D", *names],
        [
            [
                f"{e.dataset}/{e.network}",
                e.gpu,
                e.oracle_energy_j / e.default_energy_j,
                *(getattr(e, name) for name in names),
            ]
            for e in entries
        ],
    )


def _strategies(found: dict[str, list[ReplayEntry]]) -> Table:
    names = ("one_shot_d", "final_over_oracle", "close_d", "cum20_over_oracle")
    rows = []
    for name, entries in found.items():
        values = medians(entries)
        rows.append([name, *(values[figure] for figure in names)])
    return Table(
        "Strategies, medians",
        ["strategy", *names],
        rows,
        "`close_d` is spent until the choice is within 5% of the oracle, where it ever is.",
    )


def _left_out(
    workloads: Sequence[RecordedWorkload], scripts: CapScripts, seeds: int
) -> tuple[Table, list[Bar]]:
    """Return for each problem `runs` and `budget` as chosen on the other GPU and workloads."""
    anyhow = [(w, _every_default(w)) for w in workloads]
    tried = {
        choice: [
            (
                _raced(w, choice, scripts, seeds),
                [_raced(v, choice, scripts, FEW_SEEDS) for v in each],
            )
            for w, each in anyhow
        ]
        for choice in CHOICES
    }

    def promise(choice: tuple[float, float], left: RecordedWorkload) -> tuple[float, float]:
        """Return the share within 5% (more is better), then the energy (less is better)."""
        others = [
            entry
            for w, (_, entries) in zip(workloads, tried[choice], strict=True)
            if w.gpu != left.gpu and w.dataset != left.dataset
            for entry in entries
        ]
        share = fmean(entry.within_5pct_share for entry in others)
        return -share, fmean(_over_runs(entry) for entry in others)

    rows: list[list[object]] = []
    shares: dict[str, list[float]] = {}
    every: dict[str, list[float]] = {}
    for place, workload in enumerate(workloads):
        choice = min(CHOICES, key=lambda one: promise(one, workload))
        entry, entries = tried[choice][place]
        shares.setdefault(workload.gpu, []).append(entry.within_5pct_share)
        every.setdefault(workload.gpu, []).extend(e.within_5pct_share for e in entries)
        share = fmean(e.within_5pct_share for e in entries)
        rows.append([workload.name, *choice, *_row(entry), len(entries), share])
    table = Table(
        "race with options chosen without the GPU and without the workload",
        [
            *("problem", "runs", "budget", "one_shot_d", "explore_d", "final_over_oracle"),
            *("within 5%", "defaults", "within 5%, any default"),
        ],
        rows,
        "The choice is the one with the highest share within 5% on the other GPU and the other "
        "workloads, each batch size the default once; of equals the one with the least energy over "
        f"{REUSED} runs, the search included.",
    )
    bars = [
        Bar(f"left_out_{name}{gpu}", fmean(values[gpu]), "", 0.9, {}, at_least=True)
        for gpu in shares
        for name, values in (("", shares), ("any_default_", every))
    ]
    return table, bars


def _every_default(workload: RecordedWorkload) -> list[RecordedWorkload]:
    """Return the same problem from each batch size that reaches the target."""
    return [
        replace(workload, default=size)
        for size in workload.batch_sizes
        if math.isfinite(workload.epochs(size))
    ]


def _raced(
    workload: RecordedWorkload, choice: tuple[float, float], scripts: CapScripts, seeds: int
) -> ReplayEntry:
    runs, budget = choice

    def make(workload: RecordedWorkload, seed: int) -> RacePolicy:
        problem = replay_problem(workload, seed)
        return RacePolicy(lambda memory: Race(problem, runs=runs, budget=budget, memory=memory))

    return replay(workload, "race", seeds=seeds, recurrences=1, scripts=scripts, make=make)


def _over_runs(entry: ReplayEntry) -> float:
    assert entry.final_over_oracle is not None
    first = entry.one_shot_d * entry.default_energy_j / entry.oracle_energy_j
    return (first + (REUSED - 1) * entry.final_over_oracle) / REUSED


def _row(entry: ReplayEntry) -> list[object]:
    return [entry.one_shot_d, entry.explore_d, entry.final_over_oracle, entry.within_5pct_share]


def _row_of(entries: Sequence[ReplayEntry]) -> list[object]:
    return [median(column) for column in zip(*(_row(e) for e in entries), strict=True)]


def _synthetic(scripts: CapScripts) -> Table:
    """Run the default options on another draw of synthetic workloads, unused so far."""
    rows = []
    for name in ("race", "zeus", "default-cap"):
        entries = [
            replay(w, name, seeds=2, recurrences=20, scripts=scripts)
            for w in synthetic_workloads(40, seed=2)
        ]
        rows.append([name, *_row_of(entries), median(e.cum20_over_oracle or 0 for e in entries)])
    return Table(
        "Forty synthetic workloads of another draw, medians",
        ["strategy", "one_shot_d", "explore_d", "final_over_oracle", "within 5%", "cum20"],
        rows,
    )


def _lessons(workloads: Sequence[RecordedWorkload]) -> Table:
    shares = (0.1, 0.25, 0.5)
    rows = []
    for workload in workloads:
        agreements = [rank_agreement(workload, share) for share in shares]
        rows.append([workload.name, *(v for pair in agreements for v in pair), cap_reuse(workload)])
    columns = list(zip(*(row[1:] for row in rows), strict=True))
    rows.append(["median", *(median(column) for column in columns)])
    header = [f"{by}, {share:.0%}" for share in shares for by in ("epochs", "joules")]
    return Table(
        "What the tables teach",
        ["problem", *header, "cap of another"],
        rows,
        "Spearman's coefficient between energy to the target and quality after equal epochs and "
        "after equal joules, 10, 25 and 50% of what the default takes, over batch sizes; and the "
        "most energy lost by taking the best cap of one batch size for another.",
    )


if __name__ == "__main__":
    sys.exit(main())
