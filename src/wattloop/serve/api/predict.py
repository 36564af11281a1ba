"""Predictions: a model of the table, a GPU, a setting."""

from threading import Lock
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named
from wattloop.hardware.lined_yaml import nearest
from wattloop.predict.forecast import Forecast
from wattloop.predict.forecaster import Forecaster
from wattloop.predict.question import QUICKEST, SLOWEST, Question
from wattloop.predict.sources.architectures import architecture_names
from wattloop.serve.faults import NotThere, faults, needs_what_is_there
from wattloop.serve.house import InHouse

__all__ = ["PredictForm", "forecast_of", "known_models", "router"]

router = APIRouter(tags=["predict"])

MODEL = "A name of `wattloop predict models`."

_forecaster = Forecaster(cache=True)
_one_at_a_time = Lock()
"""Tracing sets torch's default device for a moment: two at once would disturb each other."""


class PredictForm(BaseModel):
    """A question. Only models of the table: a page must not be able to run code by name."""

    model_config = ConfigDict(extra="ignore")

    model: str = Field("", max_length=100, description=MODEL)
    gpu: str = Field("h200", max_length=60, description="A name of `wattloop predict gpus`.")
    gpus: int = Field(1, ge=1, le=4096)
    batch: Annotated[int, Field(ge=1, le=65_536)] | Literal[""] = Field(
        "", description="Samples per GPU and pass."
    )
    seq: Annotated[int, Field(ge=1, le=1_048_576)] | Literal[""] = Field(
        "", description="Tokens of a sample."
    )
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "bf16"
    cap_w: Annotated[float, Field(gt=0, le=10_000)] | Literal[""] = Field(
        "", description="Power limit of each GPU."
    )
    host_speed: Annotated[float, Field(ge=SLOWEST, le=QUICKEST)] | Literal[""] = Field(
        "", description="Of the host, as `wattloop calibrate host` measures it; 1 unless given."
    )


class PredictQuery(PredictForm):
    """The same where no form is to be shown: the model is named."""

    model: str = Field(min_length=1, max_length=100, description=MODEL)


@router.get("/predict", responses=faults(404, 409))
def predict(house: InHouse, query: Annotated[PredictQuery, Query()]) -> dict[str, Any]:
    """Time, power, energy and memory of one training step, with intervals and terms."""
    del house
    return forecast_of(query).to_dict()


def forecast_of(query: PredictForm) -> Forecast:
    """The answer.

    Raises:
        NotThere: no such model or GPU in the tables.
        Impossible: this model or GPU cannot be asked that.
    """
    known = known_models()
    name = query.model.removeprefix("hf:")
    if name not in known:
        raise NotThere(f"model {query.model!r}: unknown; {nearest(name, known)}")
    _check_gpu(query.gpu)
    question = Question(
        model=f"hf:{name}",
        gpu=query.gpu,
        gpus=query.gpus,
        batch=_or_none(query.batch),
        seq=_or_none(query.seq),
        precision=query.precision,
        cap_w=None if query.cap_w == "" else query.cap_w,
        host_speed=None if query.host_speed == "" else query.host_speed,
    )
    with _one_at_a_time, needs_what_is_there():
        return _forecaster.answer(question)


def _check_gpu(name: str) -> None:
    if name.endswith((".yaml", ".yml")):
        raise NotThere(f"gpu {name!r}: a file; name one of the table")
    try:
        gpu_named(name)
    except ConfigError as error:
        raise NotThere(f"gpu {name!r}: {error}") from None


def known_models() -> list[str]:
    """Names that can be asked for."""
    return sorted(architecture_names())


def _or_none(value: int | str) -> int | None:
    return None if isinstance(value, str) else value
