"""`wattloop predict plan` and `--parallel`: a training over many GPUs, before it runs."""

from typing import TYPE_CHECKING, Any

import typer

from wattloop.cli.commands.predict.options import WorkloadOptions, with_options_named
from wattloop.cli.options import JsonFile, option
from wattloop.cli.output import present, print_rows, say
from wattloop.cli.progress import spinner
from wattloop.core.errors import ConfigError
from wattloop.core.units import format_bytes, format_duration, format_energy, format_power
from wattloop.hardware.gpus import Gpu, gpu_named

if TYPE_CHECKING:
    from wattloop.predict.parallel.layout import Links
    from wattloop.predict.parallel.model import ParallelForecast
    from wattloop.predict.parallel.plan import Plan
    from wattloop.predict.serving import ServingForecast


def plan_command(  # noqa: PLR0913 - one parameter per option
    *,
    model: str = option("--model -m MODEL", "hf:NAME, or hf:PATH/config.json."),
    gpu: str = option("--gpu -g NAME", "Such as h100-sxm, or my_gpu.yaml.", "h100-sxm"),
    gpus: int = option("--gpus", "How many train together.", 8),
    seq: int = option("--seq", "Tokens of a sequence.", 4096),
    global_batch: int | None = option(
        "--global-batch", "Sequences of a step (default: about 4 million tokens)."
    ),
    objective: str = option("--objective", "Least time, energy or cost.", "time"),
    precision: str = option("--precision -p", "bf16, fp16, fp32, tf32 or fp8.", "bf16"),
    kernels: str = option("--kernels", "eager, or fused (torch.compile, Megatron-LM).", "eager"),
    cap: float | None = option("--cap WATTS", "Power limit of each GPU, not searched."),
    network: float | None = option("--network GBIT", "Gbit/s of a node towards another."),
    hop: float | None = option(
        "--hop MICROSECONDS", "Latency of a hop between GPUs (default: a few)."
    ),
    per_node: int | None = option("--gpus-per-node", "GPUs of a node (default: 8)."),
    cluster: str | None = option("--cluster FILE", "Take nodes and links from there."),
    gpu_hour: float | None = option("--gpu-hour PRICE", "Of one GPU, for the cost."),
    kwh: float = option("--kwh PRICE", "Of electricity, for the cost.", 0.0),
    tokens: float | None = option("--tokens", "Of the whole training, such as 1e12."),
    top: int = option("--top", "Layouts to show.", 8, min=1),
    json_file: JsonFile = None,
) -> None:
    """Search the layout of a training over many GPUs: what fits, and what is best."""
    from wattloop.predict.parallel.plan import PlanQuestion, plan

    with with_options_named(), spinner(f"searching layouts of {model}"):
        links = links_asked(
            gpu_named(gpu), network=network, hop=hop, per_node=per_node, cluster=cluster
        )
        found = plan(
            PlanQuestion(
                model=model,
                gpu=gpu,
                gpus=gpus,
                seq=seq,
                global_batch=global_batch,
                objective=objective,
                precision=precision,
                kernels=kernels,
                cap_w=cap,
                gpu_hour=gpu_hour,
                kwh=kwh,
                links=links,
                tokens=tokens,
            )
        )
    present(json_file, found.to_dict, lambda: _show_plan(found, top))


def links_asked(
    gpu: "Gpu",
    *,
    network: float | None,
    hop: float | None = None,
    per_node: int | None = None,
    cluster: str | None = None,
) -> "Links | None":
    """Return the links of a cluster file, or as options tell; None for those of the maker."""
    from wattloop.predict.parallel.layout import Links

    if network is not None and not network > 0:
        raise ConfigError(f"network {network:g} Gbit/s: must be above 0")
    given: dict[str, Any] = {
        "gpus_per_node": per_node,
        "network_bytes_s": None if network is None else network * 1e9 / 8,
        "hop_s": None if hop is None else hop * 1e-6,
    }
    if cluster is not None:
        from wattloop.schedule.cluster.file import load_cluster

        loaded = load_cluster(cluster)
        kinds = {kind.name: kind for kind in loaded.types}
        named = [group for group in loaded.groups if kinds[group.type_name].gpu.name == gpu.name]
        if not named:
            names = ", ".join(sorted({kind.gpu.name for kind in loaded.types}))
            raise ConfigError(f"cluster {cluster}: has no {gpu.name}; it has {names}")
        group, kind = named[0], kinds[named[0].type_name]
        given["gpus_per_node"] = per_node or group.gpus_per_node
        given["network_bytes_s"] = given["network_bytes_s"] or loaded.network_bytes_s
        given["link_bytes_s"] = kind.link_bytes_s
        given["hop_s"] = given["hop_s"] or loaded.hop_s
    if not any(value is not None for value in given.values()):
        return None
    return Links.of(gpu, **given)


def is_decoder(model: str | None) -> bool:
    """Return whether a layout of this model is computed from its configuration alone."""
    from wattloop.predict.serving import decoder_named

    if model is None or not model.startswith("hf:"):
        return False
    try:
        decoder_named(model)
    except ConfigError:
        return False
    return True


def show_parallel(
    work: "WorkloadOptions",
    *,
    parallel: str,
    gpus: int | None,
    checkpointing: str,
    cap: float | None,
    network: float | None,
    hop: float | None,
    exchange_w: float | None,
    json_file: str | None,
) -> None:
    """Predict one step of a layout, and print it."""
    from wattloop.predict.parallel.layout import Layout
    from wattloop.predict.parallel.model import ParallelQuestion, predict_parallel, usual_sequence
    from wattloop.predict.serving import decoder_named

    gpu = gpu_named(work.gpu)
    layout = Layout.parse(parallel, gpus)
    batch = work.batch or 1
    passes = work.accumulate or layout.pp
    forecast = predict_parallel(
        ParallelQuestion(
            model=work.named_model(),
            gpu=work.gpu,
            layout=layout,
            seq=work.seq or usual_sequence(decoder_named(work.named_model())),
            micro_batch=batch,
            global_batch=batch * passes * layout.dp,
            precision=work.precision or "bf16",
            checkpointing=checkpointing,
            kernels="fused" if work.compile not in (None, "none") else "eager",
            cap_w=cap,
            exchange_w=exchange_w,
            links=links_asked(gpu, network=network, hop=hop),
        )
    )
    present(json_file, forecast.to_dict, lambda: _show(forecast))


def _show(forecast: "ParallelForecast") -> None:
    asked, layout = forecast.question, forecast.layout
    batch = asked.micro_batch * forecast.micro_batches * layout.dp
    title = (
        f"{asked.model} ({format_parameters(forecast)}), {asked.precision}, "
        f"on {layout.gpus} x {forecast.gpu.product}: {layout}"
    )
    low_s, high_s, _ = forecast.step_interval
    slower, quicker = (forecast.step_s / each for each in (high_s, low_s))
    available = format_bytes(forecast.available_bytes)
    each_s = forecast.tokens_s / layout.gpus

    def between(value: float) -> str:
        return f"{value * slower:,.0f} to {value * quicker:,.0f} tokens/s"

    print_rows(
        ("", "predicted", "90% interval"),
        [
            (f"step of {batch:,} x {asked.seq:,} tokens", format_duration(forecast.step_s),
             f"{format_duration(low_s)} to {format_duration(high_s)}"),
            ("throughput", f"{forecast.tokens_s:,.0f} tokens/s", between(forecast.tokens_s)),
            ("throughput per GPU", f"{each_s:,.0f} tokens/s", between(each_s)),
            ("share of the peak (MFU)", f"{forecast.flops_share:.0%}", ""),
            ("power of a GPU", format_power(forecast.power_w), ""),
            ("GPU energy per step", format_energy(forecast.energy_j), ""),
            ("GPU energy per token", format_energy(forecast.token_j), ""),
            ("memory per GPU", format_bytes(forecast.memory_bytes),
             f"{'fits into' if forecast.fits else 'does not fit into'} {available}"),
        ],
        title=title,
    )  # fmt: skip
    typer.echo()
    print_rows(
        ("part of the step", "time", "share"),
        [
            (part, format_duration(seconds), f"{seconds / forecast.step_s:.0%}")
            for part, seconds in sorted(forecast.parts_s.items(), key=lambda item: -item[1])
            if seconds > 0.002 * forecast.step_s
        ],
    )
    typer.echo()
    print_rows(
        ("memory of a GPU", "size"),
        [(part, format_bytes(size)) for part, size in forecast.memory.items()],
    )
    for note in forecast.notes:
        say(f"note: {note}")
    if not forecast.fits:
        say(
            "warning: does not fit; 'wattloop predict plan' searches a layout that does, "
            "--checkpointing full takes less memory"
        )


def _show_plan(found: "Plan", top: int) -> None:
    typer.echo(found.answer)
    best = found.best
    if best is None:
        return
    batch = best.question.micro_batch * best.micro_batches * best.layout.dp
    energy = found.question.objective == "energy"
    print_rows(
        ("layout", "batch", "checkpoints", "cap", "tokens/s", "MFU", "J/token", "memory"),
        [
            (
                str(each.layout),
                f"{each.question.micro_batch} x {each.micro_batches}",
                each.question.checkpointing,
                "-" if each.question.cap_w is None else f"{each.question.cap_w:g} W",
                f"{each.tokens_s:,.0f}",
                f"{each.flops_share:.0%}",
                f"{each.token_j:.3g}",
                format_bytes(each.memory_bytes),
            )
            for each in found.forecasts[:top]
        ],
        title=f"{batch:,} x {best.question.seq:,} tokens per step, least {found.question.objective}"
        " first",
    )
    least = found.least_energy
    if least is not None and not energy and least.token_j < 0.98 * best.token_j:
        say(
            f"least energy: {least.layout}, checkpointing {least.question.checkpointing}, at "
            f"{least.question.cap_w:g} W, {1 - least.token_j / best.token_j:.0%} less energy per "
            f"token, {best.tokens_s / least.tokens_s - 1:.0%} slower"
        )
    if found.question.tokens:
        seconds = found.question.tokens / best.tokens_s
        total_j = found.question.tokens * best.token_j
        cost = ""
        if found.question.gpu_hour:
            hours = seconds / 3600 * best.layout.gpus
            price = hours * found.question.gpu_hour + total_j / 3.6e6 * found.question.kwh
            cost = f", costs {price:,.0f}"
        say(
            f"{found.question.tokens:.3g} tokens with the first: {format_duration(seconds)}, "
            f"{format_energy(total_j)}{cost} (GPUs only)"
        )
    for note in best.notes:
        say(f"note: {note}")


def format_parameters(forecast: "ParallelForecast | ServingForecast") -> str:
    text = f"{forecast.parameters / 1e9:.3g}B parameters"
    if forecast.active_parameters < 0.99 * forecast.parameters:
        text += f", {forecast.active_parameters / 1e9:.3g}B of them for a token"
    return text
