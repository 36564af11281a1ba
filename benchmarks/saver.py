"""Savings of the saver on virtual GPUs and on measured curves, and a check of its promises.

    python benchmarks/saver.py [--quick] [--json FILE] [--runs 200] [--jobs 1] [--resume FILE]

The measured curves are those of the Zeus library's artifact (NSDI 2023); the folder with
zeus_nsdi23/power_{v100,a40}.csv is named by WATTLOOP_SHARED_DATA. Every table of the same form in
that folder (power_*.csv) is used.
"""

import math
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bars import Bar, Page, Table, arguments, publish
from saver_worlds import MeasuredWorkload, Oracle, Training, Workload, random_workload
from wattloop.cap.evaluation import MeasuredCurve, read_curves
from wattloop.cap.finder import CapChoice, CapFinder
from wattloop.cap.online import OnlineCapFinder, OnlineRules, ProgressStep
from wattloop.cap.saver.proof import REFERENCE, SavingState, Setting
from wattloop.cap.saver.saver import Saver, SaverConfig

R = TypeVar("R")
ROOT = Path(__file__).resolve().parent.parent
LIMIT = 0.05
SLACK = 0.005
CLOSE = 0.02
LENGTHS_S = {"1 min": 60, "3 min": 180, "10 min": 600, "30 min": 1800, "2 h": 7200, "10 h": 36000}
SHORTEST_S, LONGEST_S = 1200.0, 7200.0
MATTERS = 0.01
"""Where even the best setting saves less than this, a ratio says nothing."""

TEXT = """
A random workload is a virtual card (H200, A100, V100 or A40), 1 to 8 GPUs whose chips differ by 3%
(the slowest decides), steps of 0.08 to 2 s made of one to three kinds of kernels at random places
of the roofline, in three of ten a large share of waiting for the host, and one to three phases of
different work. Every step's time and power have independent noise of 2%, and both drift by 1.5%
over minutes. In a quarter of the workloads batches differ in length by 15%, which the saver is not
told; half of them evaluate now and then for 2 to 40 s, and half of those do not say so. Settings
are up to 13 caps and 10 SM clocks. Time is simulated.

*Exhaustive* is the true best setting of every phase within the limit of {limit:.0f}%, from the
first step to the last, at no cost: more than a search can reach with one setting at a time. The
saver can exceed it, because it may use two neighbouring settings in turn and so come closer to
the limit. Slowdown is that of the whole run, evaluations included, against the same steps at the
reference. *Online finder* is `OnlineCapFinder`, caps only, made to choose within the same limit by
its own belief; *70% cap* is a fixed cap at 70% of the highest; *no cap* saves nothing.

The constants of the saver were chosen on other workloads of the same generator (about 200 of them,
with about ten configurations). Of the measured curves, those of these two GPUs were looked at for
two rules: a setting may exceed the limit by at most 0.5 points to spend what others have left, and
a setting between two that were read may be chosen.
"""


class Outcome(NamedTuple):
    """One run."""

    seed: int
    length_s: float
    oracle: float
    oracle_slowdown: float
    saved: float
    slowdown: float
    covered: bool | None
    slowdown_covered: bool | None
    half_width: float
    state: str
    pairs: int
    reference_share: float
    cpu_s: float
    fixed: tuple[float, float] = (0.0, 0.0)
    online: tuple[float, float] = (0.0, 0.0)

    @property
    def ratio(self) -> float | None:
        return self.saved / self.oracle if self.oracle >= MATTERS else None


def saver_run(
    workload: Workload, length_s: float, limit: float, seed: int, *, baselines: bool = False
) -> tuple[Outcome, Training]:
    """Run one workload with the saver, and the baselines next to it."""
    oracle, training = Oracle(workload, limit), Training(workload, length_s)
    saver = Saver(
        SaverConfig(max_slowdown=limit, seed=seed),
        training.set,
        training.energy,
        found=workload.found,
        caps_w=workload.caps_w,
        clocks_mhz=workload.clocks_mhz,
        devices=workload.devices,
    )
    begin_s = time.process_time()
    totals = training.run(saver.step, saver.interrupt, saver.tick)
    result = saver.end(training.now_s)
    cpu_s = time.process_time() - begin_s
    saved, slow = result.saved_pct, result.slowdown_pct
    best = oracle.saving()
    truth_slow = 100 * (totals.time_s / totals.reference_s - 1)
    outcome = Outcome(
        seed,
        length_s,
        *best,
        totals.saved,
        totals.slowdown,
        None if saved is None else saved.low <= 100 * totals.saved <= saved.high,
        None if slow is None else slow.low <= truth_slow <= slow.high,
        0.0 if saved is None else (saved.high - saved.low) / 2,
        result.state,
        result.pairs,
        result.reference_s / max(training.now_s, 1.0),
        cpu_s,
    )
    if baselines:
        at = 0.7 * workload.card.default_limit_w
        fixed = Setting(min(workload.caps_w, key=lambda cap: abs(cap - at)), None)
        outcome = outcome._replace(
            fixed=oracle.saving([fixed] * len(oracle.costs)),
            online=_online(workload, length_s, limit),
        )
    return outcome, training


class LimitedFinder(CapFinder):
    """The finder of `cap find`, which has no limit, choosing within one by its own model."""

    limit = LIMIT

    def best(self) -> CapChoice:
        found = super().best()
        belief = self.belief
        slow = (belief.log_time - belief.log_time[:, -1:]).mean(axis=0)
        energy = (belief.log_time + belief.log_power).mean(axis=0)
        energy = np.where(slow <= math.log1p(self.limit), energy, np.inf)
        return replace(found, cap_w=self.caps_w[int(np.argmin(energy))])


def _online(workload: Workload, length_s: float, limit: float) -> tuple[float, float]:
    training = Training(workload, length_s)
    highest_w = workload.found.cap_w
    assert highest_w is not None
    caps = [*workload.caps_w, highest_w]

    def make() -> CapFinder:
        finder = LimitedFinder(caps, "energy", devices=workload.devices)
        finder.limit = limit
        return finder

    def set_cap(cap_w: float | None) -> None:
        training.set(None if cap_w in (None, highest_w) else Setting(cap_w, None))

    pilot = OnlineCapFinder(make, set_cap, training.energy, OnlineRules())
    totals = training.run(
        lambda at_s: pilot.advance([ProgressStep(at_s)], at_s),
        lambda at_s: pilot.advance([ProgressStep(at_s, None)], at_s),
        lambda now_s: None,
    )
    return totals.saved, totals.slowdown


def _random_run(seed: int) -> Outcome:
    draw = np.random.default_rng([22, seed])
    length_s = math.exp(draw.uniform(math.log(SHORTEST_S), math.log(LONGEST_S)))
    return saver_run(random_workload(seed), length_s, LIMIT, seed, baselines=True)[0]


def _length_run(job: tuple[int, float]) -> Outcome:
    return saver_run(random_workload(job[0]), job[1], LIMIT, job[0])[0]


class TableOutcome(NamedTuple):
    """A measured curve: the second half of a run of an hour."""

    gpu: str
    limit: float
    regret: float
    """Energy of the settings as they were used, over the best within the limit."""
    slowdown: float
    main_regret: float
    main_slowdown: float
    """The same of the one setting that was used most."""


def _table_run(job: tuple[str, MeasuredCurve, float, int]) -> TableOutcome:
    gpu, curve, limit, seed = job
    workload = MeasuredWorkload.of(curve, seed)
    outcome, training = saver_run(workload, 3600.0, limit, seed)
    costs = training.oracle.costs[0]
    base = costs[REFERENCE]
    fits = [c.energy_j for c in costs.values() if c.time_s <= (1 + limit) * base.time_s + 1e-12]
    # Steps at each setting, reference slices left out unless it was chosen.
    late = training.late_spent()
    chosen = {s: x / costs[s].time_s for s, x in late.items() if s != REFERENCE}
    if sum(chosen.values()) < 0.5 * sum(x / costs[s].time_s for s, x in late.items()):
        chosen = {s: x / costs[s].time_s for s, x in late.items()}
    steps = sum(chosen.values())
    energy_j = sum(n * costs[s].energy_j for s, n in chosen.items()) / steps
    time_s = sum(n * costs[s].time_s for s, n in chosen.items()) / steps
    main = max(chosen, key=lambda s: chosen[s])
    del outcome
    return TableOutcome(
        gpu,
        limit,
        energy_j / min(fits) - 1,
        time_s / base.time_s - 1,
        costs[main].energy_j / min(fits) - 1,
        costs[main].time_s / base.time_s - 1,
    )


def main() -> int:
    parser = arguments("what the saver saves within a slowdown limit")
    parser.add_argument("--runs", type=int, default=200, help="random workloads")
    parser.add_argument("--first", type=int, default=1000, help="seed of the first workload")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--hours", type=float, default=10.0, help="longest run by length")
    parser.add_argument("--resume", type=Path, help="file of finished runs, to continue with")
    args = parser.parse_args()
    if args.quick:
        args.runs = 6
    with ProcessPoolExecutor(args.jobs) as pool:
        hours = 0.5 if args.quick else args.hours
        each = _Runner(pool, args.resume)
        page = _page(args.runs, args.first, hours, each, quick=args.quick)
    publish(page, args)
    return 0


class _Runner:
    """Runs in several processes, and finished ones from a file."""

    def __init__(self, pool: ProcessPoolExecutor, path: Path | None) -> None:
        self._pool, self._path = pool, path
        self._known: dict[str, bytes] = {}
        if path is not None and path.exists():
            rows = (line.split("\t") for line in path.read_text().splitlines())
            self._known = {key: bytes.fromhex(value) for key, value in rows}

    def __call__(self, name: str, function: Callable[[Any], R], jobs: Sequence[Any]) -> list[R]:
        keys = [f"{name} {job!r}" for job in jobs]
        waiting = {
            self._pool.submit(function, job): key
            for key, job in zip(keys, jobs, strict=True)
            if key not in self._known
        }
        for number, future in enumerate(as_completed(waiting), 1):
            self._known[waiting[future]] = pickle.dumps(future.result())
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(f"{waiting[future]}\t{self._known[waiting[future]].hex()}\n")
            if number % 10 == 0 or number == len(waiting):
                print(f"{name}: {number} of {len(waiting)}", file=sys.stderr, flush=True)
        return [pickle.loads(self._known[key]) for key in keys]


def _page(runs: int, first: int, hours: float, each: _Runner, *, quick: bool) -> Page:
    curves = _curves()
    rows = _zeus(curves, each, quick=quick)
    done = each("random workloads", _random_run, range(first, first + runs))
    bars = _bars(done)
    tables = [_random_table(done), _kinds(done), _lengths(first, hours, each, quick=quick)]
    if curves:
        bars += _zeus_bars(rows)
        tables.append(_zeus_table(rows))
    else:
        bars.append(Bar("zeus_within_2pct", None, "%", 95.0, at_least=True, note="no tables here"))
    return Page(
        "saver",
        "Least energy within a slowdown limit, while a program trains",
        bars,
        tables,
        TEXT.format(limit=100 * LIMIT),
        packages=("wattloop", "numpy"),
    )


def _kinds(done: Sequence[Outcome]) -> Table:
    """Tables of cases with smaller savings and with less certain intervals."""
    workloads = {o.seed: random_workload(o.seed) for o in done}
    kinds: dict[str, Callable[[Workload], bool]] = {
        "one phase": lambda w: len(w.phases) == 1,
        "two or three phases": lambda w: len(w.phases) > 1,
        "batches of one length": lambda w: not w.lengths,
        "batches that differ by 15%": lambda w: w.lengths > 0,
        "1 GPU": lambda w: w.devices == 1,
        "2 to 8 GPUs": lambda w: w.devices > 1,
        "a tenth of the time or more for the host": lambda w: any(
            m.host_s > 0.1 * (m.host_s + sum(s for s, _ in m.parts)) for _, m in w.phases
        ),
    }
    rows: list[list[object]] = []
    for name, belongs in kinds.items():
        own = [o for o in done if belongs(workloads[o.seed])]
        ratios = [o.ratio for o in own if o.ratio is not None]
        if not ratios:
            continue
        covered = [o.covered for o in own if o.covered is not None]
        rows.append(
            [
                name,
                len(own),
                f"{100 * fmean(o.saved for o in own):.1f}",
                f"{100 * median(ratios):.0f}",
                f"{_share([o.slowdown > LIMIT + SLACK for o in own]):.1f}",
                f"{_share(covered):.0f}",
            ]
        )
    header = (
        "workloads",
        "runs",
        "saved % (mean)",
        "of exhaustive % (median)",
        "over the limit %",
        "interval covers %",
    )
    return Table("Kinds of workloads", header, rows, "The same runs as above.")


def _share(values: Sequence[bool]) -> float:
    return 100 * sum(values) / max(len(values), 1)


def _bars(done: Sequence[Outcome]) -> list[Bar]:
    large = [o for o in done if o.ratio is not None]
    over = [o.slowdown > LIMIT + SLACK for o in done]
    covered = [o.covered for o in done if o.covered is not None]
    online = [o.online[0] / o.oracle for o in large]
    fixed = [o.fixed[0] / o.oracle for o in large]
    return [
        Bar(
            "saving_of_exhaustive",
            100 * median(o.ratio for o in large if o.ratio is not None),
            "%",
            90.0,
            {
                "online finder": 100 * median(online),
                "70% cap": 100 * median(fixed),
                "no cap": 0.0,
                "exhaustive": 100.0,
            },
            at_least=True,
            note="median",
        ),
        Bar(
            "runs_over_the_limit",
            _share(over),
            "%",
            5.0,
            {
                "online finder": _share([o.online[1] > LIMIT + SLACK for o in done]),
                "70% cap": _share([o.fixed[1] > LIMIT + SLACK for o in done]),
                "no cap": 0.0,
                "exhaustive": 0.0,
            },
            note="slower than the limit and 0.5 points",
        ),
        Bar("interval_covers_at_least", _share(covered), "%", 85.0, at_least=True),
        Bar("interval_covers_at_most", _share(covered), "%", 97.0),
        Bar(
            "slowdown_interval_covers",
            _share([o.slowdown_covered for o in done if o.slowdown_covered is not None]),
            "%",
        ),
        Bar("interval_half_width", median(o.half_width for o in done), "points", note="median"),
        Bar("reference_share", 100 * fmean(o.reference_share for o in done), "%", note="mean"),
        Bar(
            "cpu_of_a_run_hour",
            3600 * sum(o.cpu_s for o in done) / sum(o.length_s for o in done),
            "s",
            note="the simulation of the training included",
        ),
    ]


def _random_table(done: Sequence[Outcome]) -> Table:
    def row(name: str, points: Sequence[tuple[float, float]]) -> list[object]:
        saved, slow = [100 * p[0] for p in points], [100 * p[1] for p in points]
        over = _share([p[1] > LIMIT + SLACK for p in points])
        low, high = np.quantile(saved, (0.1, 0.9))
        return [
            name,
            f"{fmean(saved):.1f}",
            f"{median(saved):.1f}",
            f"{low:.1f} to {high:.1f}",
            f"{fmean(slow):.1f}",
            f"{max(slow):.1f}",
            f"{over:.1f}",
        ]

    rows = [
        row("saver", [(o.saved, o.slowdown) for o in done]),
        row("online finder", [o.online for o in done]),
        row("70% cap", [o.fixed for o in done]),
        row("no cap", [(0.0, 0.0) for _ in done]),
        row("exhaustive", [(o.oracle, o.oracle_slowdown) for o in done]),
    ]
    header = ("", "saved % (mean)", "median", "10 to 90%", "slowdown % (mean)", "largest", "over %")
    text = (
        f"{len(done)} workloads of {SHORTEST_S / 60:.0f} min to {LONGEST_S / 3600:.0f} h; "
        "GPU energy and time of the whole run."
    )
    return Table("Random workloads", header, rows, text)


def _lengths(first: int, hours: float, each: _Runner, *, quick: bool) -> Table:
    count = 2 if quick else 12
    rows: list[list[object]] = []
    for name, length_s in LENGTHS_S.items():
        if length_s > 3600 * hours:
            break
        number = max(count // 3, 1) if length_s > 10_000 else count
        jobs = [(first + 5000 + i, float(length_s)) for i in range(number)]
        done = each(f"runs of {name}", _length_run, jobs)
        ratios = [o.ratio for o in done if o.ratio is not None]
        rows.append(
            [
                name,
                len(done),
                sum(o.state == SavingState.LEFT for o in done),
                f"{100 * fmean(o.saved for o in done):.1f}",
                f"{100 * fmean(o.oracle for o in done):.1f}",
                f"{100 * median(ratios):.0f}",
                f"{100 * min(o.saved for o in done):.1f}",
                f"{100 * max(o.slowdown for o in done):.1f}",
            ]
        )
    header = (
        "length",
        "runs",
        "left alone",
        "saved % (mean)",
        "exhaustive %",
        "of exhaustive % (median)",
        "least saved %",
        "largest slowdown %",
    )
    text = "A negative least saving is what a run lost by being probed."
    return Table("Short and long runs", header, rows, text)


def _curves() -> dict[str, list[MeasuredCurve]]:
    folder = Path(os.environ.get("WATTLOOP_SHARED_DATA") or ROOT.parent / "shared" / "data")
    files = sorted((folder / "zeus_nsdi23").glob("power_*.csv"))
    return {
        path.stem.removeprefix("power_"): [c for c in read_curves(path) if c.responsive]
        for path in files
    }


def _zeus(
    curves: dict[str, list[MeasuredCurve]], each: _Runner, *, quick: bool
) -> list[TableOutcome]:
    jobs = [
        (gpu, curve, limit, seed)
        for limit in ((0.05,) if quick else (0.02, 0.05, 0.10))
        for gpu, found in curves.items()
        for seed, curve in enumerate(found[:2] if quick else found)
    ]
    return each("measured curves", _table_run, jobs)


def _right(outcome: TableOutcome) -> bool:
    return outcome.regret <= CLOSE and outcome.slowdown <= outcome.limit + SLACK


def _zeus_bars(done: Sequence[TableOutcome]) -> list[Bar]:
    return [
        Bar(
            f"zeus_within_2pct_limit{100 * limit:g}",
            _share([_right(o) for o in done if o.limit == limit]),
            "%",
            95.0,
            at_least=True,
        )
        for limit in sorted({o.limit for o in done})
    ]


def _zeus_table(done: Sequence[TableOutcome]) -> Table:
    rows = []
    for limit in sorted({o.limit for o in done}):
        for gpu in sorted({o.gpu for o in done}):
            own = [o for o in done if (o.gpu, o.limit) == (gpu, limit)]
            main = [o.main_regret <= CLOSE and o.main_slowdown <= limit + SLACK for o in own]
            rows.append(
                [
                    gpu,
                    f"{100 * limit:g}%",
                    len(own),
                    f"{_share([_right(o) for o in own]):.0f}",
                    f"{_share([o.regret <= CLOSE for o in own]):.0f}",
                    f"{_share([o.slowdown <= limit + SLACK for o in own]):.0f}",
                    f"{100 * max(o.regret for o in own):.1f}",
                    f"{100 * max(o.slowdown for o in own):.1f}",
                    f"{_share(main):.0f}",
                ]
            )
    header = (
        "GPU",
        "limit",
        "curves",
        "right %",
        "energy within 2%",
        "within the limit",
        "largest regret %",
        "largest slowdown %",
        "main cap alone right %",
    )
    text = (
        "Responsive curves of Zeus's artifact as trainings of an hour with steps of 0.3 s and the "
        "noise and drift above; the second half is judged. Right: energy per step of the caps, as "
        "they were used, within 2% of the best cap within the limit, and time within the limit and "
        "0.5 points. *Main cap alone*: the same of the one cap that was used most; where two caps "
        "take turns it may itself be over the limit."
    )
    return Table("Measured curves", header, rows, text)


if __name__ == "__main__":
    sys.exit(main())
