"""`wattloop advise`: energy that a run wasted, and how to save it."""

import sys
import textwrap
from typing import TYPE_CHECKING

from wattloop.cli.app import StoreOptions, Verb
from wattloop.cli.options import argument
from wattloop.cli.output import say, write_json

if TYPE_CHECKING:
    from wattloop.advise.advice import Advice
    from wattloop.core.settings import Settings
    from wattloop.store.database import Store


app = Verb()
WIDTH = 96
IN_SUMMARY = 2
"""Lines of advice below the summary of a run; `wattloop advise` has them all."""


@app.command()
def advise(
    run: str = argument(
        "[RUN]", "Identifier, its beginning, a name, or 'last' for the last run.", "last"
    ),
    *,
    given: StoreOptions,
) -> None:
    """Show what a run wasted and how to save it, the largest saving first.

    Every advice has its evidence, where its saving comes from, and the command that confirms it.
    """
    from wattloop.advise.advisor import RULES, advice_on
    from wattloop.store.runs import find_run

    settings = given.settings()
    with given.open_store() as place:
        record = find_run(place, run, by_name=True)
        found = advice_on(place, record, settings)
    advice = [one.to_dict() for one in found]
    write_json({"run_id": record.run_id, "rules": list(RULES), "advice": advice}, given.json_file)
    if given.json_file != "-":
        if found:
            print_advice(found)
        else:
            say(f"wattloop: nothing to advise on run {record.run_id}{_why(record.energy_j)}")


def print_advice(found: "list[Advice]") -> None:
    for number, advice in enumerate(found, start=1):
        lines = [f"{number}. {advice.title}: {advice.saving_words}"]
        lines += textwrap.wrap(advice.text, WIDTH - 3)
        lines += [f"seen: {fact}" for fact in advice.evidence]
        lines.append(f"saving: {advice.source}")
        if advice.command:
            lines.append(f"try: {advice.command}")
        sys.stdout.write("\n   ".join(lines) + "\n")


def say_advice(store: "Store", run_id: str, settings: "Settings") -> None:
    """Print the best advice on a run that has just ended, after its summary."""
    from wattloop.advise.advisor import advice_on
    from wattloop.store.runs import find_run

    found = advice_on(store, find_run(store, run_id), settings)
    for advice in found[:IN_SUMMARY]:
        say(f"  advice: {advice.line}")
    if found:
        more = len(found) - IN_SUMMARY
        rest = f" and {more} more" if more > 0 else ""
        say(f"  evidence{rest}: wattloop advise {run_id}")


def _why(energy_j: float | None) -> str:
    return ": no energy was measured" if energy_j is None else ""
