"""What every `wattloop analyze` command is given: a source, which rows and columns, where to."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

from wattloop.cli.options import Config, JsonFile, StorePlace

__all__ = ["Request", "listed", "with_request"]

Source = Annotated[
    str,
    typer.Argument(
        metavar="SEARCH|SWEEP|FILE.csv",
        help="Identifier of a search or sweep, its beginning or end, name, 'last'; or a CSV file.",
    ),
]
Parameters = Annotated[
    str | None,
    typer.Option("--parameters", metavar="LIST", help="Columns that were chosen (default: found)."),
]
Results = Annotated[
    str | None,
    typer.Option("--results", metavar="LIST", help="Columns that came out (default: found)."),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where", metavar="CONDITION", help="Only these rows, such as 'accuracy>=0.8'; repeatable."
    ),
]
Scope = Annotated[
    str | None, typer.Option("--scope", help="Of a sweep: energy of gpu, cpu, dram or node.")
]
Rows = Annotated[
    int, typer.Option("--rows", metavar="N", help="Print at most so many rows; 0 is all.")
]
CsvFile = Annotated[
    str | None,
    typer.Option("--csv", metavar="FILE", help="Write the table as CSV; - is standard output."),
]
Figure = Annotated[
    str | None,
    typer.Option("--figure", metavar="FILE", help="Draw into this .svg, .png or .html file."),
]


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options that all analyses share."""

    source: Source
    parameters: Parameters = None
    results: Results = None
    where: Where = None
    scope: Scope = None
    rows: Rows = 20
    json_file: JsonFile = None
    csv_file: CsvFile = None
    figure: Figure = None
    store: StorePlace = None
    config: Config = None


def with_request(command: Callable[..., None]) -> Callable[..., None]:
    """The command with all fields of `Request` as options; it gets them as its first argument."""
    names = [field.name for field in fields(Request)]
    hints = get_type_hints(Request, include_extras=True)
    own = list(inspect.signature(command).parameters.values())[1:]
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            **({} if field.name == "source" else {"default": field.default}),
        )
        for field in fields(Request)
    ]

    @functools.wraps(command)
    def wrapped(**options: Any) -> None:
        request = Request(**{name: options.pop(name) for name in names})
        command(request, **options)

    # typer reads options from the signature; what only one command has comes before what all have
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    arranged = [shared[0], *keyword, *shared[1:]]
    wrapped.__signature__ = inspect.Signature(arranged)  # type: ignore[attr-defined]  # any may
    wrapped.__annotations__ = {p.name: p.annotation for p in arranged}
    del wrapped.__wrapped__  # or its signature would be read
    return wrapped


def listed(text: str | None) -> list[str] | None:
    """`a, b` as two names."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
