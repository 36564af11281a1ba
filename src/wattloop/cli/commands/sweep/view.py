"""Terminal output and figures of sweeps."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from wattloop.cli.output import print_table, say
from wattloop.cli.progress import trial_columns, updated_row
from wattloop.core.errors import ConfigError, RunNotFound
from wattloop.core.files import user_path
from wattloop.core.table import Table
from wattloop.core.units import format_duration, short_energy
from wattloop.core.yaml_spec import nearest
from wattloop.report.figures.render import needs_libraries, save
from wattloop.report.figures.run import power_figure
from wattloop.report.figures.sweep import energy_source, sweep_figures, technique_figures
from wattloop.report.sweep import (
    best_table,
    cost_header,
    gain_text,
    kinds_of,
    points_table,
    setting_text,
    title_of,
    with_interval,
    with_sd,
)
from wattloop.store.database import Store
from wattloop.store.runs import RunRecord, find_run
from wattloop.sweep import tables
from wattloop.sweep.plan import SweepPlan, SweepPoint
from wattloop.sweep.result import EDP, SweepGroup, SweepResult, gpu_count
from wattloop.sweep.runner import SweepListener, SweepProgress
from wattloop.trials.trial import SCOPES, Trial, TrialOutcome


def print_techniques(results: Sequence[SweepResult]) -> None:
    rows = tables.technique_rows(results)
    known = list(dict.fromkeys(row["technique"] for row in rows))
    headers = ["workload", "library"]
    for technique in known:
        headers += [f"{technique}: EDP", "time", "setting"]
    lines: dict[tuple[str, str], dict[str, tuple[str, str, str]]] = {}
    for row in rows:
        name = ", ".join(filter(None, (row["workload"], gpu_count(row["gpus"]))))
        cells = (f"{row['edp_pct']:+.1f}%", f"{row['time_pct']:+.1f}%", row["setting"])
        key = (name, row["library"])
        lines.setdefault(key, {})[row["technique"]] = cells
    _print(
        headers,
        [
            (*key, *(cell for t in known for cell in cells.get(t, ("-", "-", "-"))))
            for key, cells in lines.items()
        ],
        title=f"Best EDP gain with its time ({kinds_of(results)}); time + is longer",
    )


def print_powers(results: Sequence[SweepResult]) -> None:
    rows = tables.power_rows(results)
    pairs = dict.fromkeys((row["main"], row["second"]) for row in rows)
    for number, (main, second) in enumerate(pairs):
        if number:
            sys.stdout.write("\n")
        _print_powers([r for r in rows if (r["main"], r["second"]) == (main, second)], main, second)


def _print_powers(rows: Sequence[dict[str, Any]], main: str, second: str | None) -> None:
    fields = dict.fromkeys(t for row in rows for t in row if isinstance(row[t], dict))
    known = [t for t in fields if t != "kinds"]
    parts = [("main", main.upper()), *([("second", second.upper())] if second else [])]
    kinds = dict.fromkeys(f"{s.upper()} {kind}" for r in rows for s, kind in r["kinds"].items())
    _print(
        ["workload", "library", *(f"{t} {label} (W)" for t in known for _, label in parts)],
        [
            (
                ", ".join(filter(None, (row["workload"], gpu_count(row["gpus"])))),
                row["library"],
                *(with_sd(row.get(t, {}).get(part)) for t in known for part, _ in parts),
            )
            for row in rows
        ],
        title=f"Average power at the default and at the lowest EDP, ± standard deviation "
        f"({', '.join(kinds)})",
    )


def print_scaling(results: Sequence[SweepResult]) -> None:
    for result in results:
        price = result.price
        _print(
            (
                *("workload", "setting", "GPUs", "time (s)", "energy (J)", "speed-up"),
                *(() if price is None else (cost_header(price),)),
            ),
            [
                (
                    " ".join(filter(None, (row["workload"], row["library"]))),
                    setting_text(row),
                    str(row["gpus"]),
                    with_interval(row["time_s"]),
                    with_interval(row["energy_j"]),
                    f"{row['speed_up']:.2f}",
                    *(() if price is None else (with_interval(row["gpu_cost"]),)),
                )
                for row in tables.scaling_rows(result)
            ],
            title=f"{title_of(result)}: time against the number of GPUs",
        )


def print_synthesis(results: Sequence[SweepResult]) -> None:
    _print(
        ("platform", "library", "technique", "mean best EDP gain", "workloads"),
        [
            (
                row["platform"],
                row["library"],
                row["technique"],
                f"{row['edp_pct']:+.1f}%",
                str(row["workloads"]),
            )
            for row in tables.synthesis_rows(results)
        ],
        title=f"Best EDP gain per technique, mean over workloads ({kinds_of(results)})",
    )


def _print(headers: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    print_table(Table.of(headers, rows, title).without_empty())


def draw(results: Sequence[SweepResult], store: "Store", folder: str) -> None:
    needs_libraries()
    charts: dict[str, Any] = {}
    for number, result in enumerate(results):
        prefix = f"{number + 1}-" if len(results) > 1 else ""
        own = sweep_figures(result)
        power = _power_over_time(result, store)
        own |= {} if power is None else {"power-over-time": power}
        charts |= {f"{prefix}{name}": chart for name, chart in own.items()}
    charts |= technique_figures(results)
    if not charts:
        say("wattloop: nothing to draw: only the default was measured")
        return
    names = [r.experiment.name or r.experiment.experiment_id for r in results]
    notes = [
        f"{r.experiment.experiment_id}: {energy_source(r)}; host "
        f"{r.experiment.facts.get('host', 'unknown')}"
        for r in results
    ]
    written = save(charts, user_path(folder), title=", ".join(names), notes=notes)
    say(f"wattloop: {len(charts)} figures in {folder}: see {written[-1]}")


def _power_over_time(result: SweepResult, store: "Store") -> Any:
    """Draw a typical run at the default and at the lowest EDP, with most GPUs."""
    if not result.groups or result.scope is None:
        return None
    group = max(result.groups, key=lambda g: g.key[2] or 0)
    scope = result.scope if _is_read(group, result.scope) else "gpu"
    best = group.best(EDP)
    wanted = (
        {} if group.reference is None else {f"{group.reference.label} (default)": group.reference}
    )
    if best is not None and not best[0].is_default:
        wanted[f"{best[0].label} (lowest EDP)"] = best[0]
    runs: dict[str, RunRecord] = {}
    for label, point in wanted.items():
        try:
            runs[label] = find_run(store, point.run_id or "none")
        except RunNotFound:
            continue
    return power_figure(store, runs, scope, _tdp_w(group, scope)) if runs else None


def _is_read(group: SweepGroup, scope: str) -> bool:
    used = [o for p in group.points for o in p.repeated.used]
    return any(scope in o.scopes and not o.scopes[scope].modelled for o in used)


def _tdp_w(group: SweepGroup, scope: str) -> float:
    """Return the limit of the default setting; a cap is not the limit of the hardware."""
    reference = group.reference
    if reference is None or not reference.repeated.used:
        return 0.0
    domains = reference.repeated.used[0].domains
    return sum(d.get("tdp_w") or 0.0 for d in domains if d["scope"] == scope and d["in_total"])


def tables_from(text: str) -> tuple[str, ...]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if names == ["all"]:
        return tuple(PRINTED)
    for name in names:
        if name not in PRINTED:
            raise ConfigError(f"--tables {name}: unknown; {nearest(name, [*PRINTED, 'all'])}")
    return tuple(names)


def as_dict(result: SweepResult) -> dict[str, Any]:
    return {**result.experiment.to_dict(), "warm_ups": result.warm_ups, **result.summary()}


def print_results(results: Sequence[SweepResult], wanted: Sequence[str]) -> None:
    for result in results:
        if result.scope is None:
            say(f"wattloop: {result.experiment.experiment_id}: no energy was measured")
    for number, name in enumerate(wanted):
        if number:
            sys.stdout.write("\n")
        PRINTED[name](results)
    for result in results:
        _remarks(result)


def _remarks(result: SweepResult) -> None:
    for point in result.points:
        messages = dict.fromkeys(
            f"{o.status.value}: {o.message}" for o in point.repeated.outcomes if not o.ok
        )
        for message in messages:
            say(f"wattloop: {point.name}: {message}")
        outliers = sum(point.repeated.outlying)
        if outliers:
            say(f"wattloop: {point.name}: {outliers} outlier(s) kept but left out of the means")
    used = [o for p in result.points for o in p.repeated.used]
    warned = [o for o in used if o.warnings]
    if warned:
        say(f"wattloop: {len(warned)} of {len(used)} runs: {warned[0].warnings[0]}")
    if result.unfinished or result.experiment.status in ("interrupted", "failed"):
        identity = result.experiment.experiment_id
        say(f"wattloop: not finished; continue with: wattloop sweep resume {identity}")


def _points(results: Sequence[SweepResult]) -> None:
    for result in results:
        print_table(points_table(result))


def _best(results: Sequence[SweepResult]) -> None:
    for result in results:
        table = best_table(result)
        if not table.rows:
            say(f"wattloop: no best setting: {_why_none(result)}")
            continue
        print_table(table.without("time loss (%)"))
        _print_choice(result)


def _why_none(result: SweepResult) -> str:
    used = [o for p in result.points for o in p.repeated.used]
    read = [s for s in SCOPES if any(s in o.scopes for o in used)]
    if used and result.scope not in read:
        known = f"; there is {', '.join(read)}" if read else ""
        return f"no energy of {result.scope or 'anything'} was measured{known}"
    return "only the default was measured"


def _print_choice(result: SweepResult) -> None:
    for group in result.groups:
        found = group.best(result.compared)
        if found is None:
            continue
        point, gain = found
        where = f" on {group.label}" if group.label else ""
        setting = setting_text({"setting": point.label, "is_default": point.is_default})
        ties = group.ties(point, result.compared)
        label = f"{result.compared.label}{where}"
        if point.is_default:
            best = f"no setting beats the default for {label}: {setting}"
        elif any(p.is_default for p in ties):
            best = f"no setting surely beats the default for {label}; likeliest: {setting}"
        else:
            best = f"best for {label}: {setting}"
        sys.stdout.write(f"{best}{'' if point.is_default else f', {gain_text(gain)} %'}\n")
        if ties:
            names = [setting_text({"setting": p.label, "is_default": p.is_default}) for p in ties]
            sys.stdout.write(f"  a tie with {', '.join(names)}: within noise\n")
        elif gain.half_width_pct is None:
            sys.stdout.write("  its noise is unknown: each setting ran once (--repeats 3)\n")


PRINTED: dict[str, Callable[[Sequence[SweepResult]], None]] = {
    "points": _points,
    "best": _best,
    "techniques": print_techniques,
    "powers": print_powers,
    "scaling": print_scaling,
    "synthesis": print_synthesis,
}


def print_plan(plan: SweepPlan) -> None:
    rule = plan.spec.repeats
    out = sys.stdout.write
    out(f"{len(plan.points)} points, {rule.least} to {rule.most} runs each")
    out(f", {plan.spec.warmup} warm-up run(s) per default setting")
    if plan.spec.timeout_s is not None:
        out(f", each ended after {format_duration(plan.spec.timeout_s)}")
    out("\n")
    for point in plan.block(0):
        trial = plan.trial(point, "0")
        out(f"\n{point.key}{' (default)' if point.is_default else ''}\n")
        for name, value in trial.environment.items():
            out(f"  {name}={value}\n")
        for text in _writes(plan, point):
            out(f"  {text}\n")
        out(f"  $ {shlex.join(trial.command)}\n")
    out("\nat the end every lever is put back to what it was before\n")


def _writes(plan: SweepPlan, point: SweepPoint) -> list[str]:
    levers = {lever.name: lever for axis in plan.axes for lever in axis.levers}
    texts = (levers[name].write_text(value) for name, value in point.settings.items())
    return [line for text in texts for line in text.splitlines()]


def plan_dict(plan: SweepPlan) -> dict[str, Any]:
    return {
        "points": [
            {
                **point.to_dict(),
                "key": point.key,
                "settings": dict(point.settings),
                "writes": _writes(plan, point),
                "command": list(plan.trial(point, "0").command),
                "environment": dict(plan.trial(point, "0").environment),
            }
            for point in plan.block(0)
        ],
        "spec": plan.spec.to_dict(),
    }


@contextmanager
def progress(plan: "SweepPlan", identity: str, *, resumed: bool) -> Iterator[SweepListener]:
    rule = plan.spec.repeats
    times = str(rule.least) if rule.least == rule.most else f"{rule.least} to {rule.most}"
    verb = "going on with" if resumed else "beginning"
    count = len(plan.points)
    points = f"{count} point{'s' if count != 1 else ''}"
    say(f"wattloop: {verb} {identity}: {points}, {times} run{'s' if rule.most != 1 else ''} each")
    with updated_row(trial_columns, left="") as update:
        yield _Listener(update)


class _Listener:
    def __init__(self, update: Callable[..., None]) -> None:
        self._update = update

    def begins(self, trial: Trial, progress: SweepProgress) -> None:
        self._update(
            completed=progress.done,
            total=progress.done + progress.left,
            left=_left(progress),
            description=trial.key,
        )

    def ended(self, trial: Trial, outcome: TrialOutcome) -> None:
        if not outcome.ok:
            say(f"wattloop: {trial.key}: {outcome.status.value}: {outcome.message}")

    def cooled(self, waited_s: float) -> None:
        pass


def _left(progress: SweepProgress) -> str:
    parts = []
    if progress.time_left_s is not None:
        parts.append(format_duration(progress.time_left_s))
    if progress.energy_left_j is not None:
        parts.append(f"{short_energy(progress.energy_left_j)} {progress.scope}")
    return f"left: {', '.join(parts)}" if parts else ""
