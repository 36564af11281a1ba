"""Commands of `wattloop predict`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from wattloop.accounting.summary import GpuPrice, parse_gpu_price
from wattloop.cli.app import RUN, StoreOptions, UsualCommandGroup, Verb
from wattloop.cli.commands.predict.inspect import inspect_command
from wattloop.cli.commands.predict.job import job_command
from wattloop.cli.commands.predict.options import (
    Calibration,
    SaveWorkload,
    WorkloadOptions,
    with_axes_named,
    with_options_named,
)
from wattloop.cli.commands.predict.parallel import is_decoder, plan_command, show_parallel
from wattloop.cli.commands.predict.serve import serve_command
from wattloop.cli.commands.predict.view import (
    keep_workload,
    print_forecast,
    print_jobs,
    print_points,
)
from wattloop.cli.options import (
    Config,
    JsonFile,
    Price,
    Pue,
    StorePlace,
    Tariff,
    Zone,
    argument,
    file_option,
    option,
    settings_of,
)
from wattloop.cli.output import present, print_table, say
from wattloop.cli.progress import counted, spinner
from wattloop.cli.stored import named_run
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.records import picked
from wattloop.core.settings import Settings
from wattloop.core.table import Table
from wattloop.core.units import format_bytes, format_power
from wattloop.hardware.gpus import Gpu, gpu_named, known_gpus
from wattloop.predict.comparison import Axis, ComparisonPoint, parse_axis, points_data
from wattloop.predict.forecast import Forecast
from wattloop.predict.forecaster import ESTIMATORS, Forecaster
from wattloop.predict.models.kernels.constants import constants_for
from wattloop.predict.request import Question
from wattloop.predict.run_total import RunLength, job_on_gpu, measured_job
from wattloop.predict.sources.script import LIMIT_S, script_workload

MOST_POINTS = 2_000
EXAMPLES = """\
wattloop predict --run last --gpu h100-sxm
wattloop predict --model hf:gpt2 --batch 64 --precision bf16 --gpu h200 --steps 10000
wattloop predict --model models.py:make --compare a100,h100,h200
wattloop predict --script train.py --gpu h100-sxm -- --batch-size 64"""
app = Verb(
    "Predict what a job costs on another GPU: time, energy, money, CO2e and memory. The job is a "
    "measured run (--run), a model or a program.",
    example=EXAMPLES,
    cls=UsualCommandGroup,
)


@app.command(RUN, example=EXAMPLES)
def run_command(  # noqa: PLR0913 - one parameter per option
    arguments: list[str] | None = argument("-- ARGUMENTS", "Of the program, with --script."),
    *,
    work: WorkloadOptions,
    run: str | None = option(
        "--run RUN", "Measured run, by name, identifier or 'last', that is asked for on --gpu."
    ),
    script: str | None = option(
        "--script FILE.py",
        "Run a training program until its first step and predict that, instead of --model.",
    ),
    limit: float | None = option(
        "--limit SECONDS", f"For the program's way to its first step (default: {LIMIT_S:g})."
    ),
    gpus: int = option("--gpus", "How many train together, data parallel.", 1),
    parallel: str | None = option(
        "--parallel LAYOUT", "Such as fsdp=8 or tp=4,pp=2,dp=16,zero=1,sp; cp, ep, hsdp."
    ),
    checkpointing: str = option(
        "--checkpointing", "With --parallel: none, selective, half or full.", "none"
    ),
    cap: float | None = option("--cap WATTS", "Power limit of each GPU."),
    clock: float | None = option("--clock MHZ", "Locked SM clock of each GPU."),
    samples_rate: float | None = option(
        "--samples-per-second RATE", "The most the data loader brings to a GPU."
    ),
    network: float | None = option("--network GBIT", "Gbit/s between nodes of 8, for more GPUs."),
    hop: float | None = option(
        "--hop MICROSECONDS", "Latency of a hop between GPUs (default: a few)."
    ),
    exchange_power: float | None = option(
        "--exchange-power WATTS", "Of a GPU that only exchanges (default: at rest)."
    ),
    host_speed: float | None = option(
        "--host-speed X", "Of the host, as 'wattloop calibrate host' measures it."
    ),
    steps: int | None = option("--steps", "Optimizer steps of the run."),
    epochs: float | None = option("--epochs", "Passes over the data, with --samples."),
    samples: int | None = option("--samples", "Samples of the data set, with --epochs."),
    node: bool = option("--node", "Add host, memory, fans and power supply."),
    compare: str | None = option("--compare GPUS", "Such as a100,h100,h200."),
    sweep: list[str] | None = option(
        "--sweep NAME=VALUES",
        "batch=8..256, cap=300..700:50, gpus=1,2,4, precision=fp32,bf16; repeatable.",
    ),
    plot: str | None = file_option("--plot -o FILE", "Draw a sweep or comparison: svg, png, html."),
    top: int = option("--top", "Operations to show that take longest.", 8, min=0),
    estimator: str = option("--estimator", f"Model: {', '.join(ESTIMATORS)}.", "kernels"),
    calibration: Calibration = None,
    save_workload: SaveWorkload = None,
    json_file: JsonFile = None,
    pue: Pue = None,
    zone: Zone = None,
    tariff: Tariff = None,
    store: StorePlace = None,
    price: Price = None,
    config: Config = None,
) -> None:
    """Predict one training step and, with --steps, --epochs or --run, the whole job."""
    settings = settings_of(config, pue=pue, zone=zone, tariff=tariff)
    with with_options_named():
        if run is not None:
            given = {"--model": work.model, "--script": script, "arguments": arguments}
            more = {"--steps": steps, "--epochs": epochs, "--batch": work.batch, "--cap": cap}
            _check_alone(run, {**given, **more})
            gpu_price = None if price is None else parse_gpu_price(price, settings)
            names = work.gpu if compare is None else compare
            place = StoreOptions(json_file=json_file, store=store, config=config)
            gpu_names = [name.strip() for name in names.split(",")]
            _show_job(run, gpu_names, settings, gpu_price, place)
            return
        if parallel is not None and script is None and is_decoder(work.model):
            show_parallel(
                work,
                parallel=parallel,
                gpus=None if gpus == 1 else gpus,
                checkpointing=checkpointing,
                cap=cap,
                network=network,
                hop=hop,
                exchange_w=exchange_power,
                json_file=json_file,
            )
            return
        question = work.question(
            **_program(work, script, arguments or [], limit, compare),
            gpus=gpus,
            parallel=parallel,
            cap_w=cap,
            clock_mhz=clock,
            samples_s=samples_rate,
            network_bytes_s=None if network is None else network * 1e9 / 8,
            hop_s=None if hop is None else hop * 1e-6,
            exchange_w=exchange_power,
            host_speed=host_speed,
            estimator=estimator,
            calibration=calibration,
        )
        gpu_price = None if price is None else parse_gpu_price(price, settings)
        complete = RunLength(steps, epochs, samples, node, settings, gpu_price).of
        axes = _axes(sweep or [], compare)
        _check_plot(plot, axes)
        if axes:
            if save_workload is not None:
                raise ConfigError(
                    f"save-workload {save_workload}: a sweep has several workloads; leave out "
                    "--sweep and --compare"
                )
            points = _points(question, complete, axes)
            if plot is not None:
                _draw(points, axes, plot)
            present(json_file, lambda: points_data(points), lambda: print_points(points, axes))
        else:
            with spinner(f"tracing {work.model or script}"):
                forecast = complete(Forecaster(cache=True).answer(question))
            keep_workload(forecast, save_workload)
            present(json_file, forecast.to_dict, lambda: print_forecast(forecast, top=top))
    priced = {"--pue": pue, "--zone": zone, "--tariff": tariff, "--price": price}
    unused = ", ".join(option for option, value in priced.items() if value is not None)
    if unused and steps is None and epochs is None:
        say(
            f"note: {unused}: cost and carbon are of a run; give --steps, or --epochs and --samples"
        )


def _check_alone(run: str, stated: Mapping[str, object]) -> None:
    """Refuse what says again which job is meant."""
    other = next((name for name, value in stated.items() if value), None)
    if other is not None:
        raise ConfigError(f"--run {run}: the run says what the job is; leave out {other}")


def _show_job(
    run: str, names: Sequence[str], settings: Settings, price: GpuPrice | None, given: StoreOptions
) -> None:
    """Print a measured run as it would be on other GPUs."""
    with given.open_store() as place:
        record = named_run(place, run)
    gpus = [gpu_named(name) for name in names]
    job = replace(measured_job(record, settings, gpus[0].name), price=price)
    found = [job_on_gpu(job, gpu) for gpu in gpus]
    given.present(lambda: [one.to_dict() for one in found], lambda: print_jobs(found))


def _program(
    work: WorkloadOptions,
    script: str | None,
    arguments: Sequence[str],
    limit: float | None,
    compare: str | None,
) -> dict[str, Any]:
    """Return fields of the request that come from a program; none without --script."""
    if (work.compile or "").startswith("-"):
        raise ConfigError("--compile: give its mode as well, such as --compile default")
    if script is None:
        if arguments:
            raise ConfigError(
                f"{arguments[0]}: not understood; arguments of a program need --script train.py"
            )
        if limit is not None:
            raise ConfigError("limit: only a program has one; add --script train.py")
        return {}
    if work.model is not None:
        raise ConfigError(f"script {script}: has its own model; leave --model out")
    given = {"--head": work.head, "--seq": work.seq, "--image": work.image, "--input": work.stated}
    given |= {"--optimizer": work.optimizer, "--style": work.style}
    stated = [name for name, value in given.items() if value] + ["--inference"] * work.inference
    if stated:
        raise ConfigError(
            f"{stated[0]}: {script} decides that itself; leave it out, or give the program other "
            "arguments after --"
        )
    with spinner(f"running {script} until its first training step"):
        workload = script_workload(
            script,
            arguments,
            gpu=compare.split(",")[0].strip() if compare else work.gpu,
            precision=work.precision,
            compile=work.compile,
            limit_s=LIMIT_S if limit is None else limit,
        )
    if work.batch is not None:
        workload = replace(workload, batch=work.batch)
    return {"model": workload, "precision": None, "compile": None}


def _axes(sweeps: Sequence[str], compare: str | None) -> list[Axis]:
    axes = [parse_axis(text) for text in sweeps]
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names):
        raise ConfigError(f"sweep {names[-1]}: varied twice; write its values in one list")
    if compare is not None:
        gpus = tuple(part.strip() for part in compare.split(","))
        if not all(gpus) or len(set(gpus)) < len(gpus):
            raise ConfigError(f"compare {compare}: name each GPU once, such as a100,h100,h200")
        axes.append(Axis("gpu", gpus))
    return axes


def _check_plot(plot: str | None, axes: Sequence[Axis]) -> None:
    if plot is None:
        return
    if not axes:
        raise ConfigError(f"plot {plot}: there is one point; add --sweep or --compare")
    from wattloop.report.figures.render import FORMATS, needs_libraries

    if user_path(plot).suffix.lower() not in FORMATS:
        raise ConfigError(f"plot {plot}: end it with {', '.join(FORMATS)}")
    needs_libraries()


def _points(
    asked: Question, complete: Callable[[Forecast], Forecast], axes: Sequence[Axis]
) -> list[ComparisonPoint]:
    combinations = list(product(*(axis.values for axis in axes)))
    if len(combinations) > MOST_POINTS:
        raise ConfigError(f"sweep: {len(combinations)} points; take at most {MOST_POINTS}")
    forecaster = Forecaster(cache=True)
    points = []
    with counted("predicting", len(combinations)) as bar:
        for values in combinations:
            question = asked
            setting = dict(zip((axis.name for axis in axes), values, strict=True))
            with with_axes_named(setting):
                for name, value in setting.items():
                    question = question.varied(name, value)
                points.append(ComparisonPoint(setting, complete(forecaster.answer(question))))
            bar.advance()
    return points


def _draw(points: Sequence[ComparisonPoint], axes: Sequence[Axis], plot: str) -> None:
    from wattloop.report.figures.prediction import forecast_figures
    from wattloop.report.figures.render import save_one

    charts = forecast_figures(points, axes)
    save_one(charts, user_path(plot), title=f"Predictions of {points[0].name}")
    say(f"wattloop: figure in {plot}")


app.command("inspect", example="wattloop predict inspect --model hf:gpt2 --gpu h200")(
    inspect_command
)
app.command("job", example="wattloop predict job --cluster cluster.yaml --gpus 4 --name train")(
    job_command
)
app.command("plan", example="wattloop predict plan --model hf:llama-7b --gpus 64")(plan_command)
app.command("serve", example="wattloop predict serve --model hf:gpt2 --gpu h100")(serve_command)


@app.command("models", example="wattloop predict models")
def models_command(*, json_file: JsonFile = None) -> None:
    """List the architectures that hf:NAME knows without any file."""
    from wattloop.predict.sources.huggingface import architecture, architecture_names

    entries = {name: architecture(name) or {} for name in architecture_names()}
    cells = {"model": lambda name: f"hf:{name}", "kind": lambda name: entries[name]["model_type"]}
    present(json_file, lambda: entries, lambda: print_table(Table.from_records(entries, cells)))


@app.command("gpus", example="wattloop predict gpus")
def gpus_command(*, json_file: JsonFile = None) -> None:
    """List the GPUs that --gpu knows, and which of them are calibrated."""
    found = [(gpu, constants_for(gpu)[1]) for gpu in known_gpus()]
    present(
        json_file,
        lambda: [
            {
                **picked(gpu, "name product memory_bytes memory_bytes_s"),
                "matrix_flops": dict(gpu.matrix_flops),
                "vector_flops": dict(gpu.vector_flops),
                "tdp_w": gpu.tdp_w,
                "cap_w": [gpu.cap_min_w, gpu.cap_max_w],
                "constants": source,
            }
            for gpu, source in found
        ],
        lambda: print_table(_gpus_table(found)),
    )


def _gpus_table(found: Sequence[tuple[Gpu, str]]) -> Table:
    return Table.from_records(
        found,
        {
            "gpu": lambda row: row[0].name,
            "product": lambda row: row[0].product,
            "memory": lambda row: format_bytes(row[0].memory_bytes),
            "bandwidth": lambda row: f"{row[0].memory_bytes_s / 1e12:.2f} TB/s",
            "TFLOPS": lambda row: f"{_peak_flops(row[0]) / 1e12:.0f}",
            "power": lambda row: format_power(row[0].tdp_w),
            "caps": lambda row: f"{row[0].cap_min_w:g} to {row[0].cap_max_w:g} W",
            "constants": lambda row: row[1],
        },
        spare=("caps", "TFLOPS", "bandwidth", "product"),
    )


def _peak_flops(gpu: Gpu) -> float:
    """Return the highest peak of the selectable precisions; fp8 is left out."""
    from wattloop.predict.workload.trace import PRECISIONS

    peaks = (*gpu.matrix_flops.items(), *gpu.vector_flops.items())
    return max(flops for precision, flops in peaks if precision in PRECISIONS)
