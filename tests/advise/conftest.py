"""A store, and runs of virtual cards in it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.virtual_runs import CardScript, RunScript, Work, write_run
from wattloop.store.database import Store, open_store
from wattloop.store.runs import RunRecord
from wattloop.virtual.gpu import IDLE, Activity

LASTS_S = 60.0
ARITHMETIC = Activity(1.0, 0.2, 1.0)
MEMORY = Activity(0.35, 1.0, 1.0)

Written = Callable[..., RunRecord]


def busy(activity: Activity = ARITHMETIC, until_s: float = LASTS_S - 1, **card: Any) -> CardScript:
    """A card that works from the second second on."""
    return CardScript([Work(2.0, activity), Work(until_s, IDLE)], **card)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "runs.db")) as place:
        yield place


@pytest.fixture
def written(store: Store) -> Written:
    """Write a run of the given cards, a minute long by default."""

    def write(*cards: CardScript, **script: Any) -> RunRecord:
        values = {"run_id": "run-1", "duration_s": LASTS_S, "interval_s": 0.5, **script}
        return write_run(store, RunScript(cards=cards, **values))

    return write
