"""Promises of advice in reports."""

from pathlib import Path

from tests.support.virtual_runs import CardScript, RunScript, Work, write_run
from wattloop.report.document import Note
from wattloop.report.subject import report_of
from wattloop.store.database import open_store
from wattloop.virtual.gpu import IDLE, Activity

BUSY = CardScript([Work(1.0, Activity(1.0, 0.2, 1.0)), Work(39.0, IDLE)])


def test_a_report_has_a_section_with_what_to_do(tmp_path: Path) -> None:
    """Promise: each advice with its saving, command and source; no section without advice."""
    with open_store(str(tmp_path / "runs.db")) as store:
        for run_id, cards in (("healthy", (BUSY,)), ("wasteful", (BUSY, CardScript()))):
            script = RunScript(run_id=run_id, duration_s=40.0, interval_s=0.5, cards=cards)
            write_run(store, script)
        sections = {s.heading: s for s in report_of(store, "wasteful").sections}
        headings = [s.heading for s in report_of(store, "healthy").sections]
    (note,) = sections["What to do about it"].blocks
    assert isinstance(note, Note)
    assert note.title.startswith("GPU 1 idle 100% of the time: about ")
    assert note.command
    assert "simulated" in note.source
    assert "What to do about it" not in headings
