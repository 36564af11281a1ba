"""`wattloop predict serve`: a language model that answers requests, before it runs."""

import typer

from wattloop.cli.commands.predict.options import with_options_named
from wattloop.cli.commands.predict.parallel import format_parameters
from wattloop.cli.options import JsonFile, option
from wattloop.cli.output import present, print_rows, say
from wattloop.core.units import (
    format_bytes,
    format_duration,
    format_energy,
    format_power,
    format_share,
)
from wattloop.predict.serving import (
    ENGINES,
    WEIGHT_BYTES,
    ServingForecast,
    ServingQuestion,
    decoder_named,
    serving_model,
)


def serve_command(  # noqa: PLR0913 - one parameter per option
    *,
    model: str = option("--model -m MODEL", "hf:NAME, or hf:PATH/config.json."),
    gpu: str = option("--gpu -g NAME", "Such as h200, b200, or my_gpu.yaml.", "h200"),
    tp: int = option("--tp", "GPUs that share every layer (tensor parallel).", 1),
    concurrency: int = option("--concurrency", "Requests that run at the same time.", 32),
    prompt: int = option("--prompt", "Tokens of a prompt.", 512),
    output: int = option("--output", "Tokens of an answer.", 512),
    weights: str = option("--weights", f"{', '.join(WEIGHT_BYTES)}.", "bf16"),
    engine: str = option("--engine", f"{' or '.join(ENGINES)} (the model's own passes).", "vllm"),
    cuda_graph: bool = option(
        "--cuda-graph", "Replay decode steps of Transformers as a CUDA graph.", False
    ),
    cap: float | None = option("--cap WATTS", "Power limit of each GPU.", None),
    json_file: JsonFile = None,
) -> None:
    """Predict latency, throughput, power and energy per token of a language model server."""
    from wattloop.hardware.gpus import gpu_named

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
        forecast = server.forecast(question, shape)
        best = server.best_cap(question, shape) if cap is None else None

    def data() -> dict[str, object]:
        return {**forecast.to_dict(), "best_cap": None if best is None else best.to_dict()}

    present(json_file, data, lambda: _show(forecast, best))


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
