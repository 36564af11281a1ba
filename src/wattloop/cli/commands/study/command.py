"""`wattloop study`: the guided six steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattloop.cli.options import Config, JsonFile, StorePlace
from wattloop.cli.output import check_target, say, write_json, write_text
from wattloop.core.errors import ConfigError
from wattloop.core.user_code import user_path

if TYPE_CHECKING:
    from wattloop.study.steps import StudyRunner


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Six steps from a need to a proven saving, over one study.yaml.",
)


File = Annotated[str, typer.Argument(metavar="[FILE]", help="The study (default: study.yaml).")]


Workers = Annotated[int, typer.Option(min=1, help="Processes for simulations.")]


DEFAULT = "study.yaml"


@app.command("init")
def init(file: File = DEFAULT, *, json_file: JsonFile = None) -> None:
    """Step 1: write an example to edit: the need, its figures and goals."""
    from wattloop.study.spec import EXAMPLE

    path = user_path(file)
    if path.exists():
        raise ConfigError(f"{file}: is there already; name another file")
    check_target(file, "FILE")
    check_target(json_file, "--json")
    write_text(EXAMPLE, file, "FILE")
    if json_file is not None:
        told = {"file": str(path.resolve()), "next": f"wattloop study baseline {file}"}
        write_json(told, json_file)
    say(f"wattloop: wrote {file}; edit it, then: wattloop study baseline {file}")


@app.command("baseline")
def baseline(
    file: File = DEFAULT,
    *,
    workers: Workers = 2,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Step 2: the figures of the system as it is, and its symptoms."""
    _step(file, "baseline", workers, json_file, store, config)


@app.command("characterize")
def characterize(
    file: File = DEFAULT,
    *,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Step 3: what levers do to single jobs, from sweeps."""
    _step(file, "characterize", 1, json_file, store, config)


@app.command("simulate")
def simulate(
    file: File = DEFAULT,
    *,
    workers: Workers = 2,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Step 4: candidates on a twin of the system, checked against the baseline first."""
    _step(file, "simulate", workers, json_file, store, config)


@app.command("decide")
def decide(
    file: File = DEFAULT,
    *,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Step 5: which candidate to deploy, and why."""
    _step(file, "decide", 1, json_file, store, config)


@app.command("validate")
def validate(
    file: File = DEFAULT,
    *,
    workers: Workers = 2,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Step 6: the figures again; every goal SUCCESS or FAIL."""
    found = _step(file, "validate", workers, json_file, store, config)
    if not found["success"]:
        raise typer.Exit(1)


@app.command("status")
def status(
    file: File = DEFAULT,
    *,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """What is known so far, and the next step."""
    from wattloop.cli.commands.study.view import print_status

    check_target(json_file, "--json")
    with _studying(file, 1, store, config) as work:
        steps = work.record.steps
        if json_file is not None:
            write_json({"study": work.record.spec.name, "steps": steps}, json_file)
        if json_file != "-":
            print_status(work.record.spec, steps, file)


def _step(
    file: str,
    step: str,
    workers: int,
    json_file: str | None,
    store: str | None,
    config: str | None,
) -> dict[str, Any]:
    from wattloop.cli.commands.study.view import print_next, print_step

    check_target(json_file, "--json")
    with _studying(file, workers, store, config) as work:
        run: Callable[[], dict[str, Any]] = getattr(work, step)
        found = run()
        if json_file is not None:
            write_json(found, json_file)
        if json_file != "-":
            print_step(step, found)
            print_next(work.record.spec.name, work.record.steps, file)
    return found


@contextmanager
def _studying(
    file: str, workers: int, store: str | None, config: str | None
) -> "Iterator[StudyRunner]":
    from wattloop.cli.stored_runs import opened
    from wattloop.study.spec import read_study
    from wattloop.study.steps import StudyRunner

    if not Path(user_path(file)).is_file():
        raise ConfigError(f"{file}: no such file; begin with: wattloop study init {file}")
    spec = read_study(user_path(file))
    with opened(store, config, create=True) as place:
        yield StudyRunner(place, spec, workers=workers)
