"""Advice as notes of a report or a page."""

from collections.abc import Iterable

from wattloop.advise.advice import Advice
from wattloop.advise.advisor import advice_on
from wattloop.core.settings import Settings
from wattloop.report.document import Note
from wattloop.store.database import Store
from wattloop.store.runs import RunRecord

__all__ = ["advice_notes", "notes_of"]


def advice_notes(store: Store, record: RunRecord, settings: Settings | None = None) -> list[Note]:
    """What the run wasted and what to do about it; empty when there is nothing to say."""
    return notes_of(advice_on(store, record, settings))


def notes_of(found: Iterable[Advice]) -> list[Note]:
    """One note each, in the order given."""
    return [
        Note(
            text=f"{advice.text} ({'; '.join(advice.evidence)}.)",
            tone="info",
            title=f"{advice.title}: {advice.saving_words}.",
            command=advice.command,
            source=f"Saving {advice.source}",
        )
        for advice in found
    ]
