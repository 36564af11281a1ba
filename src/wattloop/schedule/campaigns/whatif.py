"""The same jobs in two worlds: a scenario as it is, and as it might be."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.schedule.campaigns.answer import AS_IT_IS, CHANGED, answer
from wattloop.schedule.campaigns.campaign import Campaign, Outcomes
from wattloop.schedule.campaigns.changes import Changes, with_budget
from wattloop.schedule.campaigns.shared_truth import share_truth
from wattloop.schedule.campaigns.summary import Summary, per_cell, summary_of
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.scenarios.scenario import Scenario, World
from wattloop.schedule.steps_file import Written

__all__ = ["ChangedScenario", "WhatIf", "changed_scenario", "whatif_of"]


@dataclass(frozen=True)
class ChangedScenario(Scenario):
    """Another cluster or budget under the very jobs of the scenario it comes from.

    The work of a trace's job and every deadline follow from the machines they were made for:
    faster ones must find the same work and the same promises.

    Attributes:
        base: whose jobs it has.
        names: GPU type -> what takes its place in jobs that ask for one.
    """

    base: Scenario | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def world(self, seed: int) -> World:
        """The base's jobs on these machines."""
        assert self.base is not None
        world = self.base.world(seed)
        jobs = _renamed(world.jobs, self.names)
        self._check_used(jobs)
        return world._replace(
            cluster=self.cluster,
            jobs=jobs,
            truth=self.truth,
            oracle=self.oracle.seen(self.truth, seed),
            settings=self.settings(seed),
        )

    def _check_used(self, jobs: JobTable) -> None:
        """GPUs that no job can run on would only idle: that is no answer to anybody's question."""
        for old, new in self.names.items():
            index = [kind.name for kind in self.cluster.types].index(new)
            if not any(index in self.truth.options(kind).type_index for kind in jobs.kinds):
                raise ConfigError(
                    f"--replace {old}={new}: no job of {self.name} could use {new}: the oracle "
                    "knows none of their models on it, or none fits into its memory"
                )

    def digest(self) -> str:
        """Of both worlds."""
        assert self.base is not None
        return hashlib.sha256(f"{super().digest()} {self.base.digest()}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Both worlds, seed by seed.

    Attributes:
        title: what was simulated.
        sentence: the answer.
        summary: of the worlds `as it is` and `changed`.
        outcomes: world -> what came of each of its cells.
    """

    title: str
    sentence: str
    summary: Summary
    outcomes: Mapping[str, Outcomes]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        differences = self.summary.to_dict()["differences"][CHANGED]
        return {
            "answer": self.sentence,
            "about": self.title,
            "provenance": "simulated",
            "differences": differences,
            "results": [
                {"world": world} | row
                for world, outcomes in self.outcomes.items()
                for row in per_cell(outcomes)
            ],
        }


def changed_scenario(scenario: Scenario, changes: Changes) -> Scenario:
    """The scenario as it would be.

    Raises:
        ConfigError: nothing is changed, or the change is not possible; the message names it.
    """
    if not changes:
        raise ConfigError("what if what? Give --replace OLD=NEW, --budget POWER or --nodes +N")
    if scenario.variants:
        known = ", ".join(scenario.variants)
        raise ConfigError(
            f"{scenario.name} has variants ({known}), what-if compares two worlds; name one with "
            "--variant"
        )
    budget = scenario.budget
    if changes.budget:
        steps = with_budget(None if budget is None else budget.steps, changes.budget)
        budget = Written(steps, f"--budget {changes.budget}")
    cluster = changes.cluster(scenario.cluster)
    own = {each.name: getattr(scenario, each.name) for each in fields(Scenario)}
    own |= {"cluster": cluster, "budget": budget, "name": f"{scenario.name}/whatif"}
    found = ChangedScenario(**own, base=scenario, names=changes.names())
    share_truth((scenario, found))
    return found


def whatif_of(campaign: Campaign, changes: Changes, before: Outcomes, after: Outcomes) -> WhatIf:
    """What the change is worth, from what came of both worlds."""
    worlds = {AS_IT_IS: before, CHANGED: after}
    summary = summary_of(
        {
            (world, seed): outcome
            for world, outcomes in worlds.items()
            for (_, _, seed), outcome in outcomes.items()
        }
    )
    label = campaign.choices[0].label
    count = len(campaign.seeds)
    seeds = "one seed" if count == 1 else f"{count} paired seeds"
    title = f"{campaign.scenario.name} under {label}, simulated, {seeds}"
    return WhatIf(title, answer(summary, changes.label), summary, worlds)


def _renamed(jobs: JobTable, names: Mapping[str, str]) -> JobTable:
    kinds = tuple(
        replace(kind, types=tuple(dict.fromkeys(names.get(name, name) for name in kind.types)))
        for kind in jobs.kinds
    )
    return jobs if kinds == jobs.kinds else replace(jobs, kinds=kinds)
