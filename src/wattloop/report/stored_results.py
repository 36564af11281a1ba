"""Current results of stored experiments: whole, in one line, and as tables for `analyze`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from wattloop.analyze.table import RunTable
from wattloop.analyze.table_reader import table_of
from wattloop.core.errors import ConfigError
from wattloop.core.settings import load_settings
from wattloop.core.units import format_change, format_number
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment, each_trial, find_experiment, read_trials
from wattloop.store.runs import EFFICIENCIES, mean_efficiencies
from wattloop.sweep.result import SweepResult, result_of
from wattloop.trials.experiment_lock import with_status_now
from wattloop.trials.trial import SCOPES
from wattloop.tune.results import (
    CandidateResult,
    SearchSummary,
    aggregate_candidates,
    candidate_rows,
    parameter_columns,
    read_candidates,
    stored_quality,
    summarize_search,
)
from wattloop.tune.segment import without_gc


def stored_sweep(store: Store, reference: str, scope: str | None = None) -> SweepResult:
    if scope is not None and scope not in SCOPES:
        raise ConfigError(f"--scope {scope}: unknown; choose one of {', '.join(SCOPES)}")
    experiment = with_status_now(store, find_experiment(store, reference, "sweep"))
    return result_of(experiment, read_trials(store, experiment.experiment_id), scope)


def stored_search(store: Store, reference: str) -> Experiment:
    return with_status_now(store, find_experiment(store, reference, "search"))


def read_search(
    store: Store, experiment: Experiment
) -> tuple[list[CandidateResult], SearchSummary]:
    """Return the candidates of a search, and its summary with the best one.

    Also of a search that goes on or was killed. Its trials are read once: there may be many.
    """
    from wattloop.tune.search_setup import current_choice

    with without_gc():
        records = read_trials(store, experiment.experiment_id)
        found = aggregate_candidates(records, stored_quality(experiment.facts))
        best = current_choice(store, experiment, load_settings(needs=()), records)
    return found, summarize_search(store, experiment, found, None if best is None else asdict(best))


def headline(store: Store, experiment: Experiment) -> str:
    """Return the result of an experiment in one line for lists; empty while there is none.

    That of a sweep, a search or a study is in its facts; a campaign is read cell by cell.
    """
    facts, spec = experiment.facts, experiment.spec
    if experiment.kind == "sweep":
        return _sweep_headline((facts.get("summary") or {}).get("best") or ())
    if experiment.kind == "search":
        best = facts.get("best") or {}
        chosen = {**(best.get("levers") or {}), **(best.get("parameters") or {})}
        setting = ", ".join(f"{name} {_short(value)}" for name, value in chosen.items())
        return f"best: {setting}; {best.get('why') or ''}".rstrip("; ") if setting else ""
    if experiment.kind == "study":
        steps = facts.get("steps") or {}
        if (proven := steps.get("validate")) is not None:
            return f"{proven['choice']}: {'all' if proven['success'] else 'not all'} goals met"
        return f"chosen: {choice}" if (choice := (steps.get("decide") or {}).get("choice")) else ""
    if experiment.kind == "campaign":
        return _campaign_headline(store, experiment, spec)
    return ""


def _sweep_headline(best: Sequence[Mapping[str, Any]]) -> str:
    found = next((each for each in best if each.get("metric") == "energy"), None)
    if found is None or found.get("value_pct") is None:
        return ""
    if not found["value_pct"]:
        return "least energy as it is set by default"
    doubt = "" if found.get("beyond_noise") else ", within noise"
    return f"{found['point']} saves {found['value_pct']:.1f}% energy{doubt}"


def _campaign_headline(store: Store, experiment: Experiment, spec: Mapping[str, Any]) -> str:
    """Return the policy with the least mean energy, and what was compared."""
    energies: dict[str, list[float]] = {}
    for trial in each_trial(store, experiment.experiment_id):
        energy_kwh = trial.outcome.get("energy_kwh")
        if isinstance(energy_kwh, int | float):
            energies.setdefault(str(trial.settings.get("policy")), []).append(float(energy_kwh))
    policies = [str(name) for name in spec.get("policies") or energies]
    compared = f"{len(policies)} polic{'y' if len(policies) == 1 else 'ies'}"
    seeds = max(map(len, energies.values()), default=0)
    compared += f", {seeds} seed{'s' * (seeds != 1)}"
    variants = len(spec.get("variants") or ())
    compared += f", {variants} variants" if variants > 1 else ""
    if len(energies) < 2:
        return f"{', '.join(policies)}; {compared}"
    means = {name: sum(found) / len(found) for name, found in energies.items()}
    least, first = min(means, key=lambda name: means[name]), next(iter(policies))
    if variants > 1 or least == first or not means.get(first):
        return f"{compared}: least energy with {least}"
    change = means[least] / means[first] - 1
    return f"{compared}: least energy with {least} ({format_change(change)} against {first})"


def _short(value: Any) -> str:
    return format_number(value) if isinstance(value, float) else str(value)


INACTIVE = "inactive"
"""The level of a conditional parameter where it does not apply: that is a choice, not a gap."""
COSTS = ("energy_j", "time_s", "power_w", "epochs", "to_target_j", "to_target_s")


def search_table(
    store: "Store",
    experiment: "Experiment",
    parameters: Sequence[str] | None = None,
    results: Sequence[str] | None = None,
    *,
    looked: "tuple[list[CandidateResult], SearchSummary] | None" = None,
) -> RunTable:
    """Return parameters, levers and found rates with energy, time, power and quality.

    Args:
        store: where the trials are.
        experiment: the search.
        parameters: columns that were chosen; all when not given.
        results: columns that came out; all that are known when not given.
        looked: candidates and summary, where they were read already.
    """
    quality = stored_quality(experiment.facts)
    if looked is None:
        read = read_candidates(store, experiment.experiment_id, quality)
        looked = read, summarize_search(store, experiment, read)
    candidates, summary = looked
    rows = candidate_rows(candidates)
    found = list(parameter_columns(candidates).values())
    if any(row["learning_rate"] is not None for row in rows):
        found.append("learning_rate")
    metric = (quality.metric if quality is not None else "") or "quality"
    shares = mean_efficiencies(store, [c.run_ids for c in candidates])
    for row, candidate, share in zip(rows, candidates, shares, strict=True):
        _completed(row, candidate, found, metric)
        row.update(share)
        row["is_default"] = candidate is summary.default
    came_out = [f"best_{metric}", f"last_{metric}", *COSTS, *_reported(candidates, rows)]
    came_out += EFFICIENCIES.values()
    epochs = {row["epochs"] for row in rows if row["energy_j"] is not None}
    if len(epochs) > 1:
        came_out += ["energy_per_epoch_j", "time_per_epoch_s"]
    directions = {} if quality is None else dict.fromkeys([metric, *came_out[:2]], quality.maximize)
    scope = f"energy of {summary.scope}" if summary.scope else "energy"
    return table_of(
        rows,
        name=experiment.name or experiment.experiment_id,
        parameters=list(parameters or found),
        results=list(results or [name for name in dict.fromkeys(came_out) if _known(rows, name)]),
        source=f"{scope}, {summary.provenance}",
        directions=directions,
    )


def _completed(
    row: dict[str, Any], candidate: "CandidateResult", parameters: list[str], metric: str
) -> None:
    """Add the metric by epoch, energy and time per epoch; fill gaps of choices.

    The metric's bare name is that of the best epoch, as everywhere in a search; it is not listed
    among the results, where it would be a second column of the same values.
    """
    row[f"last_{metric}"], row[f"best_{metric}"] = row.pop("quality"), row.pop("best")
    row[metric] = row[f"best_{metric}"]
    for name in parameters:
        if row[name] is None:
            row[name] = INACTIVE
    epochs, energy_j = candidate.epochs, candidate.energy_j
    row["energy_per_epoch_j"] = energy_j / epochs if energy_j is not None and epochs > 0 else None
    row["time_per_epoch_s"] = candidate.time_s / epochs if epochs > 0 else None


def _reported(candidates: list["CandidateResult"], rows: list[dict[str, Any]]) -> list[str]:
    """Return metrics other than the quality that have a column of their own."""
    names = dict.fromkeys(name for c in candidates for name in c.metrics)
    return [name for name in names if rows and name in rows[0]]


def _known(rows: list[dict[str, Any]], name: str) -> bool:
    return any(row.get(name) is not None for row in rows)


def sweep_table(
    result: SweepResult,
    parameters: Sequence[str] | None = None,
    results: Sequence[str] | None = None,
    *,
    store: "Store | None" = None,
) -> RunTable:
    """Return levers with time, energy and power, without warm-ups and outliers.

    `store`: of the sweep; with it, the efficiencies of each trial are among the results.

    Raises:
        ConfigError: no energy was measured.
    """
    experiment = result.experiment
    if result.scope is None:
        raise ConfigError(f"{experiment.experiment_id}: no energy was measured")
    rows, found = _rows(result)
    if store is not None:
        for row, share in zip(
            rows, mean_efficiencies(store, [r["run_ids"] for r in rows]), strict=True
        ):
            row.update(share)
    shares = [name for name in EFFICIENCIES.values() if _known(rows, name)]
    table = table_of(
        rows,
        name=experiment.name or experiment.experiment_id,
        parameters=list(parameters or found),
        results=list(results or ["time_s", "energy_j", "power_w", "peak_w", *shares]),
        source=f"energy of {result.scope}, {result.provenance}",
    )
    outliers = [value is True for value in table.column("outlier")]
    return table.keep([not out for out in outliers], "outlier")


def _rows(result: SweepResult) -> tuple[list[dict[str, Any]], list[str]]:
    """Return rows and their chosen columns; levers are numbers where they all are."""
    axes = {
        axis["name"]: f"{axis['name']}_{axis['unit'].lower()}"
        if axis["unit"] not in ("", "name")
        and all(level["number"] is not None for level in axis["levels"])
        else axis["name"]
        for axis in result.axes
    }
    rows = []
    for point in result.points:
        facts = point.facts
        setting: dict[str, Any] = {k: facts[k] for k in ("workload", "library", "gpus")}
        for name, column in axes.items():
            numeric = column != name
            setting[column] = result.number(point, name) if numeric else facts["levels"].get(name)
        repeats = zip(point.keys, point.repeated.outcomes, point.repeated.outlying, strict=True)
        for key, outcome, outlier in repeats:
            scope = outcome.scopes.get(result.scope or "")
            rows.append(
                {
                    "key": key,
                    "status": outcome.status.value,
                    "run_ids": [outcome.run_id] if outcome.run_id else [],
                    "is_default": point.is_default,
                    "outlier": outlier,
                    **setting,
                    "time_s": outcome.time_s,
                    "energy_j": None if scope is None else scope.energy_j,
                    "power_w": None if scope is None else scope.average_w,
                    "peak_w": None if scope is None else scope.peak_w,
                }
            )
    named = ("workload", "library", "gpus")
    varied = [c for c in named if len({row[c] for row in rows}) > 1]
    return rows, [*varied, *axes.values()]
