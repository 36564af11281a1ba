"""API of the oracle: estimates of many jobs on many placements in one request."""

from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import to_json
from starlette.background import BackgroundTask

from wattloop.core.errors import ConfigError
from wattloop.core.text import plain
from wattloop.fleet.job_comment import SHARDING, JobComment
from wattloop.schedule.estimates.job_rules import SubmittedJob
from wattloop.schedule.estimates.oracle_service import MOST_PAIRS, AskedJob
from wattloop.schedule.estimates.placement_estimates import PlacementQuery
from wattloop.schedule.estimates.submit_advice import submit_advice
from wattloop.serve.errors import conflict_on_error, faults
from wattloop.serve.requests import read_body
from wattloop.serve.state import State

MOST_ITEMS = 1_000
MOST_CHOICES = 16


def _whole(value: Any) -> Any:
    """Accept 2.0 as a whole number: JSON has one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Batch = Annotated[int, Field(ge=1, le=65_536), BeforeValidator(_whole)]
Sequence = Annotated[int, Field(ge=1, le=1_048_576), BeforeValidator(_whole)]
Asked = Annotated[int, Field(ge=0, le=4_096), BeforeValidator(_whole)]
Gpus = Annotated[int, Field(ge=1, le=4_096), BeforeValidator(_whole)]
Number = Annotated[int, Field(ge=0, le=1_000), BeforeValidator(_whole)]


# looked for among runs: a NUL as the store keeps it
Text = Annotated[str, Field(max_length=4_096), AfterValidator(plain)]
Name = Annotated[str, Field(max_length=100), AfterValidator(plain)]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


OF_DECODERS = ("parallel", "checkpointing", "global_batch", "requests_per_s", "prompt", "output",
               "weights", "tp")  # fmt: skip
"""Fields of a job with a layout, and of a service."""


class JobQuestion(_Closed):
    """A job: a model with its sizes, or the description of a batch system."""

    model: Name = Field("", description="A name of `wattloop predict models`; overrides comment.")
    batch: Annotated[list[Batch], Field(max_length=MOST_CHOICES)] | Batch = Field(
        [], description="Samples per GPU and step; of several the best is taken."
    )
    samples: Annotated[float, Field(ge=1, le=1e15)] | None = None
    precision: Literal["", "fp32", "tf32", "bf16", "fp16"] = ""
    seq: Sequence | None = None
    sharding: Literal["none", "zero1", "zero2", "zero3", "fsdp"] = Field(
        "none", description="What its GPUs divide."
    )
    parallel: Annotated[str, Field(max_length=100)] = Field(
        "", description="Layout of a decoder, such as `tp=8,sp,fsdp`."
    )
    checkpointing: Literal["none", "selective", "half", "full"] = "none"
    global_batch: Annotated[int, Field(ge=1, le=10**9), BeforeValidator(_whole)] | None = None
    requests_per_s: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None, description="The job serves the model; `samples` are then seconds."
    )
    prompt: Sequence = 512
    output: Sequence = 512
    weights: Literal["bf16", "fp16", "fp8", "int4"] = "bf16"
    tp: Annotated[int, Field(ge=1, le=64), BeforeValidator(_whole)] = 1
    low_power: bool = False
    deadline_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    comment: Annotated[str, AfterValidator(plain)] = Field(
        "", max_length=65_536, description="Of the job, with a tag `wattloop:`."
    )
    name: Text = ""
    user: Text = ""
    account: Text = ""
    partition: Text = ""
    script: Text = ""
    gpus: Asked = Field(0, description="Asked for; 0 is any.")
    gpu_type: Annotated[str, Field(max_length=60)] = ""
    time_limit_s: Annotated[float, Field(gt=0, le=1e9)] | None = None

    def asked(self) -> AskedJob:
        """Convert to the oracle service's form."""
        batches = (self.batch,) if isinstance(self.batch, int) else tuple(self.batch)
        stated = JobComment(
            model=self.model,
            batches=batches,
            work=self.samples,
            precision=self.precision,
            sequence=self.seq,
            zero=SHARDING[self.sharding],
            **{name: getattr(self, name) for name in OF_DECODERS},
            low_power=self.low_power,
            deadline_s=self.deadline_s,
        )
        submitted = SubmittedJob(
            name=self.name,
            user=self.user,
            account=self.account,
            partition=self.partition,
            script=self.script,
            comment=self.comment,
            gpus=self.gpus,
            gpu_type=self.gpu_type,
            time_limit_s=self.time_limit_s,
        )
        return AskedJob(submitted, stated if self.model else None)


class PlacementQuestion(_Closed):
    """GPUs of one type."""

    gpu: Annotated[str, Field(max_length=60)]
    gpus: Gpus = 1
    cap_w: Annotated[float, Field(gt=0, le=10_000)] | None = None
    gpus_per_node: Gpus = 8
    network_gbit_s: Annotated[float, Field(gt=0, le=1e6)] = 200.0
    spread: bool = False

    def where(self) -> PlacementQuery:
        """Convert to the oracle service's form."""
        bytes_s = self.network_gbit_s * 1e9 / 8
        return PlacementQuery(
            self.gpu, self.gpus, self.cap_w, self.gpus_per_node, bytes_s, self.spread
        )


class BatchQuestion(_Closed):
    """Jobs and placements; all pairs unless some are named."""

    jobs: Annotated[list[JobQuestion], Field(min_length=1, max_length=MOST_ITEMS)]
    placements: Annotated[list[PlacementQuestion], Field(max_length=MOST_ITEMS)] = Field(
        [], description="Without any: all that the server's fleet has."
    )
    pairs: (
        Annotated[
            list[tuple[Number, Number]],
            Field(max_length=MOST_PAIRS),
        ]
        | None
    ) = Field(None, description="[job, placement], counted from 0; all pairs unless given.")
    objective: Literal["energy", "time", "edp"] = "energy"
    wait_s: Annotated[float, Field(ge=0, le=30)] = Field(
        5.0, description="How long models that were never traced may take in all."
    )


class ResultAnswer(BaseModel):
    """One pair; with `error` it has no figures, and `later` means to ask again."""

    result: int
    job: int
    placement: int
    time_s: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    samples_s: float | None = None
    batch: int | None = None
    cap_w: float | None = None
    intervals: dict[str, list[float] | None] | None = None
    provenance: str | None = None
    source: str | None = None
    error: str | None = None
    later: bool | None = None


class JobEstimateAnswer(BaseModel):
    """The interpretation of a job, and the index of its best result."""

    job: int
    model: str | None
    precision: str | None
    samples: float | None
    deadline_s: float | None
    low_power: bool
    source: str
    notes: list[str]
    refusals: list[str]
    past: dict[str, Any] | None
    best: int | None


class SubmitAnswer(BaseModel):
    """The estimate of a job, and lines for its user."""

    energy_j: float | None
    time_s: float | None
    gpus: int
    gpu: str
    source: str
    messages: list[str]
    later: bool


class BatchAnswer(BaseModel):
    """Results in the order of the pairs."""

    results: list[ResultAnswer]
    jobs: list[JobEstimateAnswer]
    placements: list[dict[str, Any]]
    objective: str
    confidence: float
    scope: str


def body_schema(form: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI schema of a body that is read by hand, up to a size."""
    schema = form.model_json_schema()
    parts = schema.pop("$defs", {})

    def whole(value: Any) -> Any:
        if isinstance(value, list):
            return [whole(each) for each in value]
        if not isinstance(value, dict):
            return value
        reference = str(value.get("$ref", ""))
        if reference.startswith("#/$defs/"):  # would be looked for in the document's own root
            return whole(parts[reference.removeprefix("#/$defs/")])
        return {name: whole(each) for name, each in value.items()}

    found: dict[str, Any] = whole(schema)
    return {"required": True, "content": {"application/json": {"schema": found}}}


router = APIRouter(tags=["predict"])
LARGEST_B = 4 * 2**20
SUBMIT_WAIT_S = 0.1
"""So long a submission may wait for a model that was never asked for; it has no more to give."""
Q = TypeVar("Q", bound=BaseModel)


@router.post(
    "/predict",
    response_model=BatchAnswer,
    responses=faults(409, 413),
    openapi_extra={"requestBody": body_schema(BatchQuestion)},
)
async def predict_batch(request: Request, state: State) -> Response:
    """Return time, power and energy of every pair with intervals, and each job's best placement."""
    body = await read_body(request, LARGEST_B)

    def answered() -> bytes:
        question = _read(body, BatchQuestion)
        with conflict_on_error():
            answer = state.oracle.answer(
                [job.asked() for job in question.jobs],
                [place.where() for place in question.placements],
                question.pairs,
                objective=question.objective,
                wait_s=question.wait_s,
            )
        # written here: checking a thousand rows once more would take longer than computing them
        return to_json(answer.to_dict(), inf_nan_mode="null")

    found = await state.batches.run(answered)
    settle = BackgroundTask(state.oracle.settle)
    return Response(found, media_type="application/json", background=settle)


@router.post(
    "/predict/submit",
    response_model=SubmitAnswer,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **faults(409, 413),
    },
    openapi_extra={"requestBody": body_schema(JobQuestion)},
)
async def predict_submit(request: Request, state: State) -> Response:
    """Return the estimate for the user of a submitted job; `Accept: text/plain` for text."""
    body = await read_body(request, LARGEST_B)
    plain = request.headers.get("accept", "").startswith("text/plain")

    def answered() -> Response:
        job = _read(body, JobQuestion).asked().submitted
        with conflict_on_error():
            advice = submit_advice(state.oracle, job, wait_s=SUBMIT_WAIT_S)
        if plain:
            return Response(advice.to_text(), media_type="text/plain")
        return Response(to_json(advice.to_dict()), media_type="application/json")

    return await state.submissions.run(answered)


def _read(body: bytes, form: type[Q]) -> Q:
    try:
        return form.model_validate_json(body)
    except ValidationError as error:
        said = [
            f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}"
            for one in error.errors(include_input=False, include_url=False)[:5]
        ]
        raise ConfigError("; ".join(said)) from None
