"""Predictions as report parts."""

from collections.abc import Callable, Mapping

from wattloop.core.table import Table
from wattloop.core.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_mass,
    format_money,
    format_number,
    format_power,
    format_share,
    short_energy,
)
from wattloop.predict.forecast import Forecast
from wattloop.predict.parallel.plan import Plan
from wattloop.predict.prediction import Interval
from wattloop.predict.run_total import PredictedAmount, RunTotal
from wattloop.predict.serving import ServingForecast
from wattloop.report.document import Block, Chart, Fact, Facts, Note
from wattloop.report.figures.prediction import parts_figure

ONE_GPU = "predicted, of one GPU"


def forecast_blocks(found: Forecast) -> list[Block]:
    step = found.prediction
    facts = (
        Fact("Step", format_duration(step.step_s), _between(step.step_interval, format_duration)),
        Fact(
            "Power per GPU", format_power(step.power_w), _between(step.power_interval, format_power)
        ),
        Fact(
            "Energy per step",
            short_energy(step.energy_j),
            _between(step.energy_interval, lambda j: short_energy(j, step.energy_j)),
        ),
        Fact("Throughput", f"{format_number(found.throughput_samples_s)} samples/s"),
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
    blocks: list[Block] = [Facts(facts), *warnings, _picture(found), terms, top, *notes, said]
    return blocks if found.run is None else [*_run_blocks(found.run), *blocks]


def _run_blocks(run: RunTotal) -> list[Block]:
    """Present the whole training: what it would cost."""
    steps = f"{run.steps:,} steps"
    whose = "GPUs" if run.scope == "gpu" else "nodes"
    facts = [
        Fact("Time", *_amounts(run.time_s, format_duration)),
        Fact(f"Energy of {steps}, {whose}", *_amounts(run.energy_j, format_energy)),
    ]
    if run.cost is not None:
        facts.append(
            Fact("Cost", *_amounts(run.cost, lambda x: f"{format_money(x)} {run.currency}"))
        )
    if run.gpu_cost is not None:
        text = _amounts(run.gpu_cost, lambda x: f"{format_money(x)} {run.currency}")
        facts.append(Fact("Hours of the GPUs", *text))
    if run.carbon_g is not None:
        facts.append(Fact("CO2e", *_amounts(run.carbon_g, format_mass)))
    lacked = [
        Note(f"{reason}.", tone="info", title=f"No {name}:")
        for name, reason in (("cost", run.cost_reason), ("CO2e", run.carbon_reason))
        if reason
    ]
    return [Facts(tuple(facts)), *lacked]


def _amounts(amount: PredictedAmount, shown: Callable[[float], str]) -> tuple[str, str]:
    return shown(amount.value), _between(amount.interval, shown)


def _picture(found: Forecast) -> Chart:
    work, needed = found.workload, found.memory.needed_bytes
    held = {
        "weights": work.parameter_bytes,
        "gradients": work.gradient_bytes if work.training else 0.0,
        "optimizer states": work.optimizer_bytes,
        "activations": work.activation_bytes,
    }
    held["context, inputs, temporary"] = max(0.0, needed - sum(held.values()))
    bars = {
        "time of a step": found.prediction.terms_s,
        "energy of a step": found.prediction.terms_j,
        "memory at its peak": held,
    }
    return _parts("where", {what: parts for what, parts in bars.items() if parts}, ONE_GPU)


def _parts(name: str, bars: Mapping[str, Mapping[str, float]], subtitle: str) -> Chart:
    said = [
        f"{what}: "
        + ", ".join(f"{part} {format_share(each / sum(parts.values()), 0)}"
                    for part, each in sorted(parts.items(), key=lambda one: -one[1])[:4])
        for what, parts in bars.items()
    ]  # fmt: skip
    return Chart(name, parts_figure(bars, subtitle), "; ".join(said))


def serving_blocks(found: ServingForecast, best: ServingForecast | None = None) -> list[Block]:
    """Present a served model; `best` is the power limit with the least energy."""
    asked = found.question
    facts = (
        Fact("First token", format_duration(found.first_token_s)),
        Fact("Between tokens", format_duration(found.token_s)),
        Fact("Throughput", f"{format_number(found.tokens_s)} tokens/s"),
        Fact("Power", format_power(found.power_w), f"of {asked.tp} x {found.gpu.product}"),
        Fact("Energy per token", short_energy(found.token_j)),
        Fact("Energy per request", short_energy(found.request_j)),
        Fact(
            "Memory per GPU",
            format_bytes(found.memory_bytes),
            f"of {format_bytes(found.available_bytes)}; up to {found.most_requests} requests fit",
        ),
    )
    blocks: list[Block] = [
        Facts(facts),
        _parts(
            "where",
            {"time of an iteration": found.parts_s, "energy of an iteration": found.parts_j},
            ONE_GPU,
        ),
    ]
    if best is not None and best.question.cap_w is not None:
        blocks.append(
            Note(
                f"a cap of {best.question.cap_w:g} W per GPU: {format_energy(best.token_j)} per "
                f"token, {format_duration(best.token_s)} between tokens",
                title="Least energy:",
            )
        )
    command = (
        f"wattloop predict serve --model {asked.model} --gpu {found.gpu.name} --tp {asked.tp} "
        f"--concurrency {asked.concurrency} --prompt {asked.prompt} --output {asked.output} "
        f"--weights {asked.weights}"
    )
    said = Note("Predicted, not measured; energy of the GPUs.", tone="info", command=command)
    return [*blocks, *(Note(text, tone="info") for text in found.notes), said]


def plan_blocks(found: Plan) -> list[Block]:
    """Present the layouts of a training over many GPUs, the best one first."""
    asked, best = found.question, found.best
    command = (
        f"wattloop predict plan --model {asked.model} --gpus {asked.gpus} --gpu {asked.gpu} "
        f"--seq {asked.seq} --objective {asked.objective}"
    )
    said = Note("Predicted, not measured; energy of the GPUs.", tone="info", command=command)
    if best is None:
        return [Note(found.answer, tone="warning", title="Does not fit:"), said]
    facts = (
        Fact("Best layout", str(best.layout), f"{best.question.checkpointing} checkpointing"),
        Fact("Step", format_duration(best.step_s), _between(best.step_interval, format_duration)),
        Fact("Throughput", f"{format_number(best.tokens_s)} tokens/s"),
        Fact("Power per GPU", format_power(best.power_w)),
        Fact("Energy per token", short_energy(best.token_j)),
        Fact("Memory per GPU", format_bytes(best.memory_bytes)),
    )
    bars = {
        "time of a step": best.parts_s,
        "energy of a step": best.parts_j,
        "memory of the fullest GPU": best.memory,
    }
    table = Table.of(
        ("layout", "micro-batch", "checkpointing", "tokens/s", "power per GPU", "per token",
         "memory"),
        tuple(
            (
                str(each.layout), str(each.question.micro_batch), each.question.checkpointing,
                format_number(each.tokens_s), format_power(each.power_w),
                short_energy(each.token_j), format_bytes(each.memory_bytes),
            )
            for each in found.forecasts[:MOST_LAYOUTS]
        ),
        title=f"Layouts with the least {asked.objective}",
        numbers=(3, 4, 5, 6),
    )  # fmt: skip
    picture = _parts("where", bars, f"predicted, of the best layout, {best.layout}")
    notes = [Note(text, tone="info") for text in best.notes]
    return [Note(found.answer, tone="plain"), Facts(facts), picture, table, *notes, said]


MOST_LAYOUTS = 12


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
