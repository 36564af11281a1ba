"""`wattloop study`: the guided six steps."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattloop.cli.app import StoreOptions, Verb
from wattloop.cli.options import JsonFile, argument, option
from wattloop.cli.output import check_target, print_rows, say, write_json, write_text
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.units import format_number
from wattloop.report.study import (
    BEST_COLUMNS,
    CANDIDATE_COLUMNS,
    best_rows,
    candidate_rows,
    change_text,
    differed_texts,
    twin_rows,
)
from wattloop.study.record import STEPS, is_dead_end, next_step
from wattloop.study.spec import EXAMPLE, StudySpec, read_study

if TYPE_CHECKING:
    from wattloop.study.steps import StudyRunner


UNKNOWN = "-"


def print_step(step: str, found: Mapping[str, Any]) -> None:
    PRINTED[step](found)


def print_status(spec: "StudySpec", steps: Mapping[str, Any], file: str) -> None:
    print_rows(
        ("step", "", "what it says"),
        [
            (f"{number} {step}", "done" if step in steps else UNKNOWN, _brief(step, steps, spec))
            for number, step in enumerate(STEPS, 1)
        ],
        title=f"{spec.name}: {spec.need}",
    )
    print_next(spec.name, steps, file)


def print_next(name: str, steps: Mapping[str, Any], file: str) -> None:
    following = next_step(steps)
    if is_dead_end(steps):
        say(
            "wattloop: not all goals are met: back to step 3 with what differed, or other "
            f"candidates or goals in {file}, then: wattloop study baseline {file}"
        )
        return
    if following is None:
        say(f"wattloop: the study is complete; write it up with: wattloop report {quote(name)}")
    else:
        say(f"wattloop: next: wattloop study {following} {file}")


def _brief(step: str, steps: Mapping[str, Any], spec: "StudySpec") -> str:
    found = steps.get(step)
    if step == "objective":
        return "; ".join(f"{kpi.metric} {kpi.goal}" for kpi in spec.kpis)
    if found is None:
        return ""
    if step == "baseline":
        return ", ".join(f"{name} {format_number(value)}" for name, value in found["means"].items())
    if step == "characterize":
        return found["note"] or f"{len(found['best'])} best settings"
    if step == "simulate":
        good = [n for n, c in found["candidates"].items() if all(v["met"] for v in c["verdicts"])]
        return (
            f"{len(found['candidates'])} candidates, all goals met by {', '.join(good) or 'none'}"
        )
    if step == "decide":
        return found["choice"] or "no candidate"
    return "SUCCESS" if found["success"] else "FAIL"


def _print_baseline(found: Mapping[str, Any]) -> None:
    print_rows(
        ("figure", "mean"),
        [(name, format_number(value, 5)) for name, value in found["means"].items()],
        title=f"baseline, {found['provenance']}: {found['source']}",
    )
    for symptom in found["symptoms"]:
        say(f"symptom: {symptom}")
    if not found["symptoms"]:
        say("no symptom stands out")


def _print_characterize(found: Mapping[str, Any]) -> None:
    if found["note"]:
        say(f"wattloop: {found['note']}")
    if found["best"]:
        print_rows(BEST_COLUMNS, best_rows(found), spare=("of", "how"))


def _print_simulate(found: Mapping[str, Any]) -> None:
    if found["twin"]:
        print_rows(
            ("figure", "measured", "simulated", "off", ""),
            twin_rows(found, "", "too far off"),
            title="the twin next to the measured baseline",
        )
    print_rows(
        CANDIDATE_COLUMNS,
        candidate_rows(found),
        title=f"simulated, against {found['base']}: {found['source']}",
    )


def _print_decide(found: Mapping[str, Any]) -> None:
    for reason in found["reasons"]:
        say(f"  {reason}")
    say(f"wattloop: decision: {found['choice'] or 'none'}")


def _print_validate(found: Mapping[str, Any]) -> None:
    print_rows(
        ("figure", "baseline", found["choice"], "change", "goal", "result"),
        [
            (
                v["metric"],
                format_number(v["before"], 5),
                format_number(v["after"], 5),
                change_text(v),
                v["goal"],
                v["verdict"] + ("" if v["met"] else f" ({v['why']})"),
            )
            for v in found["verdicts"]
        ],
        title=f"validation, {found['provenance']}: {found['source']}",
    )
    for text in differed_texts(found):
        say(f"differed: {text}")


PRINTED = {
    "baseline": _print_baseline,
    "characterize": _print_characterize,
    "simulate": _print_simulate,
    "decide": _print_decide,
    "validate": _print_validate,
}
app = Verb("Six steps from a need to a proven saving, over one study.yaml.")
File = Annotated[str, argument("FILE", "The study (default: study.yaml).")]
Workers = Annotated[int, option("--workers", "Processes for simulations.", min=1)]
DEFAULT = "study.yaml"


@app.command("init", example="wattloop study init study.yaml")
def init(file: File = DEFAULT, *, json_file: JsonFile = None) -> None:
    """Step 1: write an example study to edit: the need, its KPIs and goals."""
    path = user_path(file)
    if path.exists():
        raise ConfigError(f"{file}: is there already; name another file")
    check_target(file, "FILE")
    write_text(EXAMPLE, file, "FILE")
    told = {"file": str(path.resolve()), "next": f"wattloop study baseline {file}"}
    write_json(told, json_file)
    say(f"wattloop: wrote {file}; edit it, then: wattloop study baseline {file}")


@app.command("baseline", example="wattloop study baseline")
def baseline(file: File = DEFAULT, *, workers: Workers = 2, given: StoreOptions) -> None:
    """Step 2: measure the KPIs of the present system, and its symptoms."""
    _step(file, "baseline", given, workers)


@app.command("characterize", example="wattloop study characterize")
def characterize(file: File = DEFAULT, *, given: StoreOptions) -> None:
    """Step 3: read from sweeps what levers do to single jobs."""
    _step(file, "characterize", given)


@app.command("simulate", example="wattloop study simulate --workers 4")
def simulate(file: File = DEFAULT, *, workers: Workers = 2, given: StoreOptions) -> None:
    """Step 4: check a twin of the system against the baseline, then simulate candidates."""
    _step(file, "simulate", given, workers)


@app.command("decide", example="wattloop study decide")
def decide(file: File = DEFAULT, *, given: StoreOptions) -> None:
    """Step 5: choose the candidate to deploy, with reasons."""
    _step(file, "decide", given)


@app.command("validate", example="wattloop study validate")
def validate(file: File = DEFAULT, *, workers: Workers = 2, given: StoreOptions) -> None:
    """Step 6: measure the KPIs again; every goal is SUCCESS or FAIL."""
    found = _step(file, "validate", given, workers)
    if not found["success"]:
        raise typer.Exit(1)


@app.command("status", example="wattloop study status")
def status(file: File = DEFAULT, *, given: StoreOptions) -> None:
    """Show the results so far, and the next step."""
    with _studying(file, given) as work:
        spec, steps = work.record.spec, work.record.steps
        given.present(
            lambda: {"study": spec.name, "steps": steps}, lambda: print_status(spec, steps, file)
        )


def _step(file: str, step: str, given: StoreOptions, workers: int = 1) -> dict[str, Any]:
    with _studying(file, given, workers) as work:
        run: Callable[[], dict[str, Any]] = getattr(work, step)
        found = run()

        def print_found() -> None:
            print_step(step, found)
            print_next(work.record.spec.name, work.record.steps, file)

        given.present(lambda: found, print_found)
    return found


@contextmanager
def _studying(file: str, given: StoreOptions, workers: int = 1) -> "Iterator[StudyRunner]":
    from wattloop.study.steps import StudyRunner

    if not Path(user_path(file)).is_file():
        raise ConfigError(f"{file}: no such file; begin with: wattloop study init {file}")
    spec = read_study(user_path(file))
    with given.open_store(create=True) as place:
        yield StudyRunner(place, spec, workers=workers)
