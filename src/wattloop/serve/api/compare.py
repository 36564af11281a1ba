"""API of comparisons: runs side by side."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from wattloop.core.errors import ConfigError
from wattloop.serve.errors import faults, needs_what_is_there
from wattloop.serve.state import State
from wattloop.store.comparison import Comparison, compare
from wattloop.store.database import Store
from wattloop.store.runs import find_run

router = APIRouter(tags=["runs"])

MOST_RUNS = 12


@router.get("/compare", responses=faults(404, 409))
def compared(
    house: State, run: Annotated[list[str], Query(min_length=2, max_length=MOST_RUNS)]
) -> dict[str, Any]:
    """Return each quantity of every run, its difference from the first, and its significance."""
    return comparison_of(house.store, run).to_dict()


def comparison_of(store: Store, names: list[str]) -> Comparison:
    """Compare the named runs with the first."""
    if not 2 <= len(names) <= MOST_RUNS:
        raise ConfigError(f"name 2 to {MOST_RUNS} runs to compare")
    records = [find_run(store, name) for name in names]
    with needs_what_is_there():  # two names may mean one run
        return compare(records)
