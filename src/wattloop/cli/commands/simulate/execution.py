"""Execution of campaigns from the command line."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import typer

from wattloop.cli.output import say, write_json
from wattloop.cli.progress import counted_trials, is_redrawable
from wattloop.core.errors import ConfigError
from wattloop.core.paths import user_path
from wattloop.core.settings import Settings
from wattloop.core.units import format_duration
from wattloop.schedule.campaigns.campaign import SimulationJob
from wattloop.schedule.campaigns.runner import CampaignCallback
from wattloop.store.experiments import Experiment

if TYPE_CHECKING:
    from wattloop.schedule.campaigns.campaign import Campaign, Outcomes, PolicyChoice
    from wattloop.schedule.campaigns.whatif import Changes, WhatIf
    from wattloop.schedule.scenarios.scenario import Scenario
    from wattloop.store.database import Store


FLAGS = {
    "budget": "--budget ",
    "engine.horizon": "--horizon ",
    "jobs.trace.file": "--trace ",
}


"""Field that an option changes -> that option."""


@dataclass(slots=True, kw_only=True)
class SimulateRequest:
    """Options of `simulate`; None or empty means not given."""

    scenario: str
    settings: Settings
    policies: str | None = None
    seeds: str | None = None
    workers: int | None = None
    variant: str | None = None
    trace: str | None = None
    budget: str | None = None
    horizon: str | None = None
    throughputs: list[str] = field(default_factory=list)
    cap_curves: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    max_delay: str | None = None
    check: bool = False
    plot: str | None = None
    new: bool = False
    json_file: str | None = None


def scenario_of(request: SimulateRequest) -> "Scenario":
    """Return the scenario of a file with the options applied.

    Raises:
        ConfigError: not there, or wrong; names file, line and field, or the option.
    """
    from wattloop.schedule.scenarios.file import load_scenario

    if request.cap_curves and not request.throughputs:
        raise ConfigError("--cap-curves goes with --throughputs: caps of which throughputs?")
    fields = _fields(request)
    try:
        scenario = load_scenario(request.scenario, fields)
    except ConfigError as error:
        if fields and _is_fine(request.scenario):
            raise ConfigError(_of_options(str(error), fields)) from None
        raise
    if request.variant is None:
        return scenario
    if request.variant not in scenario.variants:
        from wattloop.core.yaml_spec import nearest
        from wattloop.schedule.campaigns.campaign import AS_WRITTEN

        if request.variant == AS_WRITTEN:
            return replace(scenario, variants={})
        known = list(scenario.variants)
        said = nearest(request.variant, known) if known else "it has none"
        raise ConfigError(
            f"--variant {request.variant}: {scenario.name} has no such variant; {said}"
        )
    return scenario.variants[request.variant]


def _is_fine(name: str) -> bool:
    """Return True when the file alone is valid, so that an option is at fault."""
    from wattloop.schedule.scenarios.file import load_scenario

    try:
        load_scenario(name)
    except ConfigError:
        return False
    return True


def _of_options(message: str, fields: Mapping[str, Any]) -> str:
    """Report errors by the option at fault instead of by a line of a valid file."""
    words = []
    for name, value in fields.items():
        if name == "oracle":
            words += [f"--throughputs {file}" for file in value["throughputs"]]
        elif value is not None:
            words.append(f"{FLAGS.get(name, f'--set {name}=')}{value}")
    faults = [re.sub(r"^.*?\.ya?ml(:\d+)?: ", "", line) for line in message.splitlines()]
    return f"{' '.join(words)}: {'; '.join(faults)}"


def _fields(request: SimulateRequest) -> dict[str, Any]:
    """Return dotted field -> value for all options that change the scenario."""
    import yaml

    found: dict[str, Any] = {}
    for change in request.changes:
        name, equals, value = change.partition("=")
        if not (name.strip() and equals):
            raise ConfigError(f"--set {change}: write FIELD=VALUE, such as engine.horizon=10h")
        try:
            found[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"--set {change}: {value!r} is not a YAML value") from None
    given: Mapping[str, Any] = {
        "budget": request.budget,
        "engine.horizon": request.horizon,
        "jobs.trace.file": _here(request.trace),
    }
    found |= {name: value for name, value in given.items() if value is not None}
    if request.throughputs:
        from wattloop.schedule.scenarios.file import load_scenario

        found["oracle"] = {
            "kind": "table",
            "noise": load_scenario(request.scenario, found).oracle.noise,
            "throughputs": [_here(name) for name in request.throughputs],
            "cap_curves": [_here(name) for name in request.cap_curves],
        }
    return found


def _here(name: str | None) -> str | None:
    """Resolve a path from the command line against the working folder."""
    return None if name is None else str(user_path(name).absolute())


def choices_of(request: SimulateRequest, scenario: "Scenario") -> "tuple[PolicyChoice, ...]":
    """Return the chosen policies, or those of the scenario."""
    from wattloop.schedule.campaigns.campaign import PolicyChoice
    from wattloop.schedule.policies.registry import POLICIES, split_policies

    given: Sequence[str | Mapping[str, Any]] = scenario.policies
    if request.policies is not None:
        is_all = request.policies.strip() == "all"
        given = tuple(POLICIES) if is_all else split_policies(request.policies)
    if request.max_delay is not None:
        given = _with_delay(given, request.max_delay)
    return tuple(PolicyChoice.named(each) for each in given)


def _with_delay(
    given: Sequence[str | Mapping[str, Any]], delay: str
) -> list[str | Mapping[str, Any]]:
    """Apply `--max-delay` to each policy that supports it."""
    from wattloop.schedule.policies.registry import with_parameter

    found = [(each, with_parameter(each, "max_delay", delay)) for each in given]
    if not any(changed for _, changed in found):
        raise ConfigError(
            f"--max-delay {delay}: none of these policies promises a delay; add --policies helios"
        )
    return [each if changed is None else changed for each, changed in found]


def seeds_of(request: SimulateRequest, scenario: "Scenario") -> tuple[int, ...]:
    """Return the chosen seeds, or those of the scenario."""
    from wattloop.schedule.campaigns.campaign import seeds_from

    return scenario.seeds if request.seeds is None else seeds_from(request.seeds)


@contextmanager
def progress() -> Iterator[CampaignCallback]:
    """Draw a bar on a terminal; elsewhere print a line at the beginning and one per failure."""
    if not is_redrawable():
        yield _Lines()
        return
    with counted_trials() as bar:
        yield _OnTerminal(bar)


class _Lines(CampaignCallback):
    """Progress as lines: the beginning, and failures."""

    def begins(self, experiment: Experiment, cells: int, known: int, *, resumed: bool) -> None:
        what = f"{cells} simulation{'s' * (cells != 1)}"
        if known == cells:
            say(f"wattloop: {experiment.experiment_id}: {what}, known already")
            return
        verb = "going on with" if resumed else "beginning"
        had = f", {known} of them known already" if known else ""
        say(f"wattloop: {verb} {experiment.experiment_id}: {what}{had}")

    def ended(self, cell: SimulationJob, outcome: Mapping[str, Any], left_s: float) -> None:
        if "error" in outcome:
            say(f"wattloop: {cell.label}: failed: {outcome['error']}")


class _OnTerminal(_Lines):
    def __init__(self, bar: Any) -> None:
        self._bar, self._task = bar, None

    def begins(self, experiment: Experiment, cells: int, known: int, *, resumed: bool) -> None:
        """How long the bar is."""
        super().begins(experiment, cells, known, resumed=resumed)
        self._task = self._bar.add_task("", total=cells, completed=known, left="")

    def ended(self, cell: SimulationJob, outcome: Mapping[str, Any], left_s: float) -> None:
        """One more."""
        super().ended(cell, outcome, left_s)
        left = f"left: {format_duration(left_s)}"
        self._bar.update(self._task, advance=1, left=left, description=cell.label)


def execute(request: SimulateRequest) -> None:
    """Run a campaign and show its results."""
    from wattloop.cli.commands.simulate.view import campaign_dict, print_outcomes
    from wattloop.schedule.campaigns.campaign import Campaign
    from wattloop.store.database import open_store
    from wattloop.store.experiments import find_experiment

    if request.plot is not None:
        from wattloop.report.figures.render import needs_libraries, writable_folder

        needs_libraries()
        writable_folder(user_path(request.plot))
    scenario = scenario_of(request)
    campaign = Campaign(
        scenario, choices_of(request, scenario), seeds_of(request, scenario), request.check
    )
    with open_store(request.settings.store_location) as store:
        experiment, outcomes = _carried_out(campaign, store, request)
        experiment = find_experiment(store, experiment.experiment_id)
    if request.json_file is not None:
        write_json(campaign_dict(experiment, outcomes), request.json_file)
    if request.json_file != "-":
        print_outcomes(experiment, outcomes)
    if request.plot is not None:
        from wattloop.cli.commands.simulate.view import draw

        draw(campaign, outcomes, user_path(request.plot))
    if any("error" in outcome for outcome in outcomes.values()):
        raise typer.Exit(1)


def execute_whatif(request: SimulateRequest, changes: "Changes") -> "WhatIf":
    """Simulate both scenarios and show the effect of the change."""
    from wattloop.schedule.campaigns.campaign import Campaign
    from wattloop.schedule.campaigns.whatif import changed_scenario, whatif_of
    from wattloop.schedule.policies.registry import POLICIES
    from wattloop.store.database import open_store

    scenario = scenario_of(request)
    then = changed_scenario(scenario, changes)
    if request.policies is None:
        keeps_budget = then.budget is not None and "charon" in POLICIES
        request.policies = "charon" if keeps_budget else "zeus"
    choices = choices_of(request, scenario)
    if len(choices) > 1:
        raise ConfigError(f"--policy {request.policies}: one policy; what-if compares two worlds")
    seeds = seeds_of(request, scenario)
    worlds = [Campaign(each, choices, seeds, request.check) for each in (scenario, then)]
    with open_store(request.settings.store_location) as store:
        before, after = (_carried_out(each, store, request)[1] for each in worlds)
    failed = [
        each["error"] for found in (before, after) for each in found.values() if "error" in each
    ]
    if failed:
        say(f"wattloop: {len(failed)} simulations failed; the first: {failed[0]}")
        raise typer.Exit(1)
    return whatif_of(worlds[0], changes, before, after)


def _carried_out(
    campaign: "Campaign", store: "Store", request: SimulateRequest
) -> "tuple[Experiment, Outcomes]":

    from wattloop.schedule.campaigns.runner import run_campaign

    workers = _processors() if request.workers is None else request.workers
    try:
        with progress() as listener:
            return run_campaign(
                campaign, store, workers=workers, new=request.new, listener=listener
            )
    except KeyboardInterrupt:
        say("wattloop: interrupted; the same command goes on, what has ended is kept")
        raise


def _processors() -> int:
    return len(os.sched_getaffinity(0))
