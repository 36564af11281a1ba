"""API that receives journals of other machines piece by piece, with a token."""

import time
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from wattloop.core.errors import ConfigError, RunSenseless
from wattloop.fleet.tokens import Caller, Role
from wattloop.serve.api.nodes import JOURNAL_BODY
from wattloop.serve.errors import faults
from wattloop.serve.maintenance import wait_imported
from wattloop.serve.requests import read_body
from wattloop.serve.security import Asking, Writer, refuse
from wattloop.serve.state import AppState, State
from wattloop.store.ingest.received_run import RunSource
from wattloop.store.ingest.spool import ForeignRun
from wattloop.store.ingest.uploads import LARGEST_PIECE_B, RUN_ID, Received, WrongOffset

router = APIRouter(prefix="/ingest", tags=["ingest"], dependencies=[Writer])
RunId = Annotated[str, Path(pattern=f"^{RUN_ID.pattern}$")]
Clock = Annotated[
    float | None,
    Header(
        alias="X-Wattloop-Clock",
        description="The sender's time of day, in seconds since 1970.",
        ge=0,
        lt=1e11,
    ),
]


class ReceivedAnswer(BaseModel):
    """Offset of the next piece, and whether the run is complete and stored."""

    offset: int
    ended: bool


class ExpectedAnswer(BaseModel):
    """Refusal of a piece with the wrong offset: where the next one must begin."""

    detail: str
    offset: int


@router.get("/{run_id}")
def received(request: Request, state: State, caller: Asking, run_id: RunId) -> ReceivedAnswer:
    """Return how many bytes of a run's journal the server has."""
    try:
        return _answer(state.ingest.received(run_id, run_source(state, caller, None)))
    except ForeignRun as error:
        raise refuse(request, 403, str(error)) from None


@router.post(
    "/{run_id}",
    responses={
        409: {"model": ExpectedAnswer, "description": "It does not follow what is there."},
        **faults(413),
    },
    openapi_extra={"requestBody": JOURNAL_BODY},
)
async def take(
    request: Request,
    state: State,
    caller: Asking,
    run_id: RunId,
    offset: Annotated[int, Query(ge=0)] = 0,
    final: Annotated[bool, Query(description="Nothing will follow.")] = False,
    clock: Clock = None,
) -> ReceivedAnswer:
    """Append the next bytes of a run's journal durably; a repeated piece is ignored."""
    piece = await read_body(request, LARGEST_PIECE_B)
    source = run_source(state, caller, clock)
    try:
        found = await run_in_threadpool(
            state.ingest.append, run_id, offset, piece, source, final=final
        )
    except ForeignRun as error:
        raise refuse(request, 403, str(error)) from None
    except WrongOffset:
        raise
    except (ConfigError, RunSenseless) as error:
        raise refuse(request, 422, str(error)) from None
    if found.complete:
        said = (await wait_imported(state, [run_id])).get(run_id)
        if isinstance(said, str):
            raise ConfigError(said)
        found = Received(found.offset, ended=bool(said))
    return _answer(found)


def run_source(state: AppState, caller: Caller, wall_s: float | None) -> RunSource:
    """Return the sender of a piece, with the offset of its clock from ours."""
    if caller.role is Role.NODE:
        return RunSource(caller.node, state.nodes.record(caller.node, wall_s), is_trusted=True)
    offset_s = None if wall_s is None else wall_s - time.time()
    if caller.role is Role.ADMIN:
        return RunSource(clock_offset_s=offset_s, is_trusted=True)
    return RunSource(clock_offset_s=offset_s, not_for=state.nodes.names())


def _answer(found: Received) -> ReceivedAnswer:
    return ReceivedAnswer(offset=found.offset, ended=found.ended)
