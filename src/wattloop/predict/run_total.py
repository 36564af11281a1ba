"""Total of a whole run: predicted from one step, or from a measured run for another GPU.

Errors of a prediction are the same in every step, so intervals grow as the run does.
"""

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from wattloop.accounting.carbon import Intensity, find_intensity
from wattloop.accounting.summary import GpuPrice
from wattloop.core.errors import ConfigError
from wattloop.core.records import Scope, picked
from wattloop.core.settings import Settings
from wattloop.core.table import Table
from wattloop.core.units import (
    energy_range,
    format_bytes,
    format_duration,
    format_energy,
    format_mass,
    format_money,
    format_power,
    kwh_from_joules,
    short_energy,
)
from wattloop.hardware.gpus import Gpu, gpu_named
from wattloop.predict.cap_curve import static_power
from wattloop.predict.node import NodePrediction, node_prediction, node_with_settings
from wattloop.predict.prediction import Interval, Prediction
from wattloop.predict.request import is_number

if TYPE_CHECKING:
    from wattloop.predict.forecast import Forecast
    from wattloop.store.runs import RunRecord

MOST = 1e15
"""Larger numbers of steps, epochs or samples are typing errors."""


class PredictedAmount(NamedTuple):
    """Value with its interval; None when the model has no residuals."""

    value: float
    interval: Interval | None = None

    def times(self, factor: float) -> "PredictedAmount":
        if self.interval is None:
            return PredictedAmount(self.value * factor)
        low, high, confidence = self.interval
        return PredictedAmount(
            self.value * factor, Interval(low * factor, high * factor, confidence)
        )


@dataclass(frozen=True, slots=True)
class RunTotal:
    """Total of a run of `steps` steps.

    Attributes:
        steps: optimizer steps.
        time_s: from the first step to the last; starting, validating and saving are not in it.
        energy_j: of the scope, without the room.
        scope: `gpu`, or `node` when a node was predicted.
        facility_j: energy with the room's PUE, which cost and carbon are for.
        cost: of electricity, in `currency`; None with `cost_reason` without a tariff.
        carbon_g: grams of CO2e; None with `carbon_reason` without an intensity.
        intensity: what the carbon was reckoned with.
        notes: what was assumed, in words.
        gpu_cost: of the GPUs' hours, in `currency`; None without their price.
    """

    steps: int
    time_s: PredictedAmount
    energy_j: PredictedAmount
    scope: str
    facility_j: PredictedAmount
    pue: float
    cost: PredictedAmount | None
    currency: str
    carbon_g: PredictedAmount | None
    intensity: Intensity | None
    cost_reason: str = ""
    carbon_reason: str = ""
    notes: tuple[str, ...] = ()
    gpu_cost: PredictedAmount | None = None

    @property
    def money(self) -> float | None:
        """Return what the run costs in all: the hours of its GPUs and, with a tariff, power."""
        if self.gpu_cost is None:
            return None if self.cost is None else self.cost.value
        return self.gpu_cost.value + (0.0 if self.cost is None else self.cost.value)


@dataclass(frozen=True, slots=True)
class RunLength:
    """Extent of a forecast: a step or a whole run, GPUs alone or their nodes.

    Attributes:
        steps: optimizer steps of the run; or
        epochs, samples: passes over a data set of so many samples.
        node: whether the whole node counts, not only its GPUs.
        settings: tariff, carbon, PUE, and what is known of the node.
        price: of an hour of a GPU.
    """

    steps: int | None = None
    epochs: float | None = None
    samples: int | None = None
    node: bool = False
    settings: Settings = field(default_factory=Settings)
    price: GpuPrice | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "epochs", "samples"):
            value = getattr(self, name)
            if value is None:
                continue
            if not is_number(value):
                raise ConfigError(f"{name} {value!r}: must be a number above 0")
            if not value > 0:
                raise ConfigError(f"{name} {value:g}: must be above 0")
            if value >= MOST:
                raise ConfigError(f"{name} {MOST:g} or more: no run is that long; give fewer")
            if name != "epochs" and value % 1:
                raise ConfigError(f"{name} {value:g}: must be a whole number")
        if self.steps is not None and (self.epochs is not None or self.samples is not None):
            raise ConfigError(
                f"steps {self.steps}: give the number of steps, or epochs and samples, not both"
            )
        for name, other in (("epochs", "samples"), ("samples", "epochs")):
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise ConfigError(
                    f"{name} {getattr(self, name):g}: give {other} as well: steps are epochs x "
                    "samples / batch"
                )

    def run_steps(self, global_batch: int) -> int | None:
        """Return the optimizer steps of the run; None for a step alone.

        An epoch's last batch counts, however small it is.
        """
        if self.epochs is None or self.samples is None:
            return None if self.steps is None else int(self.steps)
        # 0.07 epochs of 100 steps are 7 steps, not 7.000000000000001 rounded up
        return max(1, math.ceil(round(self.epochs * math.ceil(self.samples / global_batch), 6)))

    def of(self, forecast: "Forecast") -> "Forecast":
        """Return the forecast with its node and run, where they are asked for."""
        prediction, node, run = forecast.prediction, None, None
        if self.node:
            parts = node_with_settings(forecast.placement.gpu, self.settings)
            node = node_prediction(prediction, parts)
        steps = self.run_steps(forecast.samples)
        if steps is not None:
            run = run_total(prediction, steps, self.settings, node=node)
        if run is not None and self.price is not None:
            place = forecast.placement
            per_s = self.price.cost(place.gpu.name, place.gpus, 1.0)
            gpu_cost = None if per_s is None else run.time_s.times(per_s)
            run = replace(run, gpu_cost=gpu_cost, currency=self.price.currency)
        return replace(forecast, node=node, run=run)


def run_total(
    prediction: Prediction,
    steps: int,
    settings: Settings,
    *,
    node: NodePrediction | None = None,
) -> RunTotal:
    """Return the total of the run: of its GPUs, or of its nodes when they were predicted.

    Args:
        prediction: one step.
        steps: how many.
        settings: tariff, currency, zone or carbon intensity, PUE.
        node: the same step's node.
    """
    time_s = PredictedAmount(prediction.step_s, prediction.step_interval).times(steps)
    if node is None:
        step_j = PredictedAmount(prediction.energy_j, prediction.energy_interval)
    else:
        step_j = _node_step_j(prediction, node)
    energy_j = step_j.times(steps)
    facility_j = energy_j.times(settings.pue)
    kwh = facility_j.times(kwh_from_joules(1.0))
    tariff = settings.tariff_per_kwh
    found = find_intensity(settings)
    intensity = found.found
    scope = "gpu" if node is None else "node"
    notes = [*found.notes]
    if node is None:
        notes.append("energy of the GPUs alone: CPU, memory, fans and power supply are not in it")
    if settings.pue == 1.0 and "pue" not in settings.sources:
        notes.append("PUE 1: cooling and distribution of the room are not counted; set pue")
    return RunTotal(
        steps=steps,
        time_s=time_s,
        energy_j=energy_j,
        scope=scope,
        facility_j=facility_j,
        pue=settings.pue,
        cost=None if tariff is None else kwh.times(tariff),
        currency=settings.currency,
        carbon_g=None if intensity is None else kwh.times(intensity.g_co2e_per_kwh),
        intensity=intensity,
        cost_reason="" if tariff is not None else "set tariff to your price per kWh",
        carbon_reason=found.reason,
        notes=tuple(notes),
    )


def _node_step_j(prediction: Prediction, node: NodePrediction) -> PredictedAmount:
    """Return the energy of a step at the socket; errors of time and of power are independent."""
    low, high, confidence = node.power_interval
    below, above = [1 - low / node.power_w], [high / node.power_w - 1]
    if prediction.step_interval is not None:
        below.append(1 - prediction.step_interval.low / prediction.step_s)
        above.append(prediction.step_interval.high / prediction.step_s - 1)
    least = max(0.0, 1 - math.hypot(*below))
    most = 1 + math.hypot(*above)
    whole_j = node.energy_j
    return PredictedAmount(whole_j, Interval(least * whole_j, most * whole_j, confidence))


# A measured run on another GPU. Without its model, the data sheets bound the time: a step is bound
# by memory traffic, by arithmetic or by the host, whose time no GPU changes. A mean of the ratios,
# mostly of memory, is the estimate. On 372 pairs of published measurements (Zeus, Gavel, NeuSight,
# LLM Foundry), on which the weight was chosen, its median error is 13%, and 96% lie within the
# bounds (test_other_gpu.py).
MEMORY_WEIGHT = 0.7
"""Of the bandwidth of memory in the geometric mean; the peaks share the rest."""
BEYOND = 1.15
"""What the least and the largest ratio of two data sheets are stretched by."""
POWER_FACTOR = 1.35
"""Of 70 pairs of Zeus, V100 and A40, 93% of the mean powers are within it."""
WITHOUT_MODEL = (
    "predict from its model instead: wattloop predict --model hf:NAME --batch N --steps N --gpu {}"
)


def _other_way(record: "RunRecord", gpu: str) -> str:
    """Return the command that predicts the program of a run, where that is a Python file."""
    words = list(record.command or ())
    at = next((n for n, word in enumerate(words) if word.endswith(".py")), None)
    if at is None:
        return WITHOUT_MODEL.format(gpu)
    given = shlex.join(["--script", words[at], "--gpu", gpu, "--", *words[at + 1 :]])
    return f"predict from its program instead: wattloop predict {given.removesuffix(' --')}"


@dataclass(frozen=True, slots=True)
class SourceJob:
    """What is known of a measured run that is asked for on another GPU.

    Attributes:
        gpu, gpus: on which it ran, and how many of them.
        gpu_j, host_j: energy of its GPUs, and of everything else that was read.
        facility_j: drawn from the grid for it, as it was accounted for.
        tariff_per_kwh, currency, g_co2e_per_kwh: of the settings, else those of the run.
        price: of an hour of a GPU.
    """

    run_id: str
    name: str
    gpu: Gpu
    gpus: int
    duration_s: float
    gpu_j: float
    host_j: float
    facility_j: float
    tariff_per_kwh: float | None
    currency: str
    g_co2e_per_kwh: float | None
    finished: bool
    price: GpuPrice | None = None

    @property
    def energy_j(self) -> float:
        return self.gpu_j + self.host_j

    def rent(self, gpu: Gpu, time_s: PredictedAmount) -> PredictedAmount | None:
        """Return the price of its GPUs' hours on GPUs of this kind."""
        per_s = None if self.price is None else self.price.cost(gpu.name, self.gpus, 1.0)
        return None if per_s is None else time_s.times(per_s)

    def priced(self, facility_j: PredictedAmount) -> "PricedEnergy":
        """Return cost and CO2e of an energy from the grid."""
        kwh = facility_j.times(kwh_from_joules(1.0))
        tariff, grams = self.tariff_per_kwh, self.g_co2e_per_kwh
        return PricedEnergy(
            None if tariff is None else kwh.times(tariff),
            None if grams is None else kwh.times(grams),
        )


class PricedEnergy(NamedTuple):
    """Cost and grams of CO2e; None where the tariff or the intensity is not known."""

    cost: PredictedAmount | None
    carbon_g: PredictedAmount | None


@dataclass(frozen=True, slots=True)
class JobOnGpu:
    """A measured job on another GPU, as modelled; energies as in `SourceJob`."""

    job: SourceJob
    gpu: Gpu
    time_s: PredictedAmount
    power_w: PredictedAmount
    energy_j: PredictedAmount
    facility_j: PredictedAmount
    cost: PredictedAmount | None
    carbon_g: PredictedAmount | None
    source: str
    notes: tuple[str, ...]

    @property
    def gpu_cost(self) -> PredictedAmount | None:
        """Of the GPUs' hours; None without their price."""
        return self.job.rent(self.gpu, self.time_s)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        names = ("time_s", "power_w", "energy_j", "facility_j", "cost", "gpu_cost", "carbon_g")
        amounts = {name: getattr(self, name) for name in names}
        job = "run_id name gpus duration_s energy_j facility_j tariff_per_kwh currency"
        return {
            "measured": {**picked(self.job, job), "gpu": self.job.gpu.name},
            "gpu": self.gpu.name,
            **{
                name: amount
                and {
                    "value": amount.value,
                    "interval": amount.interval and list(amount.interval[:2]),
                }
                for name, amount in amounts.items()
            },
            "provenance": "modelled",
            "source": self.source,
            "notes": list(self.notes),
        }


def measured_job(record: "RunRecord", settings: Settings, wanted: str) -> SourceJob:
    """Return what a stored run says about its job.

    Raises:
        ConfigError: it is not over, or its GPU was not read or is not known; with the remedy.
    """
    called = f"run {record.run_id}"
    result, remedy = record.result, _other_way(record, wanted)
    if result is None or not record.duration_s:
        raise ConfigError(f"{called}: it has not ended, so its time and energy are not known yet")
    gpus = [part for part in result.counted if part.scope is Scope.GPU and part.energy_j]
    if not gpus:
        raise ConfigError(
            f"{called}: no GPU was read, so nothing says how much work it had; {remedy}"
        )
    devices = sorted({part.device.removeprefix("virtual ") for part in gpus})
    try:
        found = {gpu_named(device).name: gpu_named(device) for device in devices if device}
    except ConfigError as error:
        raise ConfigError(f"{called}: {error}; or {remedy}") from None
    if len(found) != 1:
        raise ConfigError(f"{called}: it used {', '.join(devices) or 'an unnamed GPU'}; {remedy}")
    gpu_j = math.fsum(part.energy_j or 0.0 for part in gpus)
    total_j = result.energy_j or gpu_j
    told = record.accounting or {}
    grid = told.get("facility") or {}
    facility_j = float(grid.get("energy_j") or total_j)
    if "pue" in settings.sources and grid.get("pue"):
        facility_j *= settings.pue / grid["pue"]
    tariff, currency = settings.tariff_per_kwh, settings.currency
    cost = told.get("cost") or {}
    if tariff is None and isinstance(cost.get("tariff_per_kwh"), int | float):
        tariff, currency = float(cost["tariff_per_kwh"]), str(cost.get("currency") or "")
    grams = (told.get("carbon_intensity") or {}).get("g_co2e_per_kwh")
    if grams is None or settings.zone or settings.carbon_g_per_kwh is not None:
        intensity = find_intensity(settings).found
        grams = grams if intensity is None else intensity.g_co2e_per_kwh
    return SourceJob(
        run_id=record.run_id,
        name=record.name or record.run_id,
        gpu=next(iter(found.values())),
        gpus=len(gpus),
        duration_s=record.duration_s,
        gpu_j=gpu_j,
        host_j=max(0.0, total_j - gpu_j),
        facility_j=facility_j,
        tariff_per_kwh=tariff,
        currency=currency,
        g_co2e_per_kwh=grams,
        finished=record.status.value == "finished",
    )


def job_on_gpu(job: SourceJob, gpu: Gpu) -> JobOnGpu:
    """Return time, energy, cost and CO2e of the same work on as many GPUs of another kind.

    Time is scaled by bandwidth and peaks of the data sheets. A GPU draws power at the same point
    between rest and limit, the rest of the machine draws what it drew.
    """
    time_s = _time_ratio(job.gpu, gpu).times(job.duration_s)
    power_w = _power(job, gpu)
    spreads = [_spread(time_s), _spread(power_w)]
    value_j = job.gpus * time_s.value * power_w.value
    low, high = (math.exp(math.hypot(*(each[at] for each in spreads))) for at in (0, 1))
    host_w = job.host_j / job.duration_s
    assert time_s.interval is not None
    energy_j = PredictedAmount(
        value_j + host_w * time_s.value,
        Interval(
            value_j / low + host_w * time_s.interval.low,
            value_j * high + host_w * time_s.interval.high,
        ),
    )
    facility_j = energy_j.times(job.facility_j / job.energy_j)
    return JobOnGpu(
        job, gpu, time_s, power_w, energy_j, facility_j, *job.priced(facility_j),
        source=f"modelled from the run and the data sheets of {job.gpu.name} and {gpu.name}: its "
        "model is not used",
        notes=tuple(_job_notes(job, gpu)),
    )  # fmt: skip


def job_table(found: JobOnGpu) -> Table:
    """Return a measured job next to what it would be on the other GPU."""
    job = found.job
    priced = job.priced(PredictedAmount(job.facility_j))

    def money(value: float) -> str:
        return f"{format_money(value)} {job.currency}".rstrip()

    def mass(mass_g: float) -> str:
        return f"{format_mass(mass_g)} CO2e"

    was_w = job.gpu_j / job.gpus / job.duration_s
    rows = [
        _compared("time", job.duration_s, found.time_s, format_duration),
        _compared("power per GPU", was_w, found.power_w, format_power),
        _compared("energy", job.energy_j, found.energy_j, short_energy),
        _compared("from the grid", job.facility_j, found.facility_j, short_energy),
    ]
    if priced.cost is not None and found.cost is not None:
        rows.append(_compared("cost", priced.cost.value, found.cost, money))
    if found.gpu_cost is not None:
        was = job.rent(job.gpu, PredictedAmount(job.duration_s))
        texts = _compared("GPU hours", 0.0 if was is None else was.value, found.gpu_cost, money)
        rows.append(texts if was is not None else (texts[0], "–", *texts[2:]))
    if priced.carbon_g is not None and found.carbon_g is not None:
        rows.append(_compared("carbon", priced.carbon_g.value, found.carbon_g, mass))
    heads = ("", f"measured, {job.gpus} x {job.gpu.name}", f"{job.gpus} x {found.gpu.name}")
    title = f"{job.name} on {found.gpu.product}"
    return Table.of((*heads, "90% interval"), rows, title=title, numbers=(1, 2))


def _compared(
    what: str, measured: float, amount: PredictedAmount, shown: Callable[[float], str]
) -> tuple[str, str, str, str]:
    assert amount.interval is not None
    low, high, _ = amount.interval
    return what, shown(measured), shown(amount.value), interval_text(low, high, shown)


def interval_text(low: float, high: float, shown: Callable[[float], str]) -> str:
    """Format an interval: `170 to 195 ms`."""
    if shown in (format_energy, short_energy):
        return energy_range(low, high)
    one, other = shown(low), shown(high)
    number, _, unit = one.partition(" ")
    return f"{number} to {other}" if other.partition(" ")[2] == unit else f"{one} to {other}"


def _time_ratio(own: Gpu, other: Gpu) -> PredictedAmount:
    """Return the time on `other` relative to that on `own`."""
    memory = own.memory_bytes_s / other.memory_bytes_s
    peaks = [_peak(own) / _peak(other)]
    if "fp32" in own.vector_flops and "fp32" in other.vector_flops:
        peaks.append(own.vector_flops["fp32"] / other.vector_flops["fp32"])
    logs = [math.log(peak) for peak in peaks]
    mean = MEMORY_WEIGHT * math.log(memory) + (1 - MEMORY_WEIGHT) * sum(logs) / len(logs)
    ratios = [1.0, memory, *peaks]
    return PredictedAmount(math.exp(mean), Interval(min(ratios) / BEYOND, max(ratios) * BEYOND))


def _peak(gpu: Gpu) -> float:
    halves = [
        gpu.matrix_flops[name] for name in ("bf16", "fp16", "tf32") if name in gpu.matrix_flops
    ]
    return max(*halves, *gpu.vector_flops.values())


def _power(job: SourceJob, gpu: Gpu) -> PredictedAmount:
    rest_w, limit_w = static_power(job.gpu).watts, job.gpu.tdp_w
    load = (job.gpu_j / job.gpus / job.duration_s - rest_w) / (limit_w - rest_w)
    low_w = static_power(gpu).watts
    value_w = low_w + min(max(load, 0.0), 1.0) * (gpu.tdp_w - low_w)
    high_w = min(value_w * POWER_FACTOR, gpu.tdp_w)
    return PredictedAmount(value_w, Interval(value_w / POWER_FACTOR, high_w))


def _spread(amount: PredictedAmount) -> tuple[float, float]:
    """Return the logarithms of value over low and of high over value."""
    assert amount.interval is not None
    low, high, _ = amount.interval
    return math.log(amount.value / low), math.log(max(high / amount.value, 1.0))


def _job_notes(job: SourceJob, gpu: Gpu) -> list[str]:
    notes = []
    if job.tariff_per_kwh is None:
        notes.append(
            "no cost: no tariff is known; add --tariff '0.25 EUR', or write "
            "'tariff: {per_kwh: 0.25, currency: EUR}' into wattloop.yaml"
        )
    elif job.price is None:
        notes.append(
            f"cost is that of the electricity at {job.tariff_per_kwh:g} {job.currency}/kWh; "
            "--price 2.50 adds that of GPU hours"
        )
    if job.g_co2e_per_kwh is None:
        notes.append("no CO2e: no country is known; add --zone FRA, or set zone in wattloop.yaml")
    notes += [
        f"time scales with the bandwidth of memory ({job.gpu.memory_bytes_s / 1e12:.2f} to "
        f"{gpu.memory_bytes_s / 1e12:.2f} TB/s) and less with the peak "
        f"({_peak(job.gpu) / 1e12:.0f} to {_peak(gpu) / 1e12:.0f} TFLOPS); the interval holds jobs "
        "that are bound by one of them, or by host and data",
        "CPU and memory draw the power that they drew",
    ]
    if not job.finished:
        notes.append("the run did not finish: this is for the part that ran")
    if gpu.memory_bytes < 0.99 * job.gpu.memory_bytes:
        notes.append(
            f"{gpu.name} has {format_bytes(gpu.memory_bytes)} of memory, {job.gpu.name} "
            f"{format_bytes(job.gpu.memory_bytes)}: it may not fit"
        )
    return notes
