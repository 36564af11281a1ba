"""`wattloop calibrate collect`: run the suite on the GPU at hand."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattloop.cli.calibrate_device import CPU, device_of
from wattloop.cli.options import JsonFile
from wattloop.cli.output import check_target, print_table, say, write_json
from wattloop.cli.progress import bars, is_redrawable
from wattloop.core.errors import ConfigError
from wattloop.core.units import format_duration
from wattloop.core.user_code import user_path

if TYPE_CHECKING:
    from rich.progress import TaskID

    from wattloop.predict.calibrate.collection import Progress, Taken
    from wattloop.predict.calibrate.device import Bench

__all__ = ["collect_command"]


def collect_command(
    *,
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="N", help="Which GPU; 'cpu' only tries the program.")
    ] = "0",
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: calibration-GPU.jsonl."),
    ] = None,
    sections: Annotated[
        str,
        typer.Option(
            "--sections", metavar="LIST", help="Of host,kernels,power,steps,waiting,profile."
        ),
    ] = "",
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.01, help="Stop after so long; more is better.")
    ] = 8.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the file; what it has is not taken again.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Time and power of kernels, host and small models on this GPU, for 'calibrate fit'.

    Nothing is set on the GPU. Leave it alone meanwhile: what else runs there is measured too.
    One that is busy, or whose memory is taken, is refused.
    """
    from wattloop.predict.calibrate.collection import chosen_sections, collect
    from wattloop.predict.calibrate.machine import check_at_rest, open_device, open_sensor
    from wattloop.predict.calibrate.sample_file import SampleFile

    chosen = chosen_sections(sections)
    check_target(json_file, "--json")
    if output == "-":
        raise ConfigError("--output -: samples are kept to go on with, so name a file")
    check_target(output, "--output")
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
                    bench,
                    sensor,
                    file,
                    sections=chosen,
                    budget_s=60 * minutes,
                    progress=progress,
                )
            except KeyboardInterrupt:
                again = f"wattloop calibrate collect -o {path} --resume"
                say(f"wattloop: stopped; go on with '{again}'")
                raise
    _report(results, path, time.monotonic() - begin_s, json_file, is_trial=not bench.on_gpu)


def _short(bench: "Bench") -> str:
    if not bench.on_gpu:
        return CPU
    name = str(bench.torch.cuda.get_device_name(bench.device)).lower()
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def _report(
    results: Mapping[str, "Taken"],
    path: Path,
    seconds: float,
    json_file: str | None,
    *,
    is_trial: bool,
) -> None:
    if json_file is not None:
        rows = {name: result._asdict() for name, result in results.items()}
        write_json({"file": str(path), "seconds": seconds, "sections": rows}, json_file)
    if json_file != "-":
        print_table(
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
    """A bar per section on a terminal, silence elsewhere."""
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
