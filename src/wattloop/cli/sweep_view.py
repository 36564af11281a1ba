"""What `wattloop sweep` prints."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from wattloop.cli.output import print_table, say
from wattloop.cli.sweep_comparisons import (
    print_powers,
    print_scaling,
    print_synthesis,
    print_techniques,
)
from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import nearest
from wattloop.report.sweep_cells import (
    gain_text,
    mean_only,
    noise_text,
    runs_text,
    setting_text,
    title_of,
    with_interval,
)
from wattloop.store.experiments import Experiment, TrialRecord
from wattloop.store.tables import iso_time
from wattloop.sweep import tables
from wattloop.sweep.result import SweepResult
from wattloop.trials.outcome import SCOPES

if TYPE_CHECKING:
    pass

__all__ = [
    "as_dict",
    "brief",
    "print_list",
    "print_results",
    "tables_from",
]


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
                    setting_text(row),
                    runs_text(row),
                    with_interval(row["time_s"]),
                    with_interval(row["energy_j"]),
                    with_interval(row["average_w"]),
                    mean_only(row["peak_w"]),
                    gain_text(row["gains"]["energy"]),
                    gain_text(row["gains"]["time"], -1),
                    gain_text(row["gains"]["gain_minus_loss"]),
                    gain_text(row["gains"]["edp"]),
                )
                for row in rows
            ],
            title=f"{title_of(result)}: mean ± half-width of the 95% interval",
            spare=("peak (W)", "gain-loss", "power (W)"),
        )


def _best(results: Sequence[SweepResult]) -> None:
    for result in results:
        rows = tables.best_rows(result)
        if not rows:
            say(f"wattloop: no best setting: {_why_none(result)}")
            continue
        several = len({row["group"] for row in rows}) > 1
        print_table(
            [*(["group"] if several else []), "metric", "gain over default (%)", "obtained at"],
            [
                (
                    *([row["group"]] if several else []),
                    row["metric"],
                    gain_text(row["gain"]) + noise_text(row["gain"], row["is_default"]),
                    setting_text(row),
                )
                for row in rows
            ],
            title=f"{title_of(result)}: best setting per metric",
        )
        _print_choice(result)


def _why_none(result: SweepResult) -> str:
    used = [o for p in result.points for o in p.repeated.used]
    read = [s for s in SCOPES if any(s in o.scopes for o in used)]
    if used and result.scope not in read:
        known = f"; there is {', '.join(read)}" if read else ""
        return f"no energy of {result.scope or 'anything'} was measured{known}"
    return "nothing beside the default was measured"


def _print_choice(result: SweepResult) -> None:
    """The answer in a line per group, for the metric that was asked for."""
    for group in result.groups:
        found = group.best(result.compared)
        if found is None:
            continue
        point, gain = found
        where = f" on {group.label}" if group.label else ""
        setting = setting_text({"setting": point.label, "is_default": point.is_default})
        gains = "" if point.is_default else f", {gain_text(gain)} %"
        noise = noise_text(gain, point.is_default)
        sys.stdout.write(f"best for {result.compared.label}{where}: {setting}{gains}{noise}\n")


PRINTED: dict[str, Callable[[Sequence[SweepResult]], None]] = {
    "points": _points,
    "best": _best,
    "techniques": print_techniques,
    "powers": print_powers,
    "scaling": print_scaling,
    "synthesis": print_synthesis,
}
