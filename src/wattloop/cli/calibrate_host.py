"""`wattloop calibrate host`: how quick this machine's host dispatches."""

import sys
from contextlib import closing
from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from wattloop.cli.calibrate_device import CPU, device_of
from wattloop.cli.options import JsonFile
from wattloop.cli.output import check_target, is_terminal, print_table, say, write_json
from wattloop.cli.predict_options import Calibration
from wattloop.core.errors import ConfigError

if TYPE_CHECKING:
    from wattloop.predict.calibrate.host_speed import HostSpeed

__all__ = ["host_command", "report"]


def host_command(
    gpu: Annotated[str, typer.Option("--gpu", metavar="N", help="Which GPU.")] = "0",
    calibration: Calibration = None,
    json_file: JsonFile = None,
) -> None:
    """Measure within a minute how quick this host asks its GPU, for 'predict --host-speed'.

    Hosts differ by a third, and a step that waits for its host takes as long as that does. A GPU
    that is busy, or whose memory is taken, is refused; nothing is set on it.
    """
    from wattloop.hardware.gpus import gpu_named
    from wattloop.predict.calibrate.host_speed import measured_host_speed
    from wattloop.predict.calibrate.machine import check_at_rest, open_device, open_sensor
    from wattloop.predict.estimators import estimator_for

    check_target(json_file, "--json")
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
    if json_file is not None:
        write_json({"gpu": gpu, "calibration": calibration, **asdict(found)}, json_file)
    if json_file != "-":
        print_table(
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
        )
    own = "" if calibration is None else f" --calibration {quote(calibration)}"
    say(
        f"wattloop: host speed {found.speed:.2f} ({found.low:.2f} to {found.high:.2f} from round "
        f"to round); next: wattloop predict --gpu {gpu}{own} --host-speed {found.speed:.2f} ..."
    )
