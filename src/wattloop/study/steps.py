"""Execution of the six steps of a study."""

from collections.abc import Mapping
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.report.stored_results import stored_sweep
from wattloop.schedule.campaigns.runner import CampaignCallback
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.store.database import Store
from wattloop.study.goals import GoalVerdict, decide, judge
from wattloop.study.metrics import (
    SourceFigures,
    measured_figures,
    metric_values,
    simulated_figures,
    symptoms_of_cluster,
    symptoms_of_runs,
)
from wattloop.study.record import StudyRecord
from wattloop.study.spec import Source, StudySpec


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
        """Step 2: the figures of the system as it is, and its symptoms."""
        source = self._spec.baseline
        if source.is_measured:
            found = measured_figures(self._store, source)
            symptoms = symptoms_of_runs(found)
        else:
            found = self._simulated(source, [source.policy or ""])[source.policy or ""]
            symptoms = symptoms_of_cluster(found, load_scenario(source.scenario or "").cluster)
        return self._kept("baseline", {**self._values(found), "symptoms": symptoms})

    def characterize(self) -> dict[str, Any]:
        """Step 3: best settings of the sweeps that were named."""
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
        """Step 4: candidates on the twin, after the twin was checked against the baseline."""
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
        """Step 5: which candidate, and why."""
        found = self.record.need("simulate")
        if not found["believed"]:
            off = ", ".join(row["metric"] for row in found["twin"] if not row["within"])
            raise ConfigError(
                f"study {self._spec.name}: the twin is off in {off} by more than "
                f"{self._spec.tolerance:.0%}: mend the scenario and simulate again"
            )
        verdicts = {
            name: tuple(_verdict(data) for data in one["verdicts"])
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
        """Return each KPI of the twin next to the measured one."""
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
        """Means of the KPIs, for the record."""
        means = {}
        for name in dict.fromkeys((*(kpi.metric for kpi in self._spec.kpis), "energy_kwh")):
            values = metric_values(found, name)
            if values:
                means[name] = sum(values.values()) / len(values)
        return {"means": means, "provenance": found.provenance, "source": found.source}

    def _kept(self, step: str, found: dict[str, Any]) -> dict[str, Any]:
        self.record.keep(step, found)
        return found


def _verdict(data: Mapping[str, Any]) -> GoalVerdict:
    return GoalVerdict(**{name: data[name] for name in GoalVerdict.__slots__})
