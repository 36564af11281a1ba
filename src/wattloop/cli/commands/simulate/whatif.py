"""`wattloop simulate whatif`: the same jobs on a changed cluster."""

from typing import TYPE_CHECKING, Annotated

import typer

from wattloop.cli.commands.simulate.options import (
    CapCurves,
    Horizon,
    New,
    Seeds,
    Set,
    Throughputs,
    Trace,
    Variant,
    Workers,
)
from wattloop.cli.options import Config, JsonFile, StorePlace
from wattloop.cli.output import check_target, print_table, say, write_json

if TYPE_CHECKING:
    from wattloop.schedule.campaigns.summary import Summary


def whatif_command(  # noqa: PLR0913 - one parameter per option
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="YAML file, or a shipped one by its name.")
    ],
    *,
    replace: Annotated[
        list[str] | None,
        typer.Option("--replace", metavar="OLD=NEW", help="Other GPUs: a100=h100."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="POWER", help="Another power budget: +20kW, -10%, 4500W."),
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option("--nodes", metavar="[GROUP=]N", help="More nodes: +4, a100=+4, h100=8."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy", "-p", help="Who schedules (default: charon under a budget, zeus)."
        ),
    ] = None,
    seeds: Seeds = None,
    workers: Workers = None,
    variant: Variant = None,
    trace: Trace = None,
    horizon: Horizon = None,
    throughputs: Throughputs = None,
    cap_curves: CapCurves = None,
    changes: Set = None,
    new: New = False,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Simulate a scenario and a changed one with the same jobs, and compare them.

    Jobs, the work in them and their deadlines stay as they are in the scenario.
    """
    from wattloop.cli.commands.simulate.execution import SimulateRequest, execute_whatif
    from wattloop.cli.commands.simulate.view import print_remarks
    from wattloop.cli.settings import settings_of
    from wattloop.core.settings import STORE
    from wattloop.schedule.campaigns.whatif import Changes

    check_target(json_file, "--json")
    request = SimulateRequest(
        scenario=scenario,
        settings=settings_of(config, needs=STORE, store=store),
        policies=policy,
        seeds=seeds,
        workers=workers,
        variant=variant,
        trace=trace,
        horizon=horizon,
        throughputs=throughputs or [],
        cap_curves=cap_curves or [],
        changes=changes or [],
        new=new,
        json_file=json_file,
    )
    wanted = Changes(tuple(replace or ()), budget or "", tuple(nodes or ()))
    found = execute_whatif(request, wanted)
    if json_file is not None:
        write_json(found.to_dict(), json_file)
    if json_file != "-":
        _print(found.summary, found.title)
        typer.echo(f"\n{found.sentence}")
        print_remarks(found.summary)
        for note in found.summary.notes:
            say(f"wattloop: {note}")


def _print(summary: "Summary", title: str) -> None:
    from wattloop.report.campaign import COLUMNS, change_text, spread_text
    from wattloop.schedule.campaigns.whatif import AS_IT_IS, CHANGED
    from wattloop.schedule.metrics.metrics import LEAST_PAIRS

    rows: list[tuple[str, ...]] = []
    for column in COLUMNS:
        before, after = (summary.spreads[label].get(column.metric) for label in (AS_IT_IS, CHANGED))
        if before is None and after is None:
            continue
        if column.optional and not any(each and each.mean for each in (before, after)):
            continue
        difference = summary.differences[CHANGED].get(column.metric)
        p_value = None if difference is None else difference.p_value
        rows.append(
            (
                column.header,
                spread_text(before, column),
                spread_text(after, column),
                change_text(difference, column),
                "" if p_value is None else f"{p_value:.2g}",
            )
        )
    headers: tuple[str, ...] = ("", AS_IT_IS, CHANGED, "difference", "p")
    if not any(row[-1] for row in rows):
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    print_table(headers, rows, title=title, spare=("p",))
    if 1 < len(summary.seeds) < LEAST_PAIRS:
        least = 2 / 2 ** len(summary.seeds)
        say(
            f"wattloop: no p: with {len(summary.seeds)} seeds none is below {least:.2g}, however "
            f"sure a difference is; the intervals hold, --seeds {LEAST_PAIRS} or more has a p"
        )
