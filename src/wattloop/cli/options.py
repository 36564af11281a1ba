"""Options that several verbs share."""

from typing import Annotated

import typer

# Numbers are taken as text: Settings checks them, and names the allowed range.
Interval = Annotated[
    str | None,
    typer.Option(
        "--interval", "-i", metavar="SECONDS", help="Seconds between samples (default: 0.1)."
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        metavar="LIST",
        help="Read only these, such as cpu,gpu:0 (default: CPUs, memory and the GPUs that "
        "CUDA_VISIBLE_DEVICES and the like show; all: every GPU).",
    ),
]
Meters = Annotated[
    str | None,
    typer.Option(
        "--meters", metavar="LIST", help="Use only these meters, such as rapl (default: all)."
    ),
]
Pue = Annotated[
    str | None,
    typer.Option(
        "--pue", metavar="FACTOR", help="Power usage effectiveness of the room (default: 1)."
    ),
]
Zone = Annotated[
    str | None,
    typer.Option("--zone", metavar="CODE", help="Country (FRA) or zone, for carbon."),
]
Tariff = Annotated[
    str | None,
    typer.Option("--tariff", metavar="PRICE", help="Price of a kWh, such as 0.25 or '0.25 CHF'."),
]
StorePlace = Annotated[
    str | None,
    typer.Option("--store", metavar="PLACE", help="SQLite file or postgresql:// URL for runs."),
]
JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is standard output."),
]
Config = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Use this wattloop.yaml."),
]
