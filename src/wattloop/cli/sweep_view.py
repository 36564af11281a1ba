"""What `wattloop sweep` prints."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from wattloop.analyze.intervals import Estimate
from wattloop.characterize import sweep_tables as tables
from wattloop.characterize.gains import Gain
from wattloop.characterize.lined_yaml import nearest
from wattloop.characterize.sweep_result import SweepResult, gpu_count, result_of
from wattloop.cli.output import print_table, say
from wattloop.core.errors import ConfigError
from wattloop.store.experiments import Experiment, TrialRecord, find_experiment, read_trials
from wattloop.store.tables import iso_time
from wattloop.trials.outcome import SCOPES

if TYPE_CHECKING:
    from wattloop.store.database import Store

__all__ = ["as_dict", "brief", "print_list", "print_results", "stored_result", "tables_from"]


def stored_result(store: "Store", reference: str, scope: str | None) -> SweepResult:
    """What a stored sweep found."""
    if scope is not None and scope not in SCOPES:
        raise ConfigError(f"--scope {scope}: unknown; choose one of {', '.join(SCOPES)}")
    experiment = find_experiment(store, reference, "sweep")
    return result_of(experiment, read_trials(store, experiment.experiment_id), scope)


def tables_from(text: str) -> tuple[str, ...]:
    """The tables that were asked for."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if names == ["all"]:
        return tuple(PRINTED)
    for name in names:
        if name not in PRINTED:
            raise ConfigError(f"--tables {name}: unknown; {nearest(name, [*PRINTED, 'all'])}")
    return tuple(names)


def print_list(rows: Sequence[tuple[Experiment, Sequence[TrialRecord]]]) -> None:
    """One line per sweep."""
    print_table(
        ("sweep", "name", "status", "trials", "begun"),
        [
            (
                e.experiment_id,
                e.name,
                e.status,
                str(sum(t.ended for t in trials)),
                (iso_time(e.created_wall_s) or "")[:19].replace("T", " "),
            )
            for e, trials in rows
        ],
        spare=("begun", "name"),
    )


def brief(experiment: Experiment, trials: Sequence[TrialRecord]) -> dict[str, Any]:
    """One sweep of a list as plain data."""
    return {
        "experiment_id": experiment.experiment_id,
        "name": experiment.name,
        "status": experiment.status,
        "created_wall_s": experiment.created_wall_s,
        "trials": len(trials),
        "ended": sum(trial.ended for trial in trials),
    }


def as_dict(result: SweepResult) -> dict[str, Any]:
    """What `--json` writes."""
    return {**result.experiment.to_dict(), "warm_ups": result.warm_ups, **result.summary()}


def print_results(results: Sequence[SweepResult], wanted: Sequence[str]) -> None:
    """The tables asked for; what failed, and what to beware of, on standard error."""
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
            say(f"wattloop: {point.label}: {message}")
        outliers = sum(point.repeated.outlying)
        if outliers:
            say(f"wattloop: {point.label}: {outliers} outlier(s) kept but left out of the means")
    if result.unfinished or result.experiment.status in ("interrupted", "failed"):
        identity = result.experiment.experiment_id
        say(f"wattloop: not finished; go on with: wattloop sweep resume {identity}")


def _points(results: Sequence[SweepResult]) -> None:
    for result in results:
        rows = tables.point_rows(result)
        several = len({row["group"] for row in rows}) > 1
        headers = [
            *(["group"] if several else []),
            *("setting", "runs", "time (s)", "energy (J)", "power (W)", "peak (W)"),
            *("energy gain (%)", "time loss (%)", "gain-loss", "EDP gain (%)"),
        ]
        print_table(
            headers,
            [
                (
                    *([row["group"]] if several else []),
                    _setting(row),
                    _runs(row),
                    _with(row["time_s"]),
                    _with(row["energy_j"]),
                    _with(row["average_w"]),
                    _alone(row["peak_w"]),
                    _gain(row["gains"]["energy"]),
                    _gain(row["gains"]["time"], -1),
                    _gain(row["gains"]["gain_minus_loss"]),
                    _gain(row["gains"]["edp"]),
                )
                for row in rows
            ],
            title=f"{_title(result)}: mean ± half-width of the 95% interval",
            spare=("peak (W)", "gain-loss", "power (W)"),
        )


def _best(results: Sequence[SweepResult]) -> None:
    for result in results:
        rows = tables.best_rows(result)
        if not rows:
            say("wattloop: no best setting: nothing beside the default was measured")
            continue
        several = len({row["group"] for row in rows}) > 1
        print_table(
            [*(["group"] if several else []), "metric", "gain over default (%)", "obtained at"],
            [
                (
                    *([row["group"]] if several else []),
                    row["metric"],
                    _gain(row["gain"]) + _noise(row["gain"], row["is_default"]),
                    _setting(row),
                )
                for row in rows
            ],
            title=f"{_title(result)}: best setting per metric",
        )


def _techniques(results: Sequence[SweepResult]) -> None:
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
    print_table(
        headers,
        [
            (*key, *(cell for t in known for cell in cells.get(t, ("-", "-", "-"))))
            for key, cells in lines.items()
        ],
        title=f"Best EDP gain with its time ({_kinds(results)}); time + is longer",
    )


def _powers(results: Sequence[SweepResult]) -> None:
    rows = tables.power_rows(results)
    known = list(dict.fromkeys(t for row in rows for t in row if isinstance(row[t], dict)))
    main = next((row["main"] for row in rows), "gpu").upper()
    second = next((row["second"] for row in rows if row["second"]), None)
    parts = [("main", main), *([("second", second.upper())] if second else [])]
    print_table(
        ["workload", "library", *(f"{t} {label} (W)" for t in known for _, label in parts)],
        [
            (
                ", ".join(filter(None, (row["workload"], gpu_count(row["gpus"])))),
                row["library"],
                *(_spread(row.get(t, {}).get(part)) for t in known for part, _ in parts),
            )
            for row in rows
        ],
        title=f"Average power at the default and at the lowest EDP, ± standard deviation "
        f"({_kinds(results)})",
    )


def _scaling(results: Sequence[SweepResult]) -> None:
    for result in results:
        print_table(
            ("workload", "setting", "GPUs", "time (s)", "energy (J)", "speed-up"),
            [
                (
                    " ".join(filter(None, (row["workload"], row["library"]))),
                    _setting(row),
                    str(row["gpus"]),
                    _with(row["time_s"]),
                    _with(row["energy_j"]),
                    f"{row['speed_up']:.2f}",
                )
                for row in tables.scaling_rows(result)
            ],
            title=f"{_title(result)}: time against the number of GPUs",
        )


def _synthesis(results: Sequence[SweepResult]) -> None:
    print_table(
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
        title=f"Best EDP gain per technique, mean over workloads ({_kinds(results)})",
    )


PRINTED: dict[str, Callable[[Sequence[SweepResult]], None]] = {
    "points": _points,
    "best": _best,
    "techniques": _techniques,
    "powers": _powers,
    "scaling": _scaling,
    "synthesis": _synthesis,
}


def _title(result: SweepResult) -> str:
    name = result.experiment.name or result.experiment.experiment_id
    return f"{name}, energy of {result.scope} ({result.provenance})"


def _kinds(results: Sequence[SweepResult]) -> str:
    return ", ".join(dict.fromkeys(f"{r.scope}, {r.provenance}" for r in results))


def _setting(row: dict[str, Any]) -> str:
    marked = row["is_default"] and row["setting"] != "default"
    return f"{row['setting']}{' (default)' if marked else ''}"


def _runs(row: dict[str, Any]) -> str:
    return f"{row['used']}" + (f" of {row['runs']}" if row["used"] != row["runs"] else "")


def _with(value: Estimate | None) -> str:
    if value is None:
        return "-"
    if value.half_width is None:
        return _number(value.mean)
    return f"{_number(value.mean)} ± {_digits(value.half_width, value.mean)}"


def _alone(value: Estimate | None) -> str:
    return "-" if value is None else _number(value.mean)


def _spread(value: Estimate | None) -> str:
    if value is None:
        return "-"
    return f"{value.mean:.1f}" + ("" if value.sd is None else f" ± {value.sd:.1f}")


def _gain(gain: Gain | None, sign: int = 1) -> str:
    if gain is None:
        return "-"
    value = f"{sign * gain.value_pct + 0.0:+.2f}".replace("-0.00", "+0.00")
    if gain.half_width_pct:
        return f"{value} ± {gain.half_width_pct:.2f}"
    return value


def _noise(gain: Gain, is_default: bool) -> str:
    """A best that could be chance is said to be so."""
    if is_default or gain.half_width_pct is None or gain.beyond_noise:
        return ""
    return " (within noise)"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def _digits(half_width: float, mean: float) -> str:
    """As many decimals as the mean shows."""
    shown = _number(mean)
    decimals = len(shown.partition(".")[2])
    return f"{half_width:.{decimals}f}"
