"""`wattloop calibrate fit`: from collected samples to the constants of a GPU."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from wattloop.cli.options import JsonFile
from wattloop.cli.output import check_target, is_terminal, print_table, say, write_json
from wattloop.core.errors import ConfigError

__all__ = ["fit_command"]

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="What 'calibrate collect' wrote.")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Constants (default: where predict finds them)."
    ),
]


Steps = Annotated[
    bool, typer.Option("--steps/--no-steps", help="Use training steps, which need torch.")
]


def fit_command(
    files: Files, output: Output = None, steps: Steps = True, json: JsonFile = None
) -> None:
    """Fit the constants of a GPU to samples collected on it; predict then uses them."""
    from wattloop.predict.calibrate.fit import fit_files
    from wattloop.predict.models.kernels.lookup import user_constants_path

    check_target(json, "--json")
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
    print_table(
        ["kind", "samples", "median error", "mean error"],
        [
            [name, str(number), f"{median:.1%}", f"{mean:.1%}"]
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
