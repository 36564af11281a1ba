"""What-if comparison: the same jobs on a scenario and on a changed one."""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import nearest
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.cap_curve import static_power
from wattloop.schedule.campaigns.campaign import Campaign, Outcomes
from wattloop.schedule.campaigns.runner import share_predictions
from wattloop.schedule.campaigns.summary import Summary, per_cell, summary_of
from wattloop.schedule.cluster.cluster import Cluster, GpuType
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.scenarios.scenario import Scenario, World
from wattloop.schedule.step_function import SourcedSteps, StepFunction
from wattloop.schedule.yaml_model import watts

AS_IT_IS, CHANGED = "as it is", "changed"
WORDS = {
    "throughput_per_h": "throughput",
    "energy_kwh": "energy",
    "energy_per_job_kwh": "energy per job",
    "jct_mean_s": "mean completion time",
    "peak_power_w": "peak power",
    "carbon_kg": "carbon",
    "cost": "cost",
}
POINTS = {"miss_rate": "missed deadlines"}


def answer(summary: Summary, label: str) -> str:
    """Format the result: `With h100 in place of a100: +12.0% throughput (95%: +10.1 to +14.0)`."""
    differences = summary.differences[CHANGED]
    parts = [
        _format_difference(found.relative, found.relative_half_width, "%", words)
        if found.relative is not None
        else _format_amount(found.mean, found.half_width, words)
        for name, words in WORDS.items()
        if (found := differences.get(name)) is not None
        and (found.relative is not None or found.mean)
    ]
    parts += [
        _format_difference(found.mean, found.half_width, " points", words)
        for name, words in POINTS.items()
        if (found := differences.get(name)) is not None
    ]
    return f"{label}: {', '.join(parts)}."


def _format_difference(share: float, half_share: float | None, unit: str, words: str) -> str:
    """Format a difference; one whose interval contains 0 is called no clear change."""
    mean, half = 100 * share, None if half_share is None else 100 * half_share
    if half is None:
        return f"{mean:+.1f}{unit} {words}" if abs(mean) >= 0.05 else f"the same {words}"
    if abs(mean) + half < 0.05:
        return f"the same {words}"
    interval = f"95%: {mean - half:+.1f} to {mean + half:+.1f}"
    if abs(mean) <= half:
        return f"no clear change of {words} ({interval}{unit})"
    return f"{mean:+.1f}{unit} {words} ({interval})"


def _format_amount(mean: float, half: float | None, words: str) -> str:
    """Format a difference of amounts, in the unit of the tables."""
    if half is None:
        return f"{mean:+.3g} {words}"
    interval = f"95%: {mean - half:+.3g} to {mean + half:+.3g}"
    if abs(mean) <= half:
        return f"no clear change of {words} ({interval})"
    return f"{mean:+.3g} {words} ({interval})"


AMOUNT = re.compile(r"\s*([-+]?)\s*([0-9.]+(?:e[-+]?\d+)?)\s*([a-z%]*)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of a scenario as written by the user; empty for none.

    Attributes:
        replacements: `a100=h100` each: GPU type of the cluster, and its replacement.
        budget: `+20kW`, `-10%`, `4500W`.
        nodes: `+4`, `GROUP=+4`, `GROUP=8` each.
    """

    replacements: tuple[str, ...] = ()
    budget: str = ""
    nodes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.replacements or self.budget or self.nodes)

    @property
    def label(self) -> str:
        """Describe the changes: `With h100 in place of a100 and 4 more nodes`."""
        words = [f"{new} in place of {old}" for old, new in self.names().items()]
        words += [_nodes_said(each) for each in self.nodes]
        if self.budget:
            how = "changed by" if self.budget.strip().startswith(("+", "-")) else "of"
            words.append(f"a power budget {how} {self.budget.strip()}")
        return "With " + " and ".join(words)

    def names(self) -> dict[str, str]:
        found = {}
        for each in self.replacements:
            old, equals, new = (part.strip() for part in each.partition("="))
            if not (old and equals and new):
                raise ConfigError(f"--replace {each}: write OLD=NEW, such as a100=h100")
            found[old] = new
        return found

    def cluster(self, cluster: Cluster) -> Cluster:
        for old, new in self.names().items():
            cluster = with_replaced(cluster, old, new)
        for each in self.nodes:
            cluster = with_nodes(cluster, each)
        return cluster


def with_replaced(cluster: Cluster, old: str, new: str) -> Cluster:
    """Replace every GPU of a type by another, one for one.

    Hosts and network stay. A new type that the cluster already has keeps its description there. The
    idle power of other types comes from the data sheet or the usual share.
    """
    types = {each.name: each for each in cluster.types}
    if old not in types:
        raise ConfigError(f"--replace {old}={new}: no GPU type '{old}'; {nearest(old, [*types])}")
    if new not in types:
        try:
            gpu = gpu_named(new)
        except ConfigError as error:
            raise ConfigError(f"--replace {old}={new}: {error}") from None
        types[new] = GpuType(new, gpu, static_power(gpu).watts)
    groups = tuple(
        replace(group, type_name=new) if group.type_name == old else group
        for group in cluster.groups
    )
    used = tuple(kind for kind in types.values() if kind.name in {g.type_name for g in groups})
    return replace(cluster, types=used, groups=groups)


def with_nodes(cluster: Cluster, text: str) -> Cluster:
    """Change the number of nodes: `GROUP=+4`, `GROUP=8`, or `+4` in all.

    Without a group, the nodes are distributed over all groups in proportion to their size.
    """
    name, equals, amount = (part.strip() for part in text.rpartition("="))
    match = re.fullmatch(r"([-+]?)(\d+)", amount)
    if match is None or (not equals and not match[1]):
        raise ConfigError(f"--nodes {text}: write +4, -1, GROUP=+4 or GROUP=8")
    counts = {group.name: group.nodes for group in cluster.groups}
    number = int(match[2])
    signed = -number if match[1] == "-" else number
    if not equals:
        sign = -1 if match[1] == "-" else 1
        more = dict(zip(counts, _dealt(number, list(counts.values())), strict=True))
        counts = {group: had + sign * more[group] for group, had in counts.items()}
    elif name not in counts:
        raise ConfigError(f"--nodes {text}: no group '{name}'; {nearest(name, [*counts])}")
    else:
        counts[name] = counts[name] + signed if match[1] else number
    for group, nodes in counts.items():
        if nodes < 1:
            raise ConfigError(f"--nodes {text}: group '{group}' would have {nodes} nodes")
    return _renumbered(cluster, counts)


def with_budget(budget_w: StepFunction | None, text: str) -> StepFunction:
    """Change the budget: `+20kW` and `-10%` are relative, `4500W` replaces it."""
    match = AMOUNT.fullmatch(text)
    if match is None:
        raise ConfigError(f"--budget {text}: write +20kW, -10% or 4500W")
    sign, number, unit = match.groups()
    if sign and (budget_w is None or not any(map(math.isfinite, budget_w.values))):
        raise ConfigError(
            f"--budget {text}: the scenario has no power budget to change; give one such as 4500W"
        )
    if unit == "%":
        if not sign or budget_w is None:
            raise ConfigError(f"--budget {text}: a share needs a sign; write +10% or -10%")
        factor = 1 + float(f"{sign}{number}") / 100
        return replace(budget_w, values=tuple(value * factor for value in budget_w.values))
    try:
        amount_w = float(watts(f"{number} {unit}"))
    except ValueError as error:
        raise ConfigError(f"--budget {text}: {error}") from None
    if not sign or budget_w is None:
        return StepFunction.constant(amount_w)
    more_w = -amount_w if sign == "-" else amount_w
    return replace(budget_w, values=tuple(value + more_w for value in budget_w.values))


def _nodes_said(text: str) -> str:
    group, _, amount = (part.strip() for part in text.rpartition("="))
    number = amount.lstrip("+-")
    more = {"+": " more", "-": " fewer"}.get(amount[:1], "")
    of = f" of {group}" if group else ""
    return f"{number}{more} node{'s' * (number != '1')}{of}"


def _dealt(number: int, sizes: list[int]) -> list[int]:
    """Distribute `number` nodes over groups in proportion to their sizes (largest remainder)."""
    exact = [number * size / sum(sizes) for size in sizes]
    found = [int(each) for each in exact]
    by_rest = sorted(range(len(sizes)), key=lambda at: found[at] - exact[at])
    for at in by_rest[: number - sum(found)]:
        found[at] += 1
    return found


def _renumbered(cluster: Cluster, counts: dict[str, int]) -> Cluster:
    """Return the cluster with these node counts; outages stay with their nodes."""
    groups = tuple(replace(group, nodes=counts[group.name]) for group in cluster.groups)
    changed = replace(cluster, groups=groups)
    failures = cluster.failures
    if failures is None or not failures.outages:
        return changed
    numbers = {name: number for number, name in enumerate(changed.node_names)}
    kept = tuple(
        outage._replace(node=numbers[cluster.node_names[outage.node]])
        for outage in failures.outages
        if cluster.node_names[outage.node] in numbers
    )
    return replace(changed, failures=replace(failures, outages=kept))


@dataclass(frozen=True)
class ChangedScenario(Scenario):
    """Scenario with another cluster or budget and the jobs of its base scenario.

    The work and deadlines of jobs are derived from the machines of the base scenario. The changed
    machines must get the same work and the same deadlines.

    Attributes:
        names: GPU type -> its replacement in jobs that ask for it.
    """

    base: Scenario | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def world(self, seed: int) -> World:
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
        """Check that some job can use each new GPU type; otherwise those GPUs would only idle."""
        for old, new in self.names.items():
            index = [kind.name for kind in self.cluster.types].index(new)
            if not any(index in self.truth.options(kind).type_index for kind in jobs.kinds):
                raise ConfigError(
                    f"--replace {old}={new}: no job of {self.name} could use {new}: the oracle "
                    "knows none of their models on it, or none fits into its memory"
                )

    def digest(self) -> str:
        assert self.base is not None
        return hashlib.sha256(f"{super().digest()} {self.base.digest()}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Result of a what-if comparison, paired by seed.

    Attributes:
        summary: summary of the scenarios `as it is` and `changed`, in place of policies.
        outcomes: the same -> outcomes of its simulations.
    """

    title: str
    sentence: str
    summary: Summary
    outcomes: Mapping[str, Outcomes]

    def to_dict(self) -> dict[str, Any]:
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
    if not changes:
        raise ConfigError("no change given; use --replace OLD=NEW, --budget POWER or --nodes +N")
    if scenario.variants:
        known = ", ".join(scenario.variants)
        raise ConfigError(
            f"{scenario.name} has variants ({known}), what-if compares two worlds; name one with "
            "--variant"
        )
    budget = scenario.budget
    if changes.budget:
        steps = with_budget(None if budget is None else budget.steps, changes.budget)
        budget = SourcedSteps(steps, f"--budget {changes.budget}")
    cluster = changes.cluster(scenario.cluster)
    own = {each.name: getattr(scenario, each.name) for each in fields(Scenario)}
    own |= {"cluster": cluster, "budget": budget, "name": f"{scenario.name}/whatif"}
    found = ChangedScenario(**own, base=scenario, names=changes.names())
    share_predictions((scenario, found))
    return found


def compare_whatif(
    campaign: Campaign, changes: Changes, before: Outcomes, after: Outcomes
) -> WhatIf:
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
