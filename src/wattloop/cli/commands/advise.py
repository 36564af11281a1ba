"""`wattloop advise`: energy that a run wasted, and how to save it."""

import sys
import textwrap
from typing import TYPE_CHECKING

from wattloop.cli.app import StoreOptions, Verb
from wattloop.cli.options import argument
from wattloop.cli.output import say, write_json
from wattloop.cli.stored import named_run
from wattloop.core.settings import Settings

if TYPE_CHECKING:
    from wattloop.advise.advice import Advice
    from wattloop.advise.advisor import SilentRule
    from wattloop.store.database import Store


app = Verb()
WIDTH = 96
IN_SUMMARY = 2
"""Lines of advice below the summary of a run; `wattloop advise` has them all."""


@app.command(example="wattloop advise last")
def advise(
    run: str = argument(
        "RUN", "Identifier, its beginning, a name, or 'last' for the last run.", "last"
    ),
    *,
    given: StoreOptions,
) -> None:
    """Show what a run wasted and how to save it, the largest saving first.

    Every advice has its evidence, where its saving comes from, and the command that confirms it.
    """
    from wattloop.advise import advisor
    from wattloop.advise.facts import read_facts, reason_without_facts

    settings = given.settings()
    with given.open_store() as place:
        record = named_run(place, run)
        facts = read_facts(place, record, settings)
        found = [] if facts is None else advisor.advise(facts)
        silent = [] if facts is None else advisor.silent_rules(facts, found)
    data = {
        "run_id": record.run_id,
        "rules": list(advisor.RULES),
        "advice": [one.to_dict() for one in found],
        "silent": [one._asdict() for one in silent],
        "reason": reason_without_facts(record),
    }
    write_json(data, given.json_file)
    if given.json_file != "-":
        if found:
            print_advice(found)
        else:
            looked = any(not one.lacked for one in silent)
            nothing = "no rule found waste" if looked else "no rule had the readings it needs"
            reason = reason_without_facts(record) or nothing
            seen = advisor.noticed(record)
            what = "no saving to advise on was found for" if seen else "nothing to advise on"
            say(f"wattloop: {what} run {record.run_id}: {reason}")
            for text in seen:
                say(f"  noticed: {text}")
            say_silence(silent)


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

    record = find_run(store, run_id)
    found = advice_on(store, record, settings)
    if record.saving:  # the line of the saver says what a cap would do
        found = [advice for advice in found if advice.rule != "cap-too-high"]
    for advice in found[:IN_SUMMARY]:
        say(f"  advice: {advice.line}")
    if found:
        more = len(found) - IN_SUMMARY
        rest = f" and {more} more" if more > 0 else ""
        say(f"  evidence{rest}: wattloop advise {run_id}")


def say_silence(silent: "list[SilentRule]") -> None:
    """Print which rules found nothing, and what the others lacked."""
    by_reason: dict[str, list[str]] = {}
    for one in sorted(silent, key=lambda one: bool(one.lacked)):
        by_reason.setdefault(one.lacked or "looked and found nothing", []).append(one.rule)
    for reason, rules in by_reason.items():
        line = f"{reason}: {', '.join(rules)}"
        # a rule's name is copied into settings: it stays whole
        for at, part in enumerate(textwrap.wrap(line, WIDTH - 4, break_on_hyphens=False)):
            say(f"{'    ' if at else '  '}{part}")
