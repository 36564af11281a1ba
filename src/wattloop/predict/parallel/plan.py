"""Search for a layout: tensor, pipeline, context, expert and data parallel sizes, sharding,
micro-batch, checkpointing and power limit.

Memory is computed first, because it is cheap and rules most layouts out. Layers are evaluated once
per shape of a micro-batch; layouts only combine them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.units import format_bytes
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.memory import TIGHT
from wattloop.predict.parallel.layout import Layout, Links
from wattloop.predict.parallel.model import (
    ParallelForecast,
    ParallelModel,
    ParallelQuestion,
    checked,
    memory_of,
)
from wattloop.predict.serving import DecoderShape, decoder_named

OBJECTIVES = ("time", "energy", "cost")
DEFAULT_TOKENS = 4_194_304
"""Tokens of a step unless a global batch is given."""
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
CAP_STEPS = 12
KEPT = 24
"""Layouts whose power limits are searched as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """A training whose layout is wanted.

    Attributes:
        model, gpu, gpus, seq, precision, attention, kernels, links: as of `ParallelQuestion`.
        global_batch: sequences of a step; None is as many as make about 4 million tokens.
        objective: least `time`, `energy` of the GPUs, or `cost` of GPU hours and electricity.
        cap_w: power limit of each GPU; None searches it, where the objective asks for that.
        gpu_hour, kwh: prices, for the cost.
        tokens: of the whole training, for its time, energy and cost.
    """

    model: str | DecoderShape
    gpu: str = "h100-sxm"
    gpus: int = 8
    seq: int = 2048
    global_batch: int | None = None
    precision: str = "bf16"
    attention: str = "flash"
    kernels: str = "eager"
    objective: str = "time"
    cap_w: float | None = None
    gpu_hour: float | None = None
    kwh: float = 0.0
    links: Links | None = None
    tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Layouts that fit, the best one first.

    Attributes:
        forecasts: the best of each distinct layout, by the objective.
        least_energy: the best layout at the power limit with the least energy, where it differs.
        evaluated, fitting: layouts with their micro-batch and checkpointing.
        closest: the layout that needs the least memory, where none fits.
        fewest_gpus: the least number of GPUs on which a layout fits, where none fits on these.
    """

    question: PlanQuestion
    forecasts: tuple[ParallelForecast, ...]
    least_energy: ParallelForecast | None
    evaluated: int
    fitting: int
    closest: ParallelForecast | None = None
    fewest_gpus: int | None = None

    @property
    def best(self) -> ParallelForecast | None:
        return self.forecasts[0] if self.forecasts else None

    @property
    def answer(self) -> str:
        """Return whether the model fits, in a sentence."""
        asked = self.question
        name = asked.model if isinstance(asked.model, str) else asked.model.name
        where = f"{name} on {asked.gpus} x {gpu_named(asked.gpu).product} with {asked.seq} tokens"
        if self.best is not None:
            best = self.best
            needs = format_bytes(best.memory_bytes)
            return (
                f"{where}: fits, {self.fitting} of {self.evaluated} layouts; the best needs "
                f"{needs} of {format_bytes(best.available_bytes)} per GPU"
            )
        near = self.closest
        if near is None:
            return f"{where}: no layout divides the model, the batch and the GPUs"
        more = (
            f"; {self.fewest_gpus} GPUs would do"
            if self.fewest_gpus
            else "; a shorter sequence or GPUs with more memory would help"
        )
        return (
            f"{where}: does not fit; the smallest, {near.layout} with "
            f"{near.question.checkpointing} checkpointing, needs {format_bytes(near.memory_bytes)} "
            f"of {format_bytes(near.available_bytes)} per GPU{more}"
        )

    def value(self, forecast: ParallelForecast) -> float:
        """Return the objective per token: seconds, joules, or money."""
        return objective_value(self.question, forecast)

    def to_dict(self) -> dict[str, Any]:
        asked = self.question
        return {
            "objective": asked.objective,
            "answer": self.answer,
            "fits": self.best is not None,
            "evaluated": self.evaluated,
            "fitting": self.fitting,
            "fewest_gpus": self.fewest_gpus,
            "best": None if self.best is None else self.best.to_dict(),
            "least_energy": None if self.least_energy is None else self.least_energy.to_dict(),
            "layouts": [each.to_dict() for each in self.forecasts],
            "closest": None if self.closest is None else self.closest.to_dict(),
        }


def plan(question: PlanQuestion) -> Plan:
    """Return the layouts that fit, the best one first.

    Raises:
        ConfigError: a part of the question is wrong; the message names it and the remedy.
    """
    _check(question)
    gpu = gpu_named(question.gpu)
    shape = question.model
    if isinstance(shape, str):
        shape = decoder_named(shape)
    question = replace(question, global_batch=question.global_batch or _batch(question))
    model = ParallelModel(gpu)
    checked(_asked(question, shape, Layout(), 1, "none"), gpu)  # sizes and precision
    candidates = list(_candidates(question, shape, model.gpu.link_gpus))
    roomy, fitting = [], []
    closest: tuple[float, ParallelQuestion] | None = None
    for each in candidates:
        needed, available = memory_of(model, each)
        if needed <= available:
            fitting.append(each)
        if needed <= TIGHT * available:
            roomy.append(each)
        if closest is None or needed < closest[0]:
            closest = needed, each
    if not fitting:
        near = None if closest is None else model.forecast(closest[1])
        return Plan(question, (), None, len(candidates), 0, near, _fewest(question, shape, model))
    found = sorted(
        (model.forecast(each) for each in roomy or fitting),
        key=lambda f: objective_value(question, f),
    )
    first: dict[str, ParallelForecast] = {}
    for each_found in found:
        first.setdefault(str(each_found.layout), each_found)
    found = list(first.values())
    least = None
    if question.cap_w is None:
        cooler = [_coolest(model, f) for f in found[:KEPT]]
        least = min(cooler, key=lambda f: f.token_j)
        if question.objective != "time":
            found = sorted(
                [*(_capped(question, model, f) for f in found[:KEPT]), *found[KEPT:]],
                key=lambda f: objective_value(question, f),
            )
    return Plan(question, tuple(found), least, len(candidates), len(fitting))


def objective_value(question: PlanQuestion, forecast: ParallelForecast) -> float:
    if question.objective == "energy":
        return forecast.token_j
    seconds = 1 / forecast.tokens_s
    if question.objective == "time":
        return seconds
    hours = forecast.layout.gpus * seconds / 3600
    return hours * (question.gpu_hour or 0.0) + forecast.token_j / 3.6e6 * question.kwh


def _check(question: PlanQuestion) -> None:
    if question.objective not in OBJECTIVES:
        raise ConfigError(
            f"objective {question.objective}: unknown; choose one of {', '.join(OBJECTIVES)}"
        )
    if question.objective == "cost" and not question.gpu_hour:
        raise ConfigError("objective cost: needs the price of a GPU hour; add --gpu-hour 2.50")
    if question.gpus < 1:
        raise ConfigError(f"gpus {question.gpus}: must be at least 1")


def _batch(question: PlanQuestion) -> int:
    """Return about 4 million tokens, as a multiple of as many GPUs as there are sequences for."""
    wanted = max(DEFAULT_TOKENS // question.seq, 1)
    unit = question.gpus
    while unit > wanted and unit % 2 == 0:
        unit //= 2
    return max(round(wanted / unit), 1) * unit


def _asked(
    question: PlanQuestion, shape: DecoderShape, layout: Layout, micro_batch: int, again: str
) -> ParallelQuestion:
    return ParallelQuestion(
        model=shape,
        gpu=question.gpu,
        layout=layout,
        seq=question.seq,
        micro_batch=micro_batch,
        global_batch=question.global_batch,
        precision=question.precision,
        checkpointing=again,
        attention=question.attention,
        kernels=question.kernels,
        cap_w=question.cap_w,
        links=question.links,
    )


def _candidates(
    question: PlanQuestion, shape: DecoderShape, link_gpus: int
) -> Iterator[ParallelQuestion]:
    """Yield the questions of all layouts that divide model, batch and GPUs."""
    gpu = gpu_named(question.gpu)
    for layout in _layouts(question.gpus, shape, question.seq, max(link_gpus, 1)):
        for micro_batch in MICRO_BATCHES:
            if (question.global_batch or 0) % (micro_batch * layout.dp):
                continue
            for again in ("none", "full"):
                asked = _asked(question, shape, layout, micro_batch, again)
                try:
                    checked(asked, gpu)
                except ConfigError:
                    break
                yield asked


def _layouts(gpus: int, shape: DecoderShape, seq: int, link_gpus: int) -> Iterator[Layout]:
    for tp in _powers(min(gpus, link_gpus, shape.heads)):
        for pp in _divisors(gpus // tp if gpus % tp == 0 else 0, shape.layers):
            for cp in _powers(min(gpus // tp // pp, max(seq // 8192, 1))):
                if gpus % (tp * pp * cp):
                    continue
                dp = gpus // (tp * pp * cp)
                for ep in _experts(shape, dp * cp * tp):
                    yield from _sharded(tp, pp, cp, dp, ep, link_gpus)


def _sharded(tp: int, pp: int, cp: int, dp: int, ep: int, link: int) -> Iterator[Layout]:
    base = Layout(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, sequence_parallel=tp > 1)
    replicas = dp * cp
    yield replace(base, zero=1 if replicas > 1 else 0)
    if pp > 1:
        yield from (replace(base, zero=1 if replicas > 1 else 0, chunks=v) for v in (2, 4))
        return
    if replicas == 1:
        return
    yield replace(base, zero=3)
    node = max(link // tp, 1)
    if 1 < node < replicas and replicas % node == 0:
        yield replace(base, zero=3, shard=node)


def _experts(shape: DecoderShape, stage_gpus: int) -> list[int]:
    if not shape.experts:
        return [1]
    sizes = [n for n in _powers(min(shape.experts, stage_gpus)) if shape.experts % n == 0]
    return [n for n in sizes if stage_gpus % n == 0]


def _powers(most: int) -> list[int]:
    return [2**i for i in range(max(most, 1).bit_length()) if 2**i <= most]


def _divisors(number: int, most: int) -> list[int]:
    return [n for n in range(1, min(number, most, 64) + 1) if number % n == 0]


def _caps(model: ParallelModel) -> list[float]:
    gpu = model.gpu
    low = max(gpu.cap_min_w, 0.4 * gpu.tdp_w)
    return [round(low + i * (gpu.tdp_w - low) / CAP_STEPS) for i in range(CAP_STEPS + 1)]


def _at_caps(model: ParallelModel, forecast: ParallelForecast) -> list[ParallelForecast]:
    asked = forecast.question
    return [model.forecast(replace(asked, cap_w=cap_w)) for cap_w in _caps(model)]


def _coolest(model: ParallelModel, forecast: ParallelForecast) -> ParallelForecast:
    return min(_at_caps(model, forecast), key=lambda f: f.token_j)


def _capped(
    question: PlanQuestion, model: ParallelModel, forecast: ParallelForecast
) -> ParallelForecast:
    return min([forecast, *_at_caps(model, forecast)], key=lambda f: objective_value(question, f))


def _fewest(question: PlanQuestion, shape: DecoderShape, model: ParallelModel) -> int | None:
    """Return the least number of GPUs, in doublings, on which some layout fits."""
    gpus = question.gpus
    for _ in range(8):
        gpus *= 2
        wider = replace(question, gpus=gpus, global_batch=None)
        wider = replace(wider, global_batch=_batch(wider))
        for each in _candidates(wider, shape, model.gpu.link_gpus):
            needed, available = memory_of(model, each)
            if needed <= available:
                return gpus
    return None
