"""API of predictions: a model of the table, a GPU, a setting."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import nearest
from wattloop.hardware.gpus import gpu_of_table
from wattloop.predict.request import QUICKEST, SLOWEST
from wattloop.predict.sources.huggingface import architecture_names
from wattloop.serve.api.overview import tariff_of
from wattloop.serve.errors import NotFound, conflict_on_error, faults
from wattloop.serve.state import AppState, State

router = APIRouter(tags=["predict"])
MODEL = "A name of `wattloop predict models`."


class PredictForm(BaseModel):
    """A query. Only models of the table: a page must not be able to run code by name."""

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
    compile: Literal["none", "default", "reduce-overhead"] = Field(
        "none", description="Mode of `torch.compile`; `none` for an eager step."
    )
    cap_w: Annotated[float, Field(gt=0, le=10_000)] | Literal[""] = Field(
        "", description="Power limit of each GPU."
    )
    host_speed: Annotated[float, Field(ge=SLOWEST, le=QUICKEST)] | Literal[""] = Field(
        "", description="Of the host, as `wattloop calibrate host` measures it; 1 unless given."
    )
    steps: Annotated[int, Field(ge=1, lt=10**12)] | Literal[""] = Field(
        "", description="Of a whole training, whose energy, cost and CO2e are then predicted."
    )
    run: str = Field("", max_length=200, description="On the page: the measured run to compare.")
    task: Literal["train", "serve", "plan"] = Field(
        "train", description="On the page: a training step, a served model, or a layout search."
    )
    concurrency: int = Field(32, ge=1, le=65_536, description="Requests at the same time.")
    prompt: int = Field(512, ge=1, le=1_048_576, description="Tokens that a request reads.")
    output: int = Field(512, ge=1, le=1_048_576, description="Tokens that a request generates.")
    weights: Literal["bf16", "fp8", "int4"] = Field("bf16", description="Of the served model.")
    tp: int = Field(1, ge=1, le=64, description="GPUs that share every layer of a served model.")
    objective: Literal["time", "energy"] = Field("energy", description="Of the layout search.")


class PredictQuery(PredictForm):
    """A query in which the model is required."""

    model: str = Field(min_length=1, max_length=100, description=MODEL)


@router.get("/predict", responses=faults(404, 409))
async def predict(state: State, query: Annotated[PredictQuery, Query()]) -> dict[str, Any]:
    """Return time, power, energy and memory of one training step, with intervals and terms."""
    found: dict[str, Any] = (await forecast_question(state, query))["answer"]
    return found


@router.get("/predict/serve", responses=faults(404, 409))
async def predict_serve(state: State, query: Annotated[PredictQuery, Query()]) -> dict[str, Any]:
    """Return latency, throughput, power and energy of a served language model."""
    asked = query.model_copy(update={"task": "serve"})
    found: dict[str, Any] = (await forecast_question(state, asked))["answer"]
    return found


@router.get("/predict/plan", responses=faults(404, 409))
async def predict_plan(state: State, query: Annotated[PredictQuery, Query()]) -> dict[str, Any]:
    """Return layouts of a training over many GPUs, the best one first."""
    asked = query.model_copy(update={"task": "plan"})
    found: dict[str, Any] = (await forecast_question(state, asked))["answer"]
    return found


async def forecast_question(state: AppState, query: PredictForm) -> dict[str, Any]:
    """Predict in the predictor's process: `answer` for programs, `html` for the page.

    Raises:
        NotFound: no such model or GPU in the tables.
        Conflict: this model or GPU cannot be asked that.
        HTTPException: too many predictions wait.
    """
    known = known_models()
    name = query.model.removeprefix("hf:")
    if name not in known:
        raise NotFound(f"model {query.model!r}: unknown; {nearest(name, known)}")
    _check_gpu(query.gpu)
    task, question = _question(name, query)
    if task == "forecast":
        tariff = tariff_of(state)
        question["grid"] = {
            "tariff_per_kwh": tariff.per_kwh,
            "currency": tariff.currency,
            **{key: getattr(state.settings, key) for key in ("pue", "carbon_g_per_kwh", "zone")},
        }
    with conflict_on_error():
        found: dict[str, Any] = await state.predictions.run(
            lambda: state.predictor.call(task, **question)
        )
    return found


def _question(name: str, query: PredictForm) -> tuple[str, dict[str, Any]]:
    """Return the task of the predictor's process and its arguments."""
    common = {"model": f"hf:{name}", "gpu": query.gpu, "cap_w": _or_none(query.cap_w)}
    if query.task == "serve":
        load = {key: getattr(query, key) for key in ("concurrency", "prompt", "output", "tp")}
        return "serving", {**common, **load, "weights": query.weights}
    if query.task == "plan":
        seq = _or_none(query.seq)
        return "layouts", {
            **common,
            "gpus": query.gpus,
            "objective": query.objective,
            "precision": query.precision,
            "kernels": "eager" if query.compile == "none" else "fused",
            **({} if seq is None else {"seq": seq}),
        }
    return "forecast", {
        **common,
        "gpus": query.gpus,
        "batch": _or_none(query.batch),
        "seq": _or_none(query.seq),
        "precision": query.precision,
        "compile": query.compile,
        "steps": _or_none(query.steps),
        "host_speed": _or_none(query.host_speed),
    }


def _check_gpu(name: str) -> None:
    try:
        gpu_of_table(name)
    except ConfigError as error:
        raise NotFound(f"gpu {name!r}: {error}") from None


def known_models() -> list[str]:
    """Return the names of models of the table."""
    return sorted(architecture_names())


def _or_none(value: float | str) -> float | None:
    return None if isinstance(value, str) else value
