"""A session of `bench`: measured, shown as it goes, kept."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from wattloop.bench.idle import IdleByThreads, IdlePower, idle_by_threads, idle_line
from wattloop.bench.plan import BenchPlan, BenchRequest, make_plan, usable_cpus
from wattloop.bench.record import BenchRecord, BenchRecorder
from wattloop.bench.result import KernelResult
from wattloop.bench.runner import KernelBench
from wattloop.cli.bench_view import machine_facts
from wattloop.cli.busy import warn_if_busy
from wattloop.cli.output import say
from wattloop.cli.progress import bars, is_redrawable
from wattloop.core.errors import StoreError
from wattloop.core.results import RunStatus
from wattloop.core.settings import Settings
from wattloop.core.units import format_duration
from wattloop.measure.session import Session
from wattloop.store.database import open_store

__all__ = ["Manner", "measured"]


Tell = Callable[[str, KernelResult | None], None]


class Manner(NamedTuple):
    """How to measure: what is idle, how long a kernel may take."""

    idle: str
    timeout_s: float


def measured(choice: BenchRequest, settings: Settings, manner: Manner) -> BenchRecord:
    """Everything that was chosen, in one stored run whose curve shows kernel after kernel."""
    session = Session.open(settings, name="bench", in_process=False)
    status = RunStatus.FAILED
    try:
        record = _watched(make_plan(choice, session.host), session, manner)
        status = RunStatus.FINISHED
    finally:
        session.close(status)
    return record


def _watched(plan: BenchPlan, session: Session, manner: Manner) -> BenchRecord:
    for item in plan.left_out:
        say(f"wattloop: left out: {item.what}: {item.reason}")
    warn_if_busy(
        session, "times will be longer, and energy that others use is counted; stop what else runs"
    )
    with _keeper(plan, session) as keeper, _progress(plan) as tell:
        rows, idle = _idle(plan, session, manner.idle, tell)

        def listen(text: str, result: KernelResult | None) -> None:
            tell(text, result)
            if result is not None and keeper is not None:
                keeper.add(result)

        bench = KernelBench(plan, session, idle, listen, manner.timeout_s)
        bench.run()
        record = BenchRecord(
            results=bench.results,
            left_out=[{"what": o.what, "reason": o.reason} for o in plan.left_out],
            idle=idle.to_dict(),
            idle_by_threads=rows,
            machine=machine_facts(session),
            missing=[{"name": m.name, "reason": m.reason} for m in session.missing],
            warnings=[*idle.warnings, *session.notes, *(keeper.warnings if keeper else ())],
            experiment_id=keeper.experiment_id if keeper else None,
        )
        if keeper is not None:
            keeper.end("finished", record)
    return record


def _idle(
    plan: BenchPlan, session: Session, how: str, tell: Tell
) -> tuple[list[IdleByThreads], IdlePower]:
    if how != "threads":
        tell("what this machine draws when idle", None)
        return [], idle_line(session, how, plan.choice.device.kind, lambda: None)
    most = len(usable_cpus())
    doubling = [2**power for power in range(most.bit_length()) if 2**power <= most]
    counts = plan.choice.threads or tuple(doubling)
    tell(f"idle with {', '.join(map(str, counts))} sleeping threads", None)
    rows, lines = idle_by_threads(session, counts, lambda: None)
    return rows, IdlePower(lines, "idle line fitted over windows of sleeping threads")


@contextmanager
def _keeper(plan: BenchPlan, session: Session) -> Iterator[BenchRecorder | None]:
    try:
        store = open_store(session.settings.store_location)
    except StoreError as error:
        say(f"wattloop: warning: results will not be kept: {error}")
        yield None
        return
    with store:
        keeper = BenchRecorder(store, plan, session.clock.wall_s())
        try:
            yield keeper
        except BaseException:
            keeper.end("interrupted")
            raise


@contextmanager
def _progress(plan: BenchPlan) -> Iterator[Tell]:
    """A bar on a terminal; elsewhere a line at the beginning and one for each framework."""
    about = f"{plan.measurements} measurements, about {format_duration(plan.expected_s)}"
    if not is_redrawable():
        say(f"wattloop: {about}")
        yield _plain_progress
        return
    from rich.progress import BarColumn, TimeRemainingColumn

    with bars(BarColumn(20), TimeRemainingColumn(), "{task.description}") as progress:
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
