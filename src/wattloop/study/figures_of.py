"""Figures of a source: per seed of a simulation, or per measured run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.schedule.campaigns.campaign import Campaign, PolicyChoice, seeds_from
from wattloop.schedule.campaigns.runner import CampaignCallback, run_campaign
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.store.database import Store
from wattloop.store.runs import RunFilter, RunRecord, list_runs
from wattloop.study.spec import Source

__all__ = ["Figures", "measured_figures", "metric_values", "simulated_figures"]

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Figures:
    """Rows of figures.

    Attributes:
        rows: seed or run -> figure -> value; None for what is not known.
        provenance: `simulated`, or what the runs say.
        source: which campaign or runs, in words.
        records: the runs, where it is runs.
    """

    rows: Mapping[str, Mapping[str, Any]]
    provenance: str
    source: str
    records: tuple[RunRecord, ...] = field(default=(), compare=False)


def simulated_figures(
    store: Store,
    source: Source,
    policies: Sequence[str],
    *,
    workers: int = 1,
    listener: CampaignCallback | None = None,
) -> dict[str, Figures]:
    """Policy -> its figures on every seed.

    Raises:
        ConfigError: a scenario or policy that is not known, or a simulation that failed.
    """
    if source.scenario is None:
        raise ConfigError("which scenario? Name it in the study's file")
    campaign = Campaign(
        load_scenario(source.scenario),
        tuple(PolicyChoice.named(name) for name in policies),
        seeds_from(str(source.seeds)),
    )
    experiment, outcomes = run_campaign(campaign, store, workers=workers, listener=listener)
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for (variant, label, seed), outcome in outcomes.items():
        if outcome.get("error"):
            raise ConfigError(f"{label} on seed {seed}: {outcome['error']}")
        key = f"{variant} {seed}".strip()
        found.setdefault(label, {})[key] = outcome
    said = f"{experiment.experiment_id}, {source.scenario}, seeds {source.seeds}"
    return {label: Figures(rows, "simulated", said) for label, rows in found.items()}


def measured_figures(store: Store, source: Source) -> Figures:
    """Figures of measured runs.

    Raises:
        ConfigError: no run matches.
    """
    key, _, value = (source.tag or "").partition("=")
    tags = {key: value or None} if key else {}
    wanted = RunFilter(name=source.runs, tags=tags)
    records = tuple(
        record
        for record in list_runs(store, wanted)
        if record.counted and record.result is not None and record.energy_j is not None
    )
    if not records:
        raise ConfigError(
            f"no measured run matches {source.runs or source.tag!r}; see 'wattloop runs list'"
        )
    kinds = {r.result.provenance.value for r in records if r.result and r.result.provenance}
    rows = {record.run_id: _of_run(record) for record in records}
    return Figures(rows, ", ".join(sorted(kinds)), f"{len(records)} runs", records)


def metric_values(found: Figures, metric: str) -> dict[int | str, float]:
    """One figure of every row that has it."""
    return {
        key: float(row[metric]) for key, row in found.rows.items() if row.get(metric) is not None
    }


def _of_run(record: RunRecord) -> dict[str, float | None]:
    energy_j, time_s = record.energy_j, record.duration_s
    accounting = record.accounting or {}
    both = energy_j is not None and time_s is not None
    return {
        "energy_j": energy_j,
        "energy_kwh": None if energy_j is None else energy_j / JOULES_PER_KWH,
        "time_s": time_s,
        "power_w": None if not both or not time_s else (energy_j or 0.0) / time_s,
        "edp_js": (energy_j or 0.0) * (time_s or 0.0) if both else None,
        "carbon_g": accounting.get("carbon_g"),
    }
