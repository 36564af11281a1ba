"""`wattloop calibrate`: measure a GPU in minutes and fit the constants that `predict` uses."""

import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from wattloop.cli.app import Verb
from wattloop.cli.commands.predict.options import Calibration
from wattloop.cli.options import JsonFile, argument, file_option, option
from wattloop.cli.output import is_terminal, present, print_rows, say, write_json
from wattloop.cli.progress import bars, is_redrawable
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.units import format_duration, format_share
from wattloop.hardware.gpus import gpu_named

if TYPE_CHECKING:
    from rich.progress import TaskID

    from wattloop.predict.calibrate.collection import Progress, SectionResult
    from wattloop.predict.calibrate.host import HostSpeed
    from wattloop.predict.calibrate.machine import CalibrationDevice


app = Verb(
    "Measure a GPU in minutes, and fit the constants predict uses.",
    example="wattloop calibrate collect -o mine.jsonl\nwattloop calibrate fit mine.jsonl",
)
CPU = "cpu"


def device_of(gpu: str) -> str:
    if gpu == CPU:
        return CPU
    if not gpu.isdecimal():
        raise ConfigError(f"--gpu {gpu}: give the GPU's number, such as 0 (see 'nvidia-smi')")
    return f"cuda:{int(gpu)}"


@app.command("collect", example="wattloop calibrate collect -o mine.jsonl")
def collect_command(
    *,
    gpu: str = option("--gpu N", "Which GPU; 'cpu' only tries the program.", "0"),
    output: str | None = file_option("--output -o FILE", "Default: calibration-GPU.jsonl."),
    sections: str = option("--sections LIST", "Of host,kernels,power,steps,waiting,profile.", ""),
    minutes: float = option("--minutes", "Stop after so long; more is better.", 8.0, min=0.01),
    resume: bool = option("--resume", "Go on with the file; what it has is not taken again."),
    json_file: JsonFile = None,
) -> None:
    """Measure kernels, host and small models on this GPU, for 'calibrate fit'.

    Nothing is set on the GPU. Leave it alone meanwhile: what else runs there is measured too.
    One that is busy, or whose memory is taken, is refused.
    """
    from wattloop.predict.calibrate.collection import SampleFile, chosen_sections, collect
    from wattloop.predict.calibrate.machine import check_at_rest, open_device, open_sensor

    chosen = chosen_sections(sections)
    if output == "-":
        raise ConfigError("--output -: samples are kept to go on with, so name a file")
    bench = open_device(device_of(gpu))
    sensor = open_sensor(bench)
    path = user_path(output) if output else Path(f"calibration-{_short(bench)}.jsonl")
    if sensor.reason:
        say(f"wattloop: power will be missing: {sensor.reason}")
    begin_s = time.monotonic()
    with bench, closing(sensor):
        check_at_rest(bench, sensor)
        with closing(SampleFile(path, resume=resume)) as file, _progress() as progress:
            try:
                results = collect(
                    bench, sensor, file, sections=chosen, budget_s=60 * minutes, progress=progress
                )
            except KeyboardInterrupt:
                again = f"wattloop calibrate collect -o {path} --resume"
                say(f"wattloop: stopped; continue with '{again}'")
                raise
    _report(results, path, time.monotonic() - begin_s, json_file, is_trial=not bench.on_gpu)


def _short(bench: "CalibrationDevice") -> str:
    if not bench.on_gpu:
        return CPU
    name = str(bench.torch.cuda.get_device_name(bench.device)).lower()
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def _report(
    results: Mapping[str, "SectionResult"],
    path: Path,
    seconds: float,
    json_file: str | None,
    *,
    is_trial: bool,
) -> None:
    rows = {name: result._asdict() for name, result in results.items()}
    write_json({"file": str(path), "seconds": seconds, "sections": rows}, json_file)
    if json_file != "-":
        print_rows(
            ["section", "taken", "failed", "had before", "of"],
            [
                [name, str(r.taken), str(r.failed), str(r.kept), str(r.cases)]
                for name, r in results.items()
            ],
        )
    for result in results.values():
        if result.failed:
            say(f"wattloop: {result.failed} failed, such as {result.last_error}")
    taken = sum(result.taken for result in results.values())
    if taken and taken == sum(result.failed for result in results.values()):
        raise ConfigError(f"{path}: every case failed; see the reasons in the file")
    missing = sum(r.cases - r.taken - r.kept for r in results.values())
    more = f" ({missing} cases not taken: --resume takes more)" if missing else ""
    after = "next: wattloop calibrate fit " + str(path)
    if is_trial:
        after = "the program works here; its times are of no GPU, so there is nothing to fit"
    say(f"wattloop: {path} after {format_duration(seconds)}{more}; {after}")


@contextmanager
def _progress() -> Iterator["Progress"]:
    if not is_redrawable():
        yield lambda *_: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn

    columns = ("{task.description}", BarColumn(20), MofNCompleteColumn(), "{task.fields[left]}")
    with bars(*columns) as bar:
        tasks: dict[str, TaskID] = {}

        def show(section: str, done: int, total: int, left_s: float) -> None:
            left = f"at most {format_duration(left_s)} left" if left_s > 0 else ""
            if section not in tasks:
                tasks[section] = bar.add_task(section, total=total, left=left)
            bar.update(tasks[section], completed=done, left=left)

        yield show


Files = Annotated[list[Path], argument("FILE...", "What 'calibrate collect' wrote.")]
Output = Annotated[
    Path | None, option("--output -o FILE", "Constants (default: where predict finds them).")
]
Steps = Annotated[bool, option("--steps/--no-steps", "Use training steps, which need torch.")]


def _fit_adept(files: list[Path], estimator: str, output: Path | None) -> None:
    """Write ADEPT's constants to a file, for `predict --calibration` and oracles."""
    from wattloop.predict.calibrate.fit import fit_adept

    if estimator != "adept":
        raise ConfigError(f"--estimator {estimator}: choose kernels or adept")
    if output is None:
        raise ConfigError("--estimator adept: name the file of its constants with --output")
    content, errors = fit_adept(files, say if is_terminal(sys.stderr) else _quietly)
    write_json(content, str(output))
    worst, middle = max(errors), sorted(errors)[len(errors) // 2]
    say(
        f"fitted to {content['fitted_to']}: median error {format_share(middle)}, "
        f"largest {format_share(worst)} of the time of a step; wrote {output}"
    )


Estimator = Annotated[
    str, option("--estimator", "kernels, or adept: fitted to training steps, needs --output.")
]


@app.command("fit", example="wattloop calibrate fit mine.jsonl")
def fit_command(
    files: Files,
    output: Output = None,
    steps: Steps = True,
    estimator: Estimator = "kernels",
    json: JsonFile = None,
) -> None:
    """Fit the constants of a GPU to its collected samples; 'predict' then uses them."""
    from wattloop.predict.calibrate.fit import fit_files

    if estimator != "kernels":
        _fit_adept(files, estimator, output)
        return
    from wattloop.predict.models.kernels.constants import user_constants_path

    told = say if is_terminal(sys.stderr) else _quietly
    report = fit_files(files, steps=steps, progress=told)
    place = output or user_constants_path(report.gpu.name)
    try:
        report.constants.save(place)
    except OSError as fault:
        raise ConfigError(f"--output {place}: {fault.strerror}; name another file") from None
    if json is not None:
        write_json(
            {
                "gpu": report.gpu.name,
                "constants": str(place),
                "records": dict(report.used),
                "failed": report.failed,
                "unknown": report.unknown,
                "errors": {name: list(errors) for name, errors in report.errors.items()},
            },
            json,
        )
        if json == "-":
            return
    print_rows(
        ["kind", "samples", "median error", "mean error"],
        [
            [name, str(number), format_share(median), format_share(mean)]
            for name, (number, median, mean) in report.errors.items()
        ],
    )
    if not report.used["power"]:
        say(
            "wattloop: no power was measured, so watts are from the data sheet; collect the "
            "section power where the GPU's power can be read"
        )
    say(
        f"{report.gpu.product}: {sum(report.used.values())} records"
        + (f", {report.failed} had failed" if report.failed else "")
        + f"; constants written to {place}"
    )


def _quietly(message: str) -> None:
    """Progress is for people who watch."""


@app.command("host", example="wattloop calibrate host")
def host_command(
    gpu: str = option("--gpu N", "Which GPU.", "0"),
    calibration: Calibration = None,
    json_file: JsonFile = None,
) -> None:
    """Measure within a minute how fast this host launches kernels, for 'predict --host-speed'.

    Hosts differ by a third, and a step that waits for its host takes as long as that does. A GPU
    that is busy, or whose memory is taken, is refused; nothing is set on it.
    """
    from wattloop.predict.calibrate.host import measured_host_speed
    from wattloop.predict.calibrate.machine import check_at_rest, open_device, open_sensor
    from wattloop.predict.forecaster import estimator_for

    if gpu == CPU:
        raise ConfigError("--gpu cpu: how quick a host asks a GPU is measured on one, such as 0")
    bench = open_device(device_of(gpu))
    sensor = open_sensor(bench)

    def progress(what: str) -> None:
        if is_terminal(sys.stderr):
            say(f"wattloop: {what}")

    with bench, closing(sensor):
        check_at_rest(bench, sensor)
        known = gpu_named(str(bench.torch.cuda.get_device_name(bench.device)))
        model = estimator_for(known, calibration=calibration)
        found = measured_host_speed(bench, model, known, progress=progress)
    report(found, known.name, calibration, json_file)


def report(found: "HostSpeed", gpu: str, calibration: str | None, json_file: str | None) -> None:
    """Tell what was found; a speed holds for the constants that it was compared with."""
    present(
        json_file,
        lambda: {"gpu": gpu, "calibration": calibration, **asdict(found)},
        lambda: print_rows(
            ["network", "dispatch", "calibrated host", "speed"],
            [
                [
                    network,
                    f"{1e3 * seconds:.1f} ms",
                    f"{1e3 * found.expected_s[network]:.1f} ms",
                    f"{found.expected_s[network] / seconds:.2f}",
                ]
                for network, seconds in found.dispatch_s.items()
            ],
        ),
    )
    own = "" if calibration is None else f" --calibration {quote(calibration)}"
    say(
        f"wattloop: host speed {found.speed:.2f} ({found.low:.2f} to {found.high:.2f} from round "
        f"to round); next: wattloop predict --gpu {gpu}{own} --host-speed {found.speed:.2f} ..."
    )
