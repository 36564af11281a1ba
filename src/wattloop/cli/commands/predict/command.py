"""Commands of `wattloop predict`."""

from typing import Annotated

import typer

from wattloop.cli.app import RUN, UsualCommandGroup
from wattloop.cli.commands.predict.inspect import inspect_command
from wattloop.cli.commands.predict.job import job_command
from wattloop.cli.commands.predict.options import (
    Accumulate,
    Batch,
    Calibration,
    CapW,
    ClockMhz,
    EstimatorName,
    GpuName,
    Gpus,
    Head,
    HostSpeed,
    Image,
    Inference,
    Input,
    ModelName,
    Network,
    Optimizer,
    Precision,
    SamplesRate,
    SaveWorkload,
    Seq,
    Style,
)
from wattloop.cli.options import Config, JsonFile, Pue, Tariff, Zone
from wattloop.cli.output import check_target, print_table, say, write_json
from wattloop.core.units import format_bytes, format_power
from wattloop.hardware.gpus import Gpu


def models_command(*, json_file: JsonFile = None) -> None:
    """List the architectures that hf:NAME knows without any file."""
    from wattloop.predict.sources.huggingface import architecture, architecture_names

    check_target(json_file, "--json")
    entries = {name: architecture(name) or {} for name in architecture_names()}
    if json_file is not None:
        write_json(entries, json_file)
    if json_file != "-":
        rows = [(f"hf:{name}", str(entry["model_type"])) for name, entry in entries.items()]
        print_table(("model", "kind"), rows)


def gpus_command(*, json_file: JsonFile = None) -> None:
    """List the GPUs that --gpu knows, and which of them are calibrated."""
    from wattloop.hardware.gpus import known_gpus
    from wattloop.predict.models.kernels.lookup import constants_for

    check_target(json_file, "--json")
    found = [(gpu, constants_for(gpu)[1]) for gpu in known_gpus()]
    if json_file is not None:
        data = [
            {
                "name": gpu.name,
                "product": gpu.product,
                "memory_bytes": gpu.memory_bytes,
                "memory_bytes_s": gpu.memory_bytes_s,
                "matrix_flops": dict(gpu.matrix_flops),
                "vector_flops": dict(gpu.vector_flops),
                "tdp_w": gpu.tdp_w,
                "cap_w": [gpu.cap_min_w, gpu.cap_max_w],
                "constants": source,
            }
            for gpu, source in found
        ]
        write_json(data, json_file)
    if json_file != "-":
        rows = [
            (
                gpu.name,
                gpu.product,
                format_bytes(gpu.memory_bytes),
                f"{gpu.memory_bytes_s / 1e12:.2f} TB/s",
                f"{_peak_flops(gpu) / 1e12:.0f}",
                format_power(gpu.tdp_w),
                f"{gpu.cap_min_w:g} to {gpu.cap_max_w:g} W",
                source,
            )
            for gpu, source in found
        ]
        headers = ("gpu", "product", "memory", "bandwidth", "TFLOPS", "power", "caps", "constants")
        print_table(headers, rows, spare=("caps", "TFLOPS", "bandwidth", "product"))


def _peak_flops(gpu: Gpu) -> float:
    """Return the highest peak of the selectable precisions; fp8 is left out."""
    from wattloop.predict.workload.tracing.request import PRECISIONS

    peaks = (*gpu.matrix_flops.items(), *gpu.vector_flops.items())
    return max(flops for precision, flops in peaks if precision in PRECISIONS)


app = typer.Typer(
    cls=UsualCommandGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Predict time, power, energy and memory of a training on a GPU, without running it.",
    epilog="Examples: wattloop predict --model hf:gpt2 --batch 64 --precision bf16 --gpu h200; "
    "wattloop predict --model models.py:make --compare a100,h100,h200.",
)


@app.command(RUN)
def run_command(  # noqa: PLR0913 - one parameter per option
    *,
    model: ModelName,
    batch: Batch = None,
    seq: Seq = None,
    image: Image = None,
    precision: Precision = None,
    optimizer: Optimizer = None,
    style: Style = None,
    accumulate: Accumulate = None,
    inference: Inference = False,
    head: Head = None,
    stated: Input = None,
    gpu: GpuName = "h200",
    gpus: Gpus = 1,
    cap: CapW = None,
    clock: ClockMhz = None,
    samples_rate: SamplesRate = None,
    network: Network = None,
    host_speed: HostSpeed = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Optimizer steps of the run.")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option("--epochs", help="Passes over the data, with --samples.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", help="Samples of the data set, with --epochs.")
    ] = None,
    node: Annotated[
        bool, typer.Option("--node", help="Add host, memory, fans and power supply.")
    ] = False,
    compare: Annotated[
        str | None, typer.Option("--compare", metavar="GPUS", help="Such as a100,h100,h200.")
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="NAME=VALUES",
            help="batch=8..256, cap=300..700:50, gpus=1,2,4, precision=fp32,bf16; repeatable.",
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE", help="Draw a sweep or comparison: svg, png, html."),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", help="Operations to show that take longest.", min=0)
    ] = 8,
    estimator: EstimatorName = "kernels",
    calibration: Calibration = None,
    save_workload: SaveWorkload = None,
    json_file: JsonFile = None,
    pue: Pue = None,
    zone: Zone = None,
    tariff: Tariff = None,
    config: Config = None,
) -> None:
    """Predict one training step and, with --steps or --epochs, the whole run."""
    from wattloop.cli.commands.predict.execution import PredictRequest, execute
    from wattloop.cli.commands.predict.options import with_options_named
    from wattloop.cli.settings import settings_of
    from wattloop.predict.forecast import RunLength
    from wattloop.predict.request import Question

    for target, option in (
        (json_file, "--json"),
        (plot, "--plot"),
        (save_workload, "--save-workload"),
    ):
        check_target(target, option)
    settings = settings_of(config, pue=pue, zone=zone, tariff=tariff)
    with with_options_named():
        question = Question(
            model=model,
            gpu=gpu,
            gpus=gpus,
            batch=batch,
            seq=seq,
            image=image,
            precision=precision,
            optimizer=optimizer,
            style=style,
            accumulate=accumulate,
            training=not inference,
            cap_w=cap,
            clock_mhz=clock,
            samples_s=samples_rate,
            network_bytes_s=None if network is None else network * 1e9 / 8,
            host_speed=host_speed,
            head=head,
            stated=tuple(stated or ()),
            estimator=estimator,
            calibration=calibration,
        )
        execute(
            PredictRequest(
                question=question,
                extent=RunLength(steps, epochs, samples, node, settings),
                compare=compare,
                sweeps=tuple(sweep or ()),
                plot=plot,
                top=top,
                save_workload=save_workload,
                json_file=json_file,
            )
        )
    given = {"--pue": pue, "--zone": zone, "--tariff": tariff}
    unused = ", ".join(option for option, value in given.items() if value is not None)
    if unused and steps is None and epochs is None:
        say(
            f"note: {unused}: cost and carbon are of a run; give --steps, or --epochs and --samples"
        )


for name, looking in (
    ("inspect", inspect_command),
    ("job", job_command),
    ("models", models_command),
    ("gpus", gpus_command),
):
    app.command(name)(looking)
