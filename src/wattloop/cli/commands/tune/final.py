"""`wattloop tune final`: train the winner in full and measure its saving."""

from typing import TYPE_CHECKING, Annotated

import typer

from wattloop.cli.commands.tune.view import value_text
from wattloop.cli.options import Config, Devices, Interval, JsonFile, Meters, StorePlace
from wattloop.cli.output import check_target, print_table, say, write_json
from wattloop.core.units import format_duration, format_energy, format_number

if TYPE_CHECKING:
    from wattloop.tune.final import FinalResult, FullRun


def final_command(
    which: Annotated[
        str, typer.Argument(metavar="[SEARCH]", help="Identifier, its beginning, name or 'last'.")
    ] = "last",
    *,
    to_the_end: Annotated[
        bool, typer.Option("--to-the-end", help="Go on after the target was reached.")
    ] = False,
    json_file: JsonFile = None,
    interval: Interval = None,
    devices: Devices = None,
    meters: Meters = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Train the best configuration in full, measure it, and show when the search pays off."""
    from wattloop.cli.commands.tune.execution import busy
    from wattloop.cli.experiments import say_which
    from wattloop.cli.settings import settings_of
    from wattloop.store.database import open_store
    from wattloop.store.experiments import find_experiment
    from wattloop.tune.final import train_final

    check_target(json_file, "--json")
    settings = settings_of(config, interval=interval, devices=devices, meters=meters, store=store)
    with open_store(settings.store_location) as place:
        say_which(place, which, "search")
        search = find_experiment(place, which, "search")
        what = f"training the best configuration of {search.name or search.experiment_id} in full"
        with busy(f"{what}, and the default for comparison"):
            result = train_final(search.experiment_id, place, settings, to_the_end=to_the_end)
    if json_file is not None:
        write_json(result.to_dict(), json_file)
    if json_file != "-":
        print_final(result)


def print_final(result: "FinalResult") -> None:
    """Print both configurations, and the saving in one sentence."""
    from wattloop.tune.final import format_saving

    rows = [_row("best", result.winner)]
    if result.default is not None and result.default is not result.winner:
        rows.append(_row("default", result.default))
    print_table(("run", "configuration", "quality", "epochs", "energy", "time", "where from"), rows)
    if result.winner.files:
        print(f"what it saved is in {result.winner.files}")  # noqa: T201 - the answer
    print(format_saving(result))  # noqa: T201 - the answer
    for note in result.notes:
        say(f"wattloop: note: {note}")


def _row(name: str, run: "FullRun") -> tuple[str, ...]:
    pairs = {**run.parameters, **run.levers}
    setting = " ".join(f"{key}={value_text(value)}" for key, value in pairs.items())
    energy = "not known"
    if run.energy_j is not None:
        energy = f"{format_energy(run.energy_j)} ± {format_energy(run.uncertainty_j)}"
    where = "the search" if run.from_search else "this run"
    return (
        name,
        setting,
        "-" if run.quality is None else format_number(run.quality),
        f"{run.epochs:g}",
        energy,
        format_duration(run.time_s),
        f"{where}, {run.provenance}" + (f"; {run.status}" if run.message else ""),
    )
