"""Runs of other machines: the pieces of their journals, with the token."""

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from wattloop.serve.faults import FaultAnswer
from wattloop.serve.house import InHouse
from wattloop.serve.security import Writer
from wattloop.store.ingest import LARGEST_PIECE_B, Received

__all__ = ["router"]

router = APIRouter(prefix="/ingest", tags=["ingest"], dependencies=[Writer])

TOO_LARGE = 413


class ReceivedAnswer(BaseModel):
    """Where the next piece begins, and whether the run is complete."""

    offset: int
    ended: bool


class ExpectedAnswer(BaseModel):
    """A piece that does not follow: where the next one must begin."""

    detail: str
    offset: int


@router.get("/{run_id}")
def received(house: InHouse, run_id: str) -> ReceivedAnswer:
    """How far this server is with a run."""
    return _answer(house.ingest.received(run_id))


@router.post(
    "/{run_id}",
    responses={409: {"model": ExpectedAnswer}, TOO_LARGE: {"model": FaultAnswer}},
)
async def take(
    request: Request, house: InHouse, run_id: str, offset: Annotated[int, Query(ge=0)] = 0
) -> ReceivedAnswer:
    """The next bytes of a run's journal, durable when this answers; sent twice, taken once."""
    piece = bytearray()
    async for part in request.stream():
        piece += part
        if len(piece) > LARGEST_PIECE_B:
            raise HTTPException(TOO_LARGE, f"a piece has at most {LARGEST_PIECE_B} bytes")
    return _answer(await run_in_threadpool(house.ingest.take, run_id, offset, bytes(piece)))


def _answer(found: Received) -> ReceivedAnswer:
    return ReceivedAnswer(offset=found.offset, ended=found.ended)
