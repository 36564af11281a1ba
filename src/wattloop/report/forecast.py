"""Predictions as report parts."""

from wattloop.core.table import Table
from wattloop.core.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_number,
    format_power,
    format_share,
)
from wattloop.predict.forecast import Forecast
from wattloop.predict.prediction import Interval
from wattloop.report.document import Block, Fact, Facts, Note


def forecast_blocks(found: Forecast) -> list[Block]:
    step = found.prediction
    facts = (
        Fact("Step", format_duration(step.step_s), _between(step.step_interval, format_duration)),
        Fact(
            "Power per GPU", format_power(step.power_w), _between(step.power_interval, format_power)
        ),
        Fact(
            "Energy per step",
            format_energy(step.energy_j).partition(" (")[0],
            _between(step.energy_interval, lambda j: format_energy(j).partition(" (")[0]),
        ),
        Fact("Throughput", f"{format_number(found.throughput_samples_s, group=',')} samples/s"),
        Fact("Bound by", step.regime.value.removesuffix("-bound")),
        Fact("Memory", format_bytes(found.memory.needed_bytes), found.memory.words),
    )
    terms = Table.of(
        ("term", "time", "share"),
        tuple(
            (name, format_duration(value_s), format_share(value_s / step.step_s, 0))
            for name, value_s in sorted(step.terms_s.items(), key=lambda item: -item[1])
        ),
        title=f"What the step is made of, by {step.model or found.estimator}",
        numbers=(1, 2),
    )
    top = Table.of(
        ("operation", "GPU time"),
        tuple((name, format_duration(value_s)) for name, value_s in found.top_operations_s.items()),
        title="Operations that take longest",
        numbers=(1,),
    )
    warnings = [Note(text, tone="warning", title="Beware:") for text in found.all_warnings]
    notes = [Note(text, tone="info") for text in found.notes]
    said = Note(
        "Predicted, not measured; energy of the GPUs.", tone="info", command=_command(found)
    )
    return [Facts(facts), *warnings, terms, top, *notes, said]


def _command(found: Forecast) -> str:
    place, work = found.placement, found.workload
    cap = f" --cap {place.cap_w:g}" if place.cap_w else ""
    host = f" --host-speed {place.host_speed:g}" if place.host_speed != 1 else ""
    fused = f" --compile {work.compile_mode}" if work.compile_mode else ""
    return (
        f"wattloop predict --model {work.name} --batch {work.batch} --precision {work.precision}"
        f" --gpu {place.gpu.name} --gpus {place.gpus}{fused}{cap}{host}"
    )


def _between(interval: Interval | None, shown: object) -> str:
    if interval is None or not callable(shown):
        return "no interval known"
    return f"{interval.confidence:.0%}: {shown(interval.low)} to {shown(interval.high)}"
