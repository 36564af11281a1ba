"""What a run wasted, and what to do about it."""

from typing import Any

from fastapi import APIRouter

from wattloop.advise.advice import Advice
from wattloop.advise.advisor import advice_on
from wattloop.serve.api.runs import find_any_run
from wattloop.serve.house import House, InHouse
from wattloop.store.runs import RunRecord

__all__ = ["advice_answer", "router"]

router = APIRouter(prefix="/runs", tags=["runs"])


@router.get("/{run_id}/advice")
def advice(house: InHouse, run_id: str) -> list[dict[str, Any]]:
    """Advice on a run, the largest saving first; empty when there is nothing to say."""
    record = find_any_run(house.store, run_id)
    return [one.to_dict() for one in advice_answer(house, record)]


def advice_answer(house: House, record: RunRecord) -> list[Advice]:
    """The same for the page."""
    return advice_on(house.store, record)
