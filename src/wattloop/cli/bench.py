"""`wattloop bench`: time and energy of six kernels across frameworks and parallel styles."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from wattloop.characterize.bench.bench import TIMEOUT_S, Bench
from wattloop.characterize.bench.choice import Choice, words
from wattloop.characterize.bench.idle_power import Idle, IdleByThreads, idle_by_threads, idle_line
from wattloop.characterize.bench.plan import Plan, planned
from wattloop.characterize.bench.processors import usable_cpus
from wattloop.characterize.bench.result import KernelResult
from wattloop.characterize.bench.session_record import BenchRecord
from wattloop.cli.bench_view import TABLES, list_kernels, machine_facts, show
from wattloop.cli.chosen import settings_of
from wattloop.cli.options import Config, Devices, Interval, JsonFile, Meters, StorePlace
from wattloop.cli.output import check_target, is_terminal, say, write_json
from wattloop.core.errors import ConfigError
from wattloop.core.records import RunStatus
from wattloop.core.units import format_duration
from wattloop.measure.session import Session

__all__ = ["app"]

IDLE = ("auto", "stored", "fit", "threads", "none")
USAGE_ERROR = 2

app = typer.Typer(add_completion=False)


@app.command("bench")
def bench(  # noqa: PLR0913 - one parameter per option
    *,
    kernels: Annotated[
        str, typer.Option("--kernels", "-k", metavar="LIST", help="Such as gemm,triad.")
    ] = "",
    backends: Annotated[
        str, typer.Option("--backends", "-b", metavar="LIST", help="Such as numpy,torch.")
    ] = "",
    styles: Annotated[
        str, typer.Option("--styles", metavar="LIST", help="Such as scalar,simd or compiled.")
    ] = "",
    threads: Annotated[
        str, typer.Option("--threads", metavar="LIST", help="CPU threads, such as 1,2,4.")
    ] = "",
    sizes: Annotated[
        str,
        typer.Option("--sizes", metavar="LIST", help="Such as small, or gemm=4096,triad=1e8."),
    ] = "",
    dtype: Annotated[
        str, typer.Option("--dtype", help="Number format: fp64, fp32, tf32, bf16 or fp16.")
    ] = "fp32",
    device: Annotated[
        str, typer.Option("--device", help="cpu, gpu or gpu:N (default: a GPU if there is one).")
    ] = "",
    seconds: Annotated[
        float | None, typer.Option("--seconds", "-s", help="Measured seconds per kernel.")
    ] = None,
    idle: Annotated[
        str, typer.Option("--idle", help="What to subtract: auto, stored, fit, threads, none.")
    ] = "auto",
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Most seconds for one kernel.")
    ] = TIMEOUT_S,
    tables: Annotated[
        str, typer.Option("--tables", metavar="LIST", help=f"Of {','.join(TABLES)}, or all.")
    ] = "",
    listing: Annotated[
        bool, typer.Option("--list", help="Show kernels, sizes and frameworks, and end.")
    ] = False,
    json_file: JsonFile = None,
    interval: Interval = None,
    devices: Devices = None,
    meters: Meters = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Run six kernels on every installed framework; say how fast, and at how many joules.

    Results are checked, kernels run in processes of their own, and energy is read from outside.
    """
    if listing:
        list_kernels(json_file)
        return
    check_target(json_file, "--json")
    wanted = _tables(tables)
    if idle not in IDLE:
        raise ConfigError(f"--idle {idle}: use {', '.join(IDLE)}")
    settings = settings_of(config, interval=interval, devices=devices, meters=meters, store=store)
    choice = Choice.of(
        kernels=kernels,
        backends=backends,
        styles=styles,
        threads=threads,
        sizes=sizes,
        dtype=dtype,
        device=device,
        seconds=seconds,
    )
    session = Session.open(settings, name="bench", in_process=False)
    status = RunStatus.FAILED
    try:
        plan = planned(choice, session.host)
        record = _measured(plan, session, idle, timeout)
        status = RunStatus.FINISHED
    finally:
        session.close(status)
    if json_file != "-":
        show(record, wanted)
    if json_file is not None:
        write_json(record.to_dict(), json_file)
    if not any(r.ok for r in record.results):
        raise typer.Exit(USAGE_ERROR)


def _measured(plan: Plan, session: Session, how_idle: str, timeout_s: float) -> BenchRecord:
    for item in plan.left_out:
        say(f"wattloop: left out: {item.what}: {item.reason}")
    with _progress(plan) as tell:
        by_threads: list[IdleByThreads] = []
        if how_idle == "threads":
            by_threads, idle = _idle_of_threads(plan, session, tell)
        else:
            tell("idle", None)
            idle = idle_line(session, how_idle, plan.choice.device.kind, lambda: None)
        bench = Bench(plan, session, idle, tell, timeout_s)
        bench.run()
    return BenchRecord(
        results=bench.results,
        left_out=[{"what": o.what, "reason": o.reason} for o in plan.left_out],
        idle=idle.to_dict(),
        idle_by_threads=by_threads,
        machine=machine_facts(session),
        missing=[{"name": m.name, "reason": m.reason} for m in session.missing],
        warnings=[*idle.warnings, *session.notes],
    )


def _idle_of_threads(
    plan: Plan, session: Session, tell: Callable[[str, KernelResult | None], None]
) -> tuple[list[IdleByThreads], Idle]:
    most = len(usable_cpus())
    doubling = [2**power for power in range(most.bit_length()) if 2**power <= most]
    counts = plan.choice.threads or tuple(doubling)
    tell(f"idle with {', '.join(map(str, counts))} sleeping threads", None)
    rows, lines = idle_by_threads(session, counts, lambda: None)
    return rows, Idle(lines, "idle line fitted over windows of sleeping threads")


@contextmanager
def _progress(plan: Plan) -> Iterator[Callable[[str, KernelResult | None], None]]:
    """A bar on a terminal; elsewhere a line at the beginning and one for each framework."""
    about = f"{plan.measurements} measurements, about {format_duration(plan.expected_s)}"
    if not is_terminal(sys.stderr):
        say(f"wattloop: {about}")
        yield _plain_progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(20), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(about, total=plan.measurements)

        def tell(text: str, result: KernelResult | None) -> None:
            if result is None:
                progress.update(task, description=text)
            else:
                progress.advance(task)

        yield tell


def _plain_progress(text: str, result: KernelResult | None) -> None:
    if text.endswith(": starting"):
        say(f"wattloop: {text.removesuffix(': starting')}")


def _tables(text: str) -> list[str]:
    wanted = words(text)
    unknown = [name for name in wanted if name not in (*TABLES, "all")]
    if unknown:
        raise ConfigError(f"--tables {unknown[0]}: known are {', '.join(TABLES)}, all")
    return list(TABLES) if "all" in wanted else wanted
