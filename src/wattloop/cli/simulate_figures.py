"""`simulate --plot FOLDER`: what came of a campaign, drawn as in the thesis."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattloop.cli.output import say
from wattloop.cli.progress import spinner
from wattloop.report.figures.campaign import goal_figures, load_figure, trade_off_figure
from wattloop.report.figures.cluster_power import over_time_figures
from wattloop.report.figures.render import save
from wattloop.schedule.campaigns.outcome import simulated
from wattloop.schedule.campaigns.summary import per_cell

if TYPE_CHECKING:
    from wattloop.schedule.campaigns.campaign import Campaign, Outcomes

__all__ = ["draw"]

Rows = list[dict[str, Any]]
MOST_VARIANTS = 3


def draw(campaign: "Campaign", outcomes: "Outcomes", folder: Path) -> None:
    """Write all figures that there is data for."""
    rows = [row for row in per_cell(outcomes) if row.get("error") is None]
    if not rows:
        say("wattloop: nothing to draw")
        return
    said = f"{campaign.scenario.name}, simulated"
    setting = "variant" if campaign.scenario.variants else None
    with spinner("drawing"):
        charts = {"throughput-energy": trade_off_figure(rows, said, setting=setting)}
        charts |= _by_load(campaign, rows, said)
        over_time = _drawn_over_time(list(campaign.scenarios))
        for variant in campaign.scenarios:
            own = [row for row in rows if row.get("variant", "") == variant]
            found = goal_figures(own, f"{campaign.scenarios[variant].name}, simulated")
            if variant in over_time:
                found |= _over_time(campaign, variant, own)
            end = f"-{variant}" if variant else ""
            charts |= {f"{name}{end}": chart for name, chart in found.items()}
        notes = [campaign.scenario.description] if campaign.scenario.description else []
        written = save(charts, folder, title=campaign.scenario.name, notes=notes)
    say(f"wattloop: {len(charts)} figures in {folder}: see {written[-1]}")


def _by_load(campaign: "Campaign", rows: Rows, said: str) -> dict[str, Any]:
    """Completion time against the arrival rate, where variants differ in that."""
    made = {name: each.jobs.generate for name, each in campaign.scenarios.items()}
    rates = {name: each.rate_per_s for name, each in made.items() if each is not None}
    if len(set(rates.values())) < 2 or len(rates) < len(made):
        return {}
    with_rates = [
        row | {"rate_per_s": rates[row["variant"]]} for row in rows if row["jct_mean_s"] is not None
    ]
    return {"completion-load": load_figure(with_rates, said)}


def _drawn_over_time(variants: list[str]) -> list[str]:
    """Of a sweep of many variants the first and the last: more charts than anybody looks at."""
    return variants if len(variants) <= MOST_VARIANTS else [variants[0], variants[-1]]


def _over_time(campaign: "Campaign", variant: str, rows: Rows) -> dict[str, Any]:
    """Power, and who had which GPU, on the first seed."""
    scenario, seed = campaign.scenarios[variant], campaign.seeds[0]
    world = scenario.world(seed)
    ended = {row["policy"] for row in rows}
    results = {
        choice.label: simulated(world, choice)
        for choice in campaign.choices
        if choice.label in ended
    }
    return over_time_figures(results, world.truth, f"{scenario.name}, simulated, seed {seed}")
