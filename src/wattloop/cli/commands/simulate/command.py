"""Commands of `wattloop simulate`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattloop.cli.app import RUN, StoreOptions, UsualCommandGroup, Verb
from wattloop.cli.commands.simulate.scenario import (
    Budget,
    New,
    ScenarioOptions,
    Seeds,
    Trace,
    Variant,
    Workers,
    read_scenario,
)
from wattloop.cli.options import JsonFile, argument, file_option, option
from wattloop.cli.output import check_target, present, print_rows, say, write_json, write_text
from wattloop.cli.stored import add_list_command, stored
from wattloop.cli.stored import which as which_one
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.table import Table, records_csv
from wattloop.core.units import format_number, iso_time

if TYPE_CHECKING:
    from wattloop.schedule.campaigns.campaign import Campaign, Outcomes, PolicyChoice
    from wattloop.schedule.scenarios.scenario import Scenario
    from wattloop.store.database import Store
    from wattloop.store.experiments import Experiment

KIND = "campaign"
Which = Annotated[str, which_one("CAMPAIGN")]
app = Verb(
    "Compare scheduling policies on a simulated GPU cluster: energy, waiting, deadlines.",
    example="wattloop simulate thesis-pareto --policies fifo,pollux,zeus --seeds 10\n"
    "wattloop simulate whatif thesis-pareto --replace a100=h100",
    cls=UsualCommandGroup,
)


@app.command(RUN, example="wattloop simulate thesis-pareto --policies fifo,pollux,zeus --seeds 10")
def run_command(  # noqa: PLR0913 - one parameter per option
    scenario: str = argument("SCENARIO", "YAML file, or a shipped one by its name."),
    *,
    policies: str | None = option(
        "--policies -p LIST",
        "Such as fifo,pollux,zeus{age_weight_per_s: 0.01}; 'all' is every one "
        "(default: the scenario's).",
    ),
    max_delay: str | None = option(
        "--max-delay SHARE",
        "How much longer than at full power jobs may take under helios, such as 10%.",
    ),
    seeds: Seeds = None,
    workers: Workers = None,
    variant: Variant = None,
    trace: Trace = None,
    budget: Budget = None,
    changed: ScenarioOptions,
    check: bool = option("--check", "Look after every event that all invariants hold."),
    plot: str | None = file_option("--plot -o FOLDER", "Draw what came of it (SVG, PNG, HTML)."),
    new: New = False,
    given: StoreOptions,
) -> None:
    """Simulate policies on the same seeds, and compare them.

    Every finished simulation is stored: the same command resumes a stopped campaign, and computes
    nothing twice.
    """
    from wattloop.cli.commands.simulate import view
    from wattloop.schedule.campaigns.campaign import Campaign
    from wattloop.store.database import open_store
    from wattloop.store.experiments import find_experiment

    settings = given.settings()
    if plot is not None:
        from wattloop.report.figures.render import check_drawable

        check_drawable(plot)
    world = read_scenario(scenario, variant=variant, trace=trace, budget=budget, **vars(changed))
    campaign = Campaign(world, _choices(policies, world, max_delay), _seeds(seeds, world), check)
    with open_store(settings.store_location) as store:
        experiment, outcomes = _carry_out(campaign, store, workers, new=new)
        experiment = find_experiment(store, experiment.experiment_id)
    given.present(
        lambda: view.campaign_dict(experiment, outcomes),
        lambda: view.print_outcomes(experiment, outcomes),
    )
    if plot is not None:
        view.draw(campaign, outcomes, user_path(plot))
    if any("error" in outcome for outcome in outcomes.values()):
        raise typer.Exit(1)


def _choices(
    policies: str | None, scenario: "Scenario", delay: str | None = None
) -> "tuple[PolicyChoice, ...]":
    """Return the chosen policies, or those of the scenario; `delay` for those that promise one."""
    from wattloop.schedule.campaigns.campaign import PolicyChoice
    from wattloop.schedule.policies.registry import POLICIES, split_policies, with_parameter

    given: Sequence[str | Mapping[str, Any]] = scenario.policies
    if policies is not None:
        given = tuple(POLICIES) if policies.strip() == "all" else split_policies(policies)
    if delay is not None:
        changed = [with_parameter(each, "max_delay", delay) for each in given]
        if not any(changed):
            raise ConfigError(
                f"--max-delay {delay}: none of these policies promises a delay; add --policies "
                "helios"
            )
        given = [new or old for old, new in zip(given, changed, strict=True)]
    return tuple(PolicyChoice.named(each) for each in given)


def _seeds(seeds: str | None, scenario: "Scenario") -> tuple[int, ...]:
    from wattloop.schedule.campaigns.campaign import seeds_from

    return scenario.seeds if seeds is None else seeds_from(seeds)


def _carry_out(
    campaign: "Campaign", store: "Store", workers: int | None, *, new: bool
) -> "tuple[Experiment, Outcomes]":
    from wattloop.cli.commands.simulate.view import progress
    from wattloop.schedule.campaigns.runner import run_campaign

    processes = len(os.sched_getaffinity(0)) if workers is None else workers
    try:
        with progress() as listener:
            return run_campaign(campaign, store, workers=processes, new=new, listener=listener)
    except KeyboardInterrupt:
        say("wattloop: interrupted; finished simulations are stored, the same command continues")
        raise


@app.command("whatif", example="wattloop simulate whatif thesis-pareto --replace a100=h100")
def whatif_command(  # noqa: PLR0913 - one parameter per option
    scenario: str = argument("SCENARIO", "YAML file, or a shipped one by its name."),
    *,
    replace: list[str] | None = option("--replace OLD=NEW", "Other GPUs: a100=h100."),
    budget: str | None = option("--budget POWER", "Another power budget: +20kW, -10%, 4500W."),
    nodes: list[str] | None = option("--nodes [GROUP=]N", "More nodes: +4, a100=+4, h100=8."),
    policy: str | None = option(
        "--policy -p POLICY", "Who schedules (default: charon under a budget, zeus)."
    ),
    seeds: Seeds = None,
    workers: Workers = None,
    variant: Variant = None,
    trace: Trace = None,
    changed: ScenarioOptions,
    new: New = False,
    given: StoreOptions,
) -> None:
    """Simulate a scenario and a changed one with the same jobs, and compare them.

    Jobs, the work in them and their deadlines stay as they are in the scenario.
    """
    from wattloop.cli.commands.simulate.view import print_whatif
    from wattloop.schedule.campaigns.campaign import Campaign
    from wattloop.schedule.campaigns.whatif import Changes, changed_scenario, compare_whatif
    from wattloop.schedule.policies.registry import POLICIES
    from wattloop.store.database import open_store

    settings = given.settings()
    world = read_scenario(scenario, variant=variant, trace=trace, **vars(changed))
    wanted = Changes(tuple(replace or ()), budget or "", tuple(nodes or ()))
    then = changed_scenario(world, wanted)
    if policy is None:
        keeps_budget = then.budget is not None and "charon" in POLICIES
        policy = "charon" if keeps_budget else "zeus"
    choices = _choices(policy, world)
    if len(choices) > 1:
        raise ConfigError(f"--policy {policy}: one policy; what-if compares two worlds")
    worlds = [Campaign(each, choices, _seeds(seeds, world)) for each in (world, then)]
    with open_store(settings.store_location) as store:
        before, after = (_carry_out(each, store, workers, new=new)[1] for each in worlds)
    failed = [
        each["error"] for found in (before, after) for each in found.values() if "error" in each
    ]
    if failed:
        say(f"wattloop: {len(failed)} simulations failed; the first: {failed[0]}")
        raise typer.Exit(1)
    found = compare_whatif(worlds[0], wanted, before, after)
    given.present(found.to_dict, lambda: print_whatif(found))


def _list_row(place: "Store", experiment: "Experiment") -> dict[str, Any]:
    from wattloop.schedule.campaigns.store import known_outcomes

    return {
        "campaign": experiment.experiment_id,
        "scenario": experiment.name,
        "status": experiment.status,
        "simulations": len(known_outcomes(place, experiment)),
        "policies": experiment.spec.get("policies", []),
        "seeds": experiment.spec.get("seeds", ""),
        "created": iso_time(experiment.created_wall_s),
    }


def _list_table(rows: Sequence[dict[str, Any]]) -> Table:
    headers = ("campaign", "scenario", "status", "simulations", "policies", "seeds")
    texts = [
        [", ".join(row[h]) if h == "policies" else str(row[h]) for h in headers] for row in rows
    ]
    return Table.of(headers, texts, spare=("seeds", "policies"))


def _of_studies(place: "Store") -> Mapping[str, "Experiment"]:
    from wattloop.study.record import study_campaigns

    return study_campaigns(place)


add_list_command(
    app,
    KIND,
    plural="campaigns",
    example="wattloop simulate thesis-pareto --policies fifo,pollux,zeus",
    row=_list_row,
    as_dict=dict,
    table=_list_table,
    folded=_of_studies,
)


@app.command("show", example="wattloop simulate show")
def show_command(which: Which = "last", *, given: StoreOptions) -> None:
    """Show the results of a campaign, also of an unfinished one."""
    from wattloop.cli.commands.simulate.view import campaign_dict, print_outcomes
    from wattloop.schedule.campaigns.store import known_outcomes

    with stored(KIND, which, given) as (place, campaign):
        outcomes = known_outcomes(place, campaign)
        given.present(
            lambda: campaign_dict(campaign, outcomes), lambda: print_outcomes(campaign, outcomes)
        )


@app.command("export", example="wattloop simulate export last -o campaign.csv")
def export_command(
    which: Which = "last",
    *,
    csv_file: str | None = file_option(
        "--csv -o FILE", "A row per policy and seed; - is the output."
    ),
    given: StoreOptions,
) -> None:
    """Write every simulation of a campaign as CSV (default) or JSON."""
    from wattloop.cli.commands.simulate.view import campaign_dict
    from wattloop.schedule.campaigns.store import known_outcomes
    from wattloop.schedule.campaigns.summary import per_cell

    with stored(KIND, which, given) as (place, experiment):
        outcomes = known_outcomes(place, experiment)
    if given.json_file is not None:
        write_json(campaign_dict(experiment, outcomes), given.json_file)
    elif csv_file is None:
        csv_file = "-"
    if csv_file is not None:
        write_text(_csv(per_cell(outcomes)), csv_file, "--csv")


def _csv(rows: list[dict[str, Any]]) -> str:
    """Return a row per simulation: utilisation by type in columns; lists are in JSON only."""
    flat = []
    for row in rows:
        used = row.get("utilisation") or {}
        plain = {name: value for name, value in row.items() if not isinstance(value, dict | list)}
        flat.append(plain | {f"utilisation.{kind}": value for kind, value in used.items()})
    return records_csv(flat, "policy", "seed")


@app.command("scenarios", example="wattloop simulate scenarios")
def scenarios_command(*, json_file: JsonFile = None) -> None:
    """List the scenarios that come with Wattloop."""
    from wattloop.schedule.scenarios.file import shipped_scenarios

    known = shipped_scenarios()
    rows = list(known.items())
    present(json_file, lambda: known, lambda: print_rows(("scenario", "what it is"), rows))


@app.command("policies", example="wattloop simulate policies")
def policies_command(*, json_file: JsonFile = None) -> None:
    """List the policies, what each ranks jobs by, and its parameters."""
    from wattloop.schedule.policies.registry import policy_cards

    cards = policy_cards()
    rows = [
        (
            card.name,
            card.summary,
            ", ".join(f"{name}: {_short(value)}" for name, value in card.parameters.items()),
        )
        for card in cards
    ]
    present(
        json_file,
        lambda: [asdict(card) for card in cards],
        lambda: print_rows(("policy", "what it does", "parameters"), rows),
    )


def _short(value: object) -> str:
    return format_number(value, 3) if isinstance(value, float) else str(value)


@app.command("init", example="wattloop simulate init mine.yaml")
def init_command(
    target: str = argument("FILE.yaml", "Where to; - is standard output.", "scenario.yaml"),
    *,
    json_file: JsonFile = None,
) -> None:
    """Write an example scenario to edit."""
    from wattloop.schedule.scenarios.file import SHIPPED

    check_target(target, "FILE")
    if target != "-" and user_path(target).exists():
        raise ConfigError(f"{target}: is there already; name another file, or remove it")
    text = SHIPPED.with_name("example.yaml").read_text(encoding="utf-8")
    write_text(text, target, "FILE")
    write_json({"file": target}, json_file)
    if target != "-":
        say(f"wattloop: {target} is written; edit it, then: wattloop simulate {target}")


app.add_plot("simulate", "CAMPAIGN", ("trade-off",), "throughput against energy")
