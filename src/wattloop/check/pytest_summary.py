"""The end of pytest's report: the section `energy`, the Markdown file, the baselines."""

import time
from pathlib import Path
from typing import Any

import pytest

from wattloop.check.baselines import Baseline, Baselines
from wattloop.check.figures import Kind, judged_kind
from wattloop.check.machine import Machine
from wattloop.check.markdown import table
from wattloop.core.errors import WattloopError
from wattloop.store.formats.target import Target
from wattloop.version import __version__

__all__ = ["conclude"]

HEADERS = ("test", "figure", "used", "against", "verdict")


def conclude(config: pytest.Config, found: list[dict[str, Any]], reporter: Any) -> None:
    """Show and write everything; a file that cannot be written is said, the tests stand."""
    reporter.section("energy")
    rows = [_row(one) for one in found]
    widths = [max(len(row[i]) for row in [HEADERS, *rows]) for i in range(len(HEADERS))]
    for row in (HEADERS, *rows):
        reporter.write_line(
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        )
    notes = _notes(found)
    for note in notes:
        reporter.write_line(f"- {note}")
    target = config.getoption("--energy-report")
    try:
        if target:
            text = "### Energy of tests\n\n" + table(HEADERS, rows)
            text += "".join(
                f"\n\n- {note}" if not i else f"\n- {note}" for i, note in enumerate(notes)
            )
            Target(target, "--energy-report").write_text(text + "\n")
        for file in _taken(found):
            reporter.write_line(f"baselines taken: {file}")
    except WattloopError as error:
        reporter.write_line(f"energy: {error}", red=True)


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    kind = Kind(one["kind"])
    figure = f"{kind.words} ({one['provenance']})"
    return one["name"], figure, one["shown"], one["against"] or "–", one["verdict"]


def _notes(found: list[dict[str, Any]]) -> list[str]:
    """Each once, with the tests it belongs to."""
    by_note: dict[str, list[str]] = {}
    for one in found:
        for note in one["notes"]:
            by_note.setdefault(note, []).append(one["name"])
    return [
        f"{names[0] if len(names) == 1 else f'{len(names)} tests'}: {note}"
        for note, names in by_note.items()
    ]


def _taken(found: list[dict[str, Any]]) -> list[str]:
    """Write the baselines of tests that passed; the files."""
    machine = Machine.here()
    by_file: dict[str, Baselines] = {}
    for one in found:
        if one["verdict"] != "taken" or not one["passed"]:
            continue
        file = one["file"]
        if file not in by_file:
            by_file[file] = Baselines.read_if_any(Path(file))
        data = {
            "machine": machine.to_dict(),
            "judged": judged_kind(Kind(name) for name in one["series"]),
            "figures": one["series"],
        }
        taken = Baseline.from_dict({**data, "taken_wall_s": time.time(), "wattloop": __version__})
        by_file[file].put(one["name"], taken)
    for file, baselines in by_file.items():
        Target(file).write_text(baselines.to_text())
    return list(by_file)
