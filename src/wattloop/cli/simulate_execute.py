"""Doing what `wattloop simulate` was asked to do."""

import os
from typing import TYPE_CHECKING

import typer

from wattloop.cli.output import say, write_json
from wattloop.cli.simulate_request import SimulateRequest, choices_of, scenario_of, seeds_of
from wattloop.core.errors import ConfigError
from wattloop.core.user_code import user_path

if TYPE_CHECKING:
    from wattloop.schedule.campaigns.campaign import Campaign, Outcomes
    from wattloop.schedule.campaigns.whatif import Changes, WhatIf
    from wattloop.store.database import Store
    from wattloop.store.experiments import Experiment

__all__ = ["execute", "execute_whatif"]


def execute(request: SimulateRequest) -> None:
    """Carry out a campaign and show what came of it."""
    from wattloop.cli.simulate_view import campaign_dict, print_outcomes
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
        from wattloop.cli.simulate_figures import draw

        draw(campaign, outcomes, user_path(request.plot))
    if any("error" in outcome for outcome in outcomes.values()):
        raise typer.Exit(1)


def execute_whatif(request: SimulateRequest, changes: "Changes") -> "WhatIf":
    """Both worlds, and what the change is worth."""
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
    from wattloop.cli.simulate_progress import progress
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
