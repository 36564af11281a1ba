"""`wattloop sweep export`: trials or points as CSV or JSON."""

from typing import TYPE_CHECKING, Any

from wattloop.cli.output import write_json, write_text
from wattloop.core.errors import ConfigError
from wattloop.store.experiments import read_trials
from wattloop.store.formats.csv_file import csv_text
from wattloop.sweep.result import SweepResult
from wattloop.trials.outcome import SCOPES

if TYPE_CHECKING:
    from wattloop.store.database import Store

__all__ = ["export"]


def export(result: SweepResult, store: "Store", what: str, target: str) -> None:
    """One row per trial, warm-ups and outliers included and marked, or one per point."""
    if what not in ("trials", "points"):
        raise ConfigError(f"--what {what}: unknown; choose trials or points")
    rows = _trial_rows(result, store) if what == "trials" else _point_rows(result)
    if target.endswith(".json"):
        write_json(rows, target, "--output")
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write_text(csv_text(columns, rows), target, "--output")


def _trial_rows(result: SweepResult, store: "Store") -> list[dict[str, Any]]:
    outlying = {
        key
        for point in result.points
        for key, out in zip(point.keys, point.repeated.outlying, strict=True)
        if out
    }
    rows = []
    for trial in read_trials(store, result.experiment.experiment_id):
        point, outcome = trial.settings["point"], trial.outcome
        row: dict[str, Any] = {
            "number": trial.number,
            "key": trial.key,
            "status": trial.status,
            "workload": point["workload"],
            "library": point["library"],
            "gpus": point["gpus"],
            **point["levels"],
            "is_default": point["is_default"],
            "warm_up": not str(trial.settings["repeat"]).isdecimal(),
            "outlier": trial.key in outlying,
            "time_s": outcome.get("time_s"),
            "program_s": outcome.get("lasted_s"),
        }
        for scope in SCOPES:
            found = outcome.get("scopes", {}).get(scope, {})
            for name in ("energy_j", "average_w", "peak_w", "provenance"):
                row[f"{scope}_{name}"] = found.get(name)
        rows.append(row | {"run_id": trial.run_id, "message": outcome.get("message", "")})
    return rows


def _point_rows(result: SweepResult) -> list[dict[str, Any]]:
    rows = []
    for point in result.summary()["points"]:
        row = {k: point[k] for k in ("workload", "library", "gpus")} | dict(point["levels"])
        row |= {k: point[k] for k in ("is_default", "runs", "used", "temperature_c")}
        row |= _spelled("time_s", point["time_s"])
        for name in ("energy_j", "average_w", "peak_w"):
            for scope, value in point[name].items():
                row |= _spelled(f"{scope}_{name}", value)
        for metric, gain in point["gains"].items():
            row |= {
                f"{metric}_gain_pct": gain["value_pct"],
                f"{metric}_gain_half_width_pct": gain["half_width_pct"],
            }
        rows.append(row | {"scope": result.scope, "provenance": result.provenance})
    return rows


def _spelled(name: str, value: dict[str, Any] | None) -> dict[str, Any]:
    found = value or {}
    return {
        f"{name}_mean": found.get("mean"),
        f"{name}_sd": found.get("sd"),
        f"{name}_half_width": found.get("half_width"),
    }
