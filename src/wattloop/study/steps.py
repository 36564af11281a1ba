"""The steps of a study, and the KPIs of its simulations and measured runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.records import from_plain
from wattloop.report.stored_results import stored_sweep
from wattloop.schedule.campaigns.campaign import Campaign, PolicyChoice, seeds_from
from wattloop.schedule.campaigns.runner import CampaignCallback, run_campaign
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.store.database import Store
from wattloop.store.runs import RunFilter, RunRecord, list_runs
from wattloop.study.goals import GoalVerdict, decide, judge
from wattloop.study.record import StudyRecord
from wattloop.study.spec import Source, StudySpec

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class SourceFigures:
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
) -> dict[str, SourceFigures]:
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
    return {label: SourceFigures(rows, "simulated", said) for label, rows in found.items()}


def measured_figures(store: Store, source: Source) -> SourceFigures:
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
    return SourceFigures(rows, ", ".join(sorted(kinds)), f"{len(records)} runs", records)


def metric_values(found: SourceFigures, metric: str) -> dict[int | str, float]:
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


UNEVEN = 0.15
"""Utilisations of GPU types that differ by more than this are out of balance."""
IDLE = 0.10
PEAK = 0.85


def symptoms_of_cluster(found: SourceFigures, cluster: Cluster) -> list[str]:
    """From the means of a simulation."""
    rows = list(found.rows.values())
    said = []
    used = {
        kind.name: _mean([row["utilisation"].get(kind.name) for row in rows])
        for kind in cluster.types
    }
    known = {name: value for name, value in used.items() if value is not None}
    if len(known) > 1:
        most, least = max(known, key=lambda n: known[n]), min(known, key=lambda n: known[n])
        if known[most] - known[least] > UNEVEN:
            said.append(
                f"over-use of {most}: busy {known[most]:.0%} of the time, "
                f"{least} {known[least]:.0%}"
            )
    full_w = sum(g.nodes * g.gpus_per_node * _tdp_w(cluster, g.type_name) for g in cluster.groups)
    peak_w = _mean([row.get("peak_power_w") for row in rows])
    if peak_w is not None and full_w and peak_w > PEAK * full_w:
        said.append(f"peaks of {peak_w:,.0f} W, {peak_w / full_w:.0%} of all GPUs at their limit")
    idle = _mean([row.get("idle_share") for row in rows])
    if idle is not None and idle > IDLE:
        said.append(f"{idle:.0%} of the energy goes into GPUs with nothing to do")
    misses = _mean([row.get("miss_rate") for row in rows])
    if misses is not None and misses > 0.01:
        said.append(f"{misses:.0%} of the deadlines are missed")
    wasted, energy = (_mean([row.get(n) for row in rows]) for n in ("wasted_kwh", "energy_kwh"))
    if wasted and energy and wasted / energy > 0.01:
        said.append(f"{wasted / energy:.0%} of the energy is lost to work that was stopped")
    return said


def symptoms_of_runs(found: SourceFigures) -> list[str]:
    """From the insights that measured runs carry."""
    counts: Counter[str] = Counter()
    texts: dict[str, str] = {}
    for record in found.records:
        insights: list[Mapping[str, Any]] = (record.accounting or {}).get("insights") or []
        for insight in insights:
            if str(insight.get("severity")) == "warning":
                counts[str(insight["code"])] += 1
                texts.setdefault(str(insight["code"]), str(insight["text"]))
    runs = len(found.records)
    return [f"{texts[code]} ({count} of {runs} runs)" for code, count in counts.most_common()]


def _tdp_w(cluster: Cluster, type_name: str) -> float:
    return next(kind.tdp_w for kind in cluster.types if kind.name == type_name)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


class StudyRunner:
    """One study on one store.

    Args:
        store: where runs, sweeps and campaigns are, and where the study is kept.
        spec: the study.
        workers: processes for simulations.
        listener: told how far simulations are.
    """

    def __init__(
        self,
        store: Store,
        spec: StudySpec,
        *,
        workers: int = 1,
        listener: CampaignCallback | None = None,
    ) -> None:
        self.record = StudyRecord(store, spec)
        self._store, self._spec = store, spec
        self._workers, self._listener = workers, listener

    def baseline(self) -> dict[str, Any]:
        source = self._spec.baseline
        if source.is_measured:
            found = measured_figures(self._store, source)
            symptoms = symptoms_of_runs(found)
        else:
            found = self._simulated(source, [source.policy or ""])[source.policy or ""]
            symptoms = symptoms_of_cluster(found, load_scenario(source.scenario or "").cluster)
        return self._kept("baseline", {**self._values(found), "symptoms": symptoms})

    def characterize(self) -> dict[str, Any]:
        from wattloop.sweep.tables import best_rows

        self.record.need("baseline")
        found = []
        for name in self._spec.characterize.sweeps:
            result = stored_sweep(self._store, name)
            for row in best_rows(result):
                gain = row["gain"]
                found.append(
                    {
                        "sweep": result.experiment.experiment_id,
                        "of": row["group"],
                        "metric": row["metric"],
                        "setting": row["setting"],
                        "gain_pct": gain.value_pct,
                        "beyond_noise": gain.beyond_noise,
                        "provenance": result.provenance,
                    }
                )
        note = "" if found else "no sweep is named: levers of single jobs stay unknown"
        return self._kept("characterize", {"best": found, "note": note})

    def simulate(self) -> dict[str, Any]:
        before = self.record.need("baseline")
        self.record.need("characterize")
        spec = self._spec
        if not spec.candidates:
            raise ConfigError(f"study {spec.name}: name 'candidates' to simulate")
        twin = spec.twin or spec.baseline
        base = twin.policy or ""
        found = self._simulated(twin, [base, *(c for c in spec.candidates if c != base)])
        checked = self._twin(before, found[base]) if spec.twin is not None else []
        wrong = [row for row in checked if not row["within"]]
        candidates = {
            name: {
                **self._values(figures),
                "verdicts": [v.to_dict() for v in self._verdicts(found[base], figures)],
            }
            for name, figures in found.items()
            if name != base
        }
        return self._kept(
            "simulate",
            {
                "base": base,
                "twin": checked,
                "believed": not wrong,
                "source": found[base].source,
                "candidates": candidates,
            },
        )

    def decide(self) -> dict[str, Any]:
        found = self.record.need("simulate")
        if not found["believed"]:
            off = ", ".join(row["metric"] for row in found["twin"] if not row["within"])
            raise ConfigError(
                f"study {self._spec.name}: the twin is off in {off} by more than "
                f"{self._spec.tolerance:.0%}: mend the scenario and simulate again"
            )
        verdicts = {
            name: tuple(from_plain(GoalVerdict, data) for data in one["verdicts"])
            for name, one in found["candidates"].items()
        }
        energy = {
            name: one["means"].get("energy_kwh", float("inf"))
            for name, one in found["candidates"].items()
        }
        return self._kept("decide", decide(self._spec.objective, verdicts, energy).to_dict())

    def validate(self) -> dict[str, Any]:
        """Step 6: the figures again, with the choice in place (thesis figure 6.9)."""
        choice = str(self.record.need("decide")["choice"])
        if not choice:
            raise ConfigError(
                f"study {self._spec.name}: no candidate was chosen, so there is nothing to "
                "validate; change candidates or goals, then: wattloop study baseline FILE"
            )
        source = self._spec.validation or self._spec.twin or self._spec.baseline
        if source.is_measured:
            before = measured_figures(self._store, self._spec.baseline)
            after = measured_figures(self._store, source)
        else:
            base = (self._spec.twin or self._spec.baseline).policy or ""
            both = self._simulated(source, [base, choice])
            before, after = both[base], both[choice]
        verdicts = self._verdicts(before, after)
        predicted = self.record.need("simulate")["candidates"].get(choice, {}).get("means", {})
        differed = [
            {"metric": v.metric, "predicted": predicted.get(v.metric), "found": v.after}
            for v in verdicts
            if not v.met
        ]
        return self._kept(
            "validate",
            {
                "choice": choice,
                "source": after.source,
                "provenance": after.provenance,
                "verdicts": [v.to_dict() for v in verdicts],
                "success": all(v.met for v in verdicts),
                "differed": differed,
            },
        )

    def _simulated(self, source: Source, policies: list[str]) -> dict[str, SourceFigures]:
        return simulated_figures(
            self._store, source, policies, workers=self._workers, listener=self._listener
        )

    def _verdicts(self, before: SourceFigures, after: SourceFigures) -> list[GoalVerdict]:
        return [
            judge(
                kpi.metric,
                kpi.parsed(),
                metric_values(before, kpi.metric),
                metric_values(after, kpi.metric),
            )
            for kpi in self._spec.kpis
        ]

    def _twin(self, measured: Mapping[str, Any], simulated: SourceFigures) -> list[dict[str, Any]]:
        rows = []
        for kpi in self._spec.kpis:
            real = measured["means"].get(kpi.metric)
            values = metric_values(simulated, kpi.metric)
            if real is None or not values:
                raise ConfigError(
                    f"{kpi.metric}: not measured in the baseline; check the name of the KPI"
                )
            twin = sum(values.values()) / len(values)
            off = abs(twin - real) / abs(real) if real else float(twin != 0)
            rows.append(
                {
                    **{"metric": kpi.metric, "measured": real, "simulated": twin, "off": off},
                    "within": off <= self._spec.tolerance,
                }
            )
        return rows

    def _values(self, found: SourceFigures) -> dict[str, Any]:
        means = {}
        for name in dict.fromkeys((*(kpi.metric for kpi in self._spec.kpis), "energy_kwh")):
            values = metric_values(found, name)
            if values:
                means[name] = sum(values.values()) / len(values)
        return {"means": means, "provenance": found.provenance, "source": found.source}

    def _kept(self, step: str, found: dict[str, Any]) -> dict[str, Any]:
        self.record.keep(step, found)
        return found
