"""The oracle as a service: many jobs on many placements in one question."""

from typing import TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.background import BackgroundTask

from wattloop.core.errors import ConfigError
from wattloop.schedule.oracle_service.advice import submit_advice
from wattloop.schedule.oracle_service.answer import to_dict
from wattloop.serve.api.oracle_forms import (
    BatchAnswer,
    BatchQuestion,
    JobQuestion,
    SubmitAnswer,
    body_schema,
)
from wattloop.serve.body import body_of
from wattloop.serve.faults import faults, needs_what_is_there
from wattloop.serve.house import InHouse

__all__ = ["router"]

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
async def predict_batch(request: Request, house: InHouse) -> Response:
    """Time, power and energy of every pair, with intervals, and the best placement of each job."""
    body = await body_of(request, LARGEST_B)

    def answered() -> bytes:
        question = _read(body, BatchQuestion)
        with needs_what_is_there():
            answer = house.oracle.answer(
                [job.asked() for job in question.jobs],
                [place.where() for place in question.placements],
                question.pairs,
                objective=question.objective,
                wait_s=question.wait_s,
            )
        # written here: checking a thousand rows once more would take longer than computing them
        return to_json(to_dict(answer), inf_nan_mode="null")

    found = await house.batches.run(answered)
    settle = BackgroundTask(house.oracle.settle)
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
async def predict_submit(request: Request, house: InHouse) -> Response:
    """What to tell the user of a job that is submitted; `Accept: text/plain` for plain lines."""
    body = await body_of(request, LARGEST_B)
    plain = request.headers.get("accept", "").startswith("text/plain")

    def answered() -> Response:
        job = _read(body, JobQuestion).asked().submitted
        with needs_what_is_there():
            advice = submit_advice(house.oracle, job, wait_s=SUBMIT_WAIT_S)
        if plain:
            return Response(advice.to_text(), media_type="text/plain")
        return Response(to_json(advice.to_dict()), media_type="application/json")

    return await house.submissions.run(answered)


def _read(body: bytes, form: type[Q]) -> Q:
    try:
        return form.model_validate_json(body)
    except ValidationError as error:
        said = [
            f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}"
            for one in error.errors(include_input=False, include_url=False)[:5]
        ]
        raise ConfigError("; ".join(said)) from None
