"""Forms of node status and delivery for the OpenAPI document."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from wattloop.core.plausible import HIGHEST_NODE_W
from wattloop.fleet.delivery.batch import LARGEST_BATCH_B, MOST_PIECES
from wattloop.fleet.delivery.status import MOST_DOMAINS, MOST_FAULTS, MOST_JOBS
from wattloop.store.ingest.uploads import LARGEST_PIECE_B

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
