"""API of nodes: deliveries, state, power now."""

import json
import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from wattloop.core.errors import ConfigError, RunSenseless
from wattloop.core.records import HIGHEST_NODE_W
from wattloop.fleet.delivery.batch import (
    LARGEST_BATCH_B,
    MOST_PIECES,
    Piece,
    PieceResult,
    parse_clock,
    unpack_batch,
)
from wattloop.fleet.delivery.client import NODE_NAME
from wattloop.fleet.delivery.node_status import MOST_DOMAINS, MOST_FAULTS, MOST_JOBS, NodeStatus
from wattloop.fleet.nodes import STALE_S, NodeNow, NodeTable, forget_node
from wattloop.fleet.tokens import Role
from wattloop.serve.api.oracle import body_schema
from wattloop.serve.errors import API_ROOT, NotFound, faults
from wattloop.serve.maintenance import wait_imported
from wattloop.serve.requests import read_body
from wattloop.serve.security import Asking, Described, Writer, check_writer, refuse
from wattloop.serve.state import AppState, State
from wattloop.store.ingest.received_run import RunSource
from wattloop.store.ingest.spool import ForeignRun
from wattloop.store.ingest.uploads import LARGEST_PIECE_B, Received, WrongOffset

JOURNAL = "application/vnd.wattloop.journal"
DELIVERY = "application/vnd.wattloop.delivery"
Watts = Annotated[float, Field(ge=0, le=HIGHEST_NODE_W)]
ByDomain = Annotated[dict[str, Watts], Field(max_length=MOST_DOMAINS)]


class StatusForm(BaseModel):
    """Status of a node; unknown fields are left out. Long texts are cut."""

    model_config = ConfigDict(extra="allow")

    wall_s: Annotated[float, Field(ge=0, lt=1e11)] | None = Field(
        None, description="The node's time of day while it sends."
    )
    power_w: ByDomain | None = Field(
        None, description="Watts by domain, of domains that do not overlap."
    )
    limit_w: ByDomain | None = Field(None, description="Power limit in force by domain.")
    provenance: str | None = Field(None, description="`measured`, `modelled`, `simulated`, ...")
    jobs: Annotated[list[str], Field(max_length=MOST_JOBS)] | None = Field(
        None, description="Identifiers of the jobs that run on it."
    )
    faults: Annotated[list[str], Field(max_length=MOST_FAULTS)] | None = Field(
        None, description="What its operator should know, a line each."
    )
    read_wall_s: float | None = Field(
        None, description="When the power was read, on the node's own clock."
    )
    version: str | None = Field(None, description="Of the agent.")


class HeardAnswer(BaseModel):
    """The server's wall-clock time, and the offset of the node's clock."""

    wall_s: float
    clock_offset_s: float | None


class PieceAnswer(BaseModel):
    """Result of one piece.

    `offset` is where the next one begins, `ended` says that the run is in the store, `complete`
    that all of it is here and waits, `refused` why it never will be; `tail` is a checksum of the
    bytes before `offset`, where a piece without bytes asked for it.
    """

    run_id: str
    offset: int
    ended: bool
    refused: str
    complete: bool
    tail: int | None


class DeliveredAnswer(HeardAnswer):
    """One result per piece, in their order."""

    pieces: list[PieceAnswer]


def _bytes(kind: str, about: str, *, required: bool) -> dict[str, Any]:
    # bytes have no schema in OpenAPI 3.1
    content: dict[str, Any] = {kind: {}}
    return {"required": required, "description": about, "content": content}


JOURNAL_BODY = _bytes(
    JOURNAL,
    f"Bytes of the run's journal from `offset` on, at most {LARGEST_PIECE_B}. The first piece "
    "begins with the journal's header, which names this run; with `final` there may be none. "
    "`Content-Type` is not looked at.",
    required=False,
)
DELIVERY_BODY = _bytes(
    DELIVERY,
    'A line of JSON, `{"wall_s": ..., "status": ..., "pieces": [[run_id, offset, length, final, '
    "restart], ...]}` with a status as in `/status` or null, then the bytes of all pieces one "
    f"after the other; at most {MOST_PIECES} pieces of {LARGEST_BATCH_B} bytes together. "
    "`Content-Type` is not looked at.",
    required=True,
)
router = APIRouter(tags=["nodes"])
HEAD_B = 512 * 1024
Node = Annotated[str, Path(pattern=f"^{NODE_NAME.pattern}$")]


class NodeAnswer(BaseModel):
    """Status of a node: watts, seconds, and times in seconds since 1970."""

    node: str
    power_w: float | None
    limit_w: float | None
    without_limit: list[str]
    power_by_domain_w: dict[str, float]
    limit_by_domain_w: dict[str, float]
    provenance: str
    jobs: list[str]
    faults: list[str]
    age_s: float
    stale: bool
    heard_wall_s: float
    clock_offset_s: float | None
    refusal: str
    refused_wall_s: float | None
    version: str


class RefusedJournalAnswer(BaseModel):
    """A quarantined journal: its run cannot be stored."""

    run_id: str
    node: str
    reason: str
    refused_wall_s: float


class NodesAnswer(BaseModel):
    """All known nodes, and quarantined journals."""

    wall_s: float
    nodes: list[NodeAnswer]
    refused_journals: list[RefusedJournalAnswer]


class PowerAnswer(BaseModel):
    """Power of the fleet now: nodes that reported within `max_age_s`.

    `power_w` is None when none was; `silent` names those that are missing from it.
    """

    wall_s: float
    max_age_s: float
    power_w: float | None
    limit_w: float | None
    oldest_s: float | None
    provenance: list[str]
    power_by_node_w: dict[str, float]
    silent: list[str]


@router.get("/nodes")
def nodes(state: State) -> NodesAnswer:
    """Return the last status of every node."""
    return NodesAnswer(
        wall_s=time.time(),
        nodes=node_answers(state.nodes),
        refused_journals=[RefusedJournalAnswer(**one._asdict()) for one in state.ingest.refused()],
    )


@router.get("/fleet/power")
def fleet_power(
    state: State, max_age_s: Annotated[float, Query(gt=0, le=3_600)] = STALE_S
) -> PowerAnswer:
    """Return the power of all nodes now, and the nodes that are missing."""
    return power_answer(state.nodes, max_age_s)


@router.delete("/nodes/{node}", dependencies=[Writer], responses=faults(404))
def forget(request: Request, state: State, caller: Asking, node: Node) -> NodesAnswer:
    """Remove a node that no longer exists (server's own token only); its runs stay."""
    if caller.role is not Role.ADMIN:
        raise refuse(request, 403, "only the server's own token removes nodes")
    was_heard = state.nodes.forget(node)
    if not forget_node(state.store, node) and not was_heard:
        raise NotFound(f"no node {node!r}; GET {API_ROOT}/nodes names all")
    return nodes(state)


@router.post(
    "/nodes/{node}/status",
    dependencies=[Writer],
    response_model=HeardAnswer,
    responses=faults(413),
    openapi_extra={"requestBody": body_schema(StatusForm)},
)
async def status(request: Request, state: State, caller: Asking, node: Node) -> Any:
    """Receive the status of a node: power and jobs."""
    if not caller.may_speak_for(node):
        raise refuse(request, 403, f"may not speak for {node}")
    body = await read_body(request, HEAD_B)
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise ConfigError("a status is an object in JSON") from None
    found = NodeStatus.parse(said)
    offset_s = state.nodes.record(node, parse_clock(said.get("wall_s")), found)
    return JSONResponse({"wall_s": time.time(), "clock_offset_s": offset_s})


@router.post(
    "/nodes/{node}/delivery",
    dependencies=[Described],
    response_model=DeliveredAnswer,
    responses=faults(413),
    openapi_extra={"requestBody": DELIVERY_BODY},
)
async def delivery(request: Request, node: Node) -> Any:
    """Receive the status of a node and pieces of its journals in one request."""
    # `DeliveryMiddleware` calls this without dependencies: they are checked here
    await check_writer(request)
    state: AppState = request.app.state.wattloop
    if not request.state.caller.may_speak_for(node):
        raise refuse(request, 403, f"may not speak for {node}")
    wall_s, said, pieces = unpack_batch(await read_body(request, LARGEST_BATCH_B + HEAD_B))
    found = None if said is None else NodeStatus.parse(said)
    offset_s = state.nodes.record(node, wall_s, found)
    source = RunSource(node, offset_s, is_trusted=True)
    answers: list[PieceResult] = []
    if pieces:
        taken = await run_in_threadpool(lambda: [_taken(state, p, source) for p in pieces])
        ended = await wait_imported(state, [t.run_id for t in taken if t.complete])
        answers = [_answered(t, ended) for t in taken]
    for answer in answers:
        if answer.refused:
            refuse(request, 422, f"{answer.run_id}: {answer.refused}")
    return JSONResponse(
        {
            "wall_s": time.time(),
            "clock_offset_s": offset_s,
            "pieces": [answer._asdict() for answer in answers],
        }
    )


def _taken(state: AppState, piece: Piece, source: RunSource) -> PieceResult:
    """Take one piece; an invalid piece does not stop the others."""
    try:
        found = _take(state, piece, source)
    except WrongOffset as error:
        return PieceResult(piece.run_id, error.offset)
    except (ForeignRun, ConfigError, RunSenseless) as error:
        return PieceResult(piece.run_id, 0, refused=str(error))
    tail = found.tail if piece.asks else None
    return PieceResult(piece.run_id, found.offset, found.ended, "", found.complete, tail)


def _take(state: AppState, piece: Piece, source: RunSource) -> Received:
    if piece.asks:
        return state.ingest.received(piece.run_id, source)
    return state.ingest.append(
        piece.run_id,
        piece.offset,
        piece.data,
        source,
        final=piece.final,
        restart=piece.restart,
    )


def _answered(taken: PieceResult, ended: dict[str, bool | str]) -> PieceResult:
    said = ended.get(taken.run_id)
    if isinstance(said, str):
        return PieceResult(taken.run_id, taken.offset, refused=said)
    return taken._replace(ended=taken.ended or bool(said))


def node_answers(book: NodeTable) -> list[NodeAnswer]:
    """Return all nodes for page and API."""
    return [_node(one) for one in book.now()]


def _node(one: NodeNow) -> NodeAnswer:
    said = one.status
    return NodeAnswer(
        node=one.node,
        power_w=one.power_w,
        limit_w=one.limit_w,
        without_limit=list(one.without_limit),
        power_by_domain_w=dict(said.power_w),
        limit_by_domain_w=dict(said.limit_w),
        provenance=said.provenance,
        jobs=list(said.jobs),
        faults=list(said.faults),
        age_s=one.age_s,
        stale=one.is_stale,
        heard_wall_s=one.heard_wall_s,
        clock_offset_s=one.clock_offset_s,
        refusal=one.refusal,
        refused_wall_s=one.refused_wall_s,
        version=said.version,
    )


def power_answer(book: NodeTable, max_age_s: float = STALE_S) -> PowerAnswer:
    """Sum the power of nodes that reported recently."""
    known = book.now()
    heard = [n for n in known if n.age_s <= max_age_s and n.power_w is not None]
    limits_w = [n.limit_w for n in heard if n.limit_w is not None]
    return PowerAnswer(
        wall_s=time.time(),
        max_age_s=max_age_s,
        power_w=sum(n.power_w or 0.0 for n in heard) if heard else None,
        limit_w=sum(limits_w) if limits_w else None,
        oldest_s=max((n.age_s for n in heard), default=None),
        provenance=sorted({n.status.provenance for n in heard if n.status.provenance}),
        power_by_node_w={n.node: n.power_w or 0.0 for n in heard},
        silent=[n.node for n in known if n not in heard],
    )
