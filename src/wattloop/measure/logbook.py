"""What is said and written down about a run while it goes on: notes, events, its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattloop.measure.run_journal import RunJournal
from wattloop.store.journal import journal_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wattloop.core.clock import Clock
    from wattloop.measure.run_result import RunResult
    from wattloop.measure.session import Session

__all__ = ["Logbook"]

NOTES_LIMIT = 20
ASLEEP_S = 1.0
"""Shorter than this a machine was not suspended; its clocks were read a moment apart."""


class Logbook:
    """Notes for whoever reads the result, and the journal for whoever finds the run.

    Args:
        clock: of the run.
        synced: whether to ask the disk to keep up with us; see `RunJournal`.
    """

    def __init__(self, clock: Clock, *, synced: bool) -> None:
        self.notes: list[str] = []
        self.journal = RunJournal(synced=synced)
        self._clock = clock
        self._suspended_s = clock.suspended_s()

    def open(self, session: Session, header: dict[str, Any]) -> None:
        """Create the journal; a run that cannot be kept is still measured."""
        path = journal_directory(session.settings.store_location) / f"{session.run_id}.journal"
        try:
            self.journal.begin(path, header, self._clock.now_s())
        except OSError as error:
            self.note(
                f"this run will not be kept: cannot write {path} ({error.strerror or error}); "
                "choose another place with --store or WATTLOOP_STORE"
            )

    def note(self, text: str) -> None:
        """Say something about this run to whoever reads its result; the same thing once."""
        if text not in self.notes and len(self.notes) < NOTES_LIMIT:
            self.notes.append(text)

    def note_now(self, text: str) -> None:
        """A note that is also in the journal, with its time."""
        self.note(text)
        self.journal.add_event({"type": "note", "time_s": self._clock.now_s(), "text": text})

    def note_fault(self, error: Exception) -> None:
        """Something of ours failed in the background; the sampler goes on."""
        self.note(f"{type(error).__name__} while measuring: {error}; readings may be missing")

    def note_devices(self, devices: Sequence[str]) -> None:
        """None of the devices that were asked for can be read."""
        self.note(
            f"none of the devices {', '.join(devices)} can be read here; "
            "'wattloop devices' lists what can"
        )

    def note_role(self, session: Session) -> None:
        """Whoever finds the journal without an end must know whether this run counted."""
        if session.job is None:
            return
        role = session.role
        event: dict[str, Any] = {"counts": role.counts, "counted_by": role.counted_by}
        if role.counts_from_s > session.started_s:
            event["counts_from_s"] = role.counts_from_s
        self.journal.add_event({"type": "role", "time_s": self._clock.now_s(), **event})

    def notice_suspend(self) -> None:
        """Say so when the machine slept since we looked last."""
        suspended_s = self._clock.suspended_s()
        asleep_s = suspended_s - self._suspended_s
        if asleep_s > ASLEEP_S:
            self._suspended_s = suspended_s
            self.note_now(
                f"the machine was suspended for {asleep_s:.0f} s; that time is not in the run"
            )

    def end(self, run: RunResult) -> RunResult:
        """Write the end of the journal; the result, which says so where that is not possible."""
        end = {"type": "end", "time_s": run.result.end_s, **run.to_end_dict()}
        fault = self.journal.end(end)
        if fault is None:
            return run
        text = (
            f"the end of this run could not be kept: {fault}; it will be listed as died, with "
            f"{_energy_in(self.journal.path)}"
        )
        self.note(text)
        return run.with_result(run.result._replace(warnings=(*run.result.warnings, text)))


def _energy_in(path: Path | None) -> str:
    """What the store will make of a journal without an end."""
    from wattloop.core.units import format_energy
    from wattloop.measure.closing import close_journal
    from wattloop.store.journal import read_journal

    try:
        journal = None if path is None else read_journal(path)
        energy_j = None if journal is None else close_journal(journal)["result"]["energy_j"]
    except Exception:  # noqa: BLE001 - the program matters more than this sentence
        energy_j = None
    return "no energy" if energy_j is None else f"the {format_energy(energy_j)} read until then"
