"""Options that commands of `wattloop simulate` share."""

from typing import Annotated

import typer

Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        "-s",
        metavar="SEEDS",
        help="How many, 0..99, or a list such as 3,5 (default: the scenario's).",
    ),
]


Variant = Annotated[
    str | None, typer.Option("--variant", metavar="NAME", help="Only this variant of the scenario.")
]


Workers = Annotated[
    int | None,
    typer.Option("--workers", "-w", help="Processes (default: one per processor)."),
]


Trace = Annotated[
    str | None,
    typer.Option("--trace", metavar="FILE", help="Jobs of this trace in place of its own."),
]


Budget = Annotated[
    str | None,
    typer.Option("--budget", metavar="POWER", help="Power budget of the cluster: 4500 or 4.5kW."),
]


Horizon = Annotated[
    str | None,
    typer.Option("--horizon", metavar="TIME", help="When the simulation ends, such as 10h."),
]


Throughputs = Annotated[
    list[str] | None,
    typer.Option(
        "--throughputs", metavar="FILE", help="Oracle from a table of throughputs (Gavel's form)."
    ),
]


CapCurves = Annotated[
    list[str] | None,
    typer.Option(
        "--cap-curves", metavar="FILE", help="Power under caps, with --throughputs (Zeus's form)."
    ),
]


Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any field of the scenario, by its path (a.b.c=1)."
    ),
]


New = Annotated[
    bool, typer.Option("--new", help="Compute everything again, also what is known already.")
]
