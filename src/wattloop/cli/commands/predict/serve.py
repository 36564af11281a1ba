"""`wattloop predict serve`: a language model that answers requests, before it runs."""

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from wattloop.cli.commands.predict.options import with_options_named
from wattloop.cli.commands.predict.parallel import format_parameters
from wattloop.cli.options import JsonFile, option
from wattloop.cli.output import present, print_rows, say
from wattloop.core.errors import ConfigError
from wattloop.core.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_power,
    format_share,
)
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.cap_curve import static_power
from wattloop.predict.serving import (
    ENGINES,
    WEIGHT_BYTES,
    DecoderShape,
    ServingForecast,
    ServingModel,
    ServingQuestion,
    decoder_named,
    least_energy,
    load_at_rate,
    serving_model,
)

if TYPE_CHECKING:
    from wattloop.predict.generation import GenerationModel


def serve_command(  # noqa: PLR0913 - one parameter per option
    *,
    model: str = option("--model -m MODEL", "hf:NAME, or hf:PATH/config.json."),
    gpu: str = option("--gpu -g NAME", "Such as h200, b200, or my_gpu.yaml.", "h200"),
    tp: int = option("--tp", "GPUs that share every layer (tensor parallel).", 1),
    concurrency: int = option("--concurrency", "Requests that run at the same time.", 32),
    requests_per_s: float | None = option(
        "--requests-per-s", "Requests that arrive, in place of --concurrency."
    ),
    prompt: int = option("--prompt", "Tokens of a prompt.", 512),
    output: int = option("--output", "Tokens of an answer.", 512),
    weights: str = option("--weights", f"{', '.join(WEIGHT_BYTES)}.", "bf16"),
    engine: str = option("--engine", f"{' or '.join(ENGINES)} (the model's own passes).", "vllm"),
    cuda_graph: bool = option(
        "--cuda-graph", "Replay decode steps of Transformers as a CUDA graph."
    ),
    cap: float | None = option("--cap WATTS", "Power limit of each GPU."),
    json_file: JsonFile = None,
) -> None:
    """Predict latency, throughput, power and energy per token of a language model server."""
    with with_options_named():
        question = ServingQuestion(
            model=model,
            gpu=gpu,
            concurrency=concurrency,
            prompt=prompt,
            output=output,
            weights=weights,
            tp=tp,
            cap_w=cap,
            engine=engine,
            cuda_graph=cuda_graph,
        )
        shape = decoder_named(model)
        server = serving_model(question, gpu_named(gpu))
        if requests_per_s is not None:
            question = _at_rate(server, question, shape, requests_per_s)
        forecast = server.forecast(question, shape)
        best = None
        if cap is None:
            best = least_energy(
                server.gpu, lambda cap_w: server.forecast(replace(question, cap_w=cap_w), shape)
            )

    def data() -> dict[str, object]:
        return {**forecast.to_dict(), "best_cap": None if best is None else best.to_dict()}

    present(json_file, data, lambda: _show(forecast, best))


def _at_rate(
    server: "ServingModel | GenerationModel",
    question: ServingQuestion,
    shape: DecoderShape,
    requests_per_s: float,
) -> ServingQuestion:
    """Return the question with as many requests at the same time as the rate keeps running."""
    if not requests_per_s > 0:
        raise ConfigError(f"requests-per-s {requests_per_s:g}: must be above 0")
    idle_w = question.tp * static_power(server.gpu).watts
    steady = load_at_rate(
        lambda requests: server.forecast(replace(question, concurrency=requests), shape),
        requests_per_s,
        idle_w,
    )
    say(
        f"{requests_per_s:g} requests/s: {steady.requests:.3g} at the same time in the mean, "
        f"{format_power(steady.power_w)} with {format_power(idle_w)} while none runs"
    )
    return replace(question, concurrency=max(1, round(steady.requests)))


def _show(forecast: ServingForecast, best: ServingForecast | None) -> None:
    asked, gpu = forecast.question, forecast.gpu
    title = (
        f"{asked.model} ({format_parameters(forecast)}), {asked.weights}, on "
        f"{asked.tp} x {gpu.product}: {asked.concurrency} requests of {asked.prompt} + "
        f"{asked.output} tokens"
    )
    memory = format_bytes(forecast.memory_bytes)
    print_rows(
        ("", "predicted"),
        [
            ("time to first token", format_duration(forecast.first_token_s)),
            ("time between tokens", format_duration(forecast.token_s)),
            ("throughput", f"{forecast.tokens_s:,.0f} tokens/s"),
            ("power of all GPUs", format_power(forecast.power_w)),
            ("GPU energy per token", format_energy(forecast.token_j)),
            ("GPU energy per request", format_energy(forecast.request_j)),
            ("memory per GPU", f"{memory} of {format_bytes(forecast.available_bytes)}"),
            ("most requests that fit", f"{forecast.most_requests:,}"),
        ],
        title=title,
    )
    typer.echo()
    rows = [
        (part, format_duration(seconds), format_share(seconds / sum(forecast.parts_s.values()), 0))
        for part, seconds in forecast.parts_s.items()
        if seconds > 0.005 * sum(forecast.parts_s.values())
    ]
    what = "decode step" if asked.engine == "transformers" else "iteration without prompts"
    print_rows((f"part of {'a' if what[0] == 'd' else 'an'} {what}", "time", "share"), rows)
    if best is not None and best.question.cap_w is not None:
        saved = 1 - best.token_j / forecast.token_j
        slower = best.token_s / forecast.token_s - 1
        if saved > 0.005:
            say(
                f"least energy per token: {saved:.0%} less at a cap of "
                f"{best.question.cap_w:.0f} W, {slower:.0%} slower"
            )
    if not forecast.is_below_cap:
        say(
            f"warning: the lowest clock draws more than {asked.cap_w or gpu.tdp_w:g} W; the GPUs "
            "would slow down in ways that are not modelled"
        )
    for note in forecast.notes:
        say(f"note: {note}")
