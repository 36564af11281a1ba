"""What `wattloop check` prints and writes."""

import sys
from collections.abc import Callable

from wattloop.check.baselines import Baseline
from wattloop.check.command import Measured
from wattloop.check.comparison import Comparison
from wattloop.check.figures import Execution, Kind, format_figure, judged_kind
from wattloop.check.markdown import HEADERS, comparison_markdown, judgement_row
from wattloop.check.verdict import mean_and_noise
from wattloop.cli.output import is_terminal, print_table, say, write_json, write_text

__all__ = ["report", "say_taken", "teller"]


def report(found: Comparison, done: Measured, markdown: str | None, json_file: str | None) -> None:
    """The table on standard output, remarks on standard error, and the files."""
    remarks = _remarks(found, done)
    if markdown is not None:
        write_text(comparison_markdown(found, remarks), markdown, "--markdown")
    if json_file is not None:
        data = {**found.to_dict(), "runs": done.run_ids, "remarks": remarks}
        write_json(data, json_file)
    if "-" not in (markdown, json_file):
        rows = [judgement_row(found.judged, found.provenance)]
        rows += [(*judgement_row(one)[:-1], "shown only") for one in found.others]
        print_table(HEADERS, rows)
    for remark in remarks:
        say(f"wattloop: {remark}")


def say_taken(label: str, taken: Baseline, done: Measured, where: str) -> None:
    """Which baseline was taken."""
    mean, noise = mean_and_noise(taken.series[taken.judged])
    shown = f"{format_figure(taken.judged, mean)} ± {noise / mean if mean else 0:.1%}"
    say(f"wattloop: {where}: {label}: {taken.judged.words} {shown} on {taken.machine.words}")
    if taken.judged is not Kind.ENERGY and done.reason:
        say(f"wattloop: {done.reason}, so {taken.judged.words} is what will be compared")
    for note in done.notes:
        say(f"wattloop: {note}")


def teller(repeats: int) -> Callable[[int, Execution], None]:
    """Says how far it is, to a person who waits."""

    def told(number: int, execution: Execution) -> None:
        kind = judged_kind(execution)
        if is_terminal(sys.stderr) and kind is not None:
            shown = format_figure(kind, execution[kind].value)
            say(f"wattloop: repeat {number} of {repeats}: {kind.words} {shown}")

    return told


def _remarks(found: Comparison, done: Measured) -> list[str]:
    remarks = []
    if found.judged.kind is not Kind.ENERGY and done.reason:
        remarks.append(f"{done.reason}, so {found.judged.kind.words} was compared in its place")
    if found.parts:
        remarks.append(f"energy of {', '.join(found.parts)}, {found.provenance}")
    return [*remarks, *found.notes, *found.judged.notes, *done.notes]
