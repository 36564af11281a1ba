"""The part of a program that the program itself marks with `wattloop.measure("NAME")`.

The program takes the times, we take the energy: of everything that the trial reads, between the
first beginning and the last end of windows of that name in any process of the program. All
processes of a machine share one monotonic clock.
"""

from pathlib import Path

from wattloop.core.settings import Settings
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.measure.session import Session
from wattloop.store.database import Store
from wattloop.store.details import read_windows
from wattloop.store.journal_import import import_orphaned
from wattloop.store.runs import RunRecord, child_runs

__all__ = ["NoSuchWindow", "inner_window", "store_variable"]


class NoSuchWindow(Exception):
    """The program ended without it."""


def store_variable(settings: Settings) -> dict[str, str]:
    """What makes the program keep its own measurements where we look for them."""
    place = settings.store_location
    return {"WATTLOOP_STORE": place if "://" in place else str(Path(place).expanduser().absolute())}


def inner_window(store: Store, session: Session, name: str) -> tuple[float, float]:
    """Beginning and end, on the machine's monotonic clock.

    A run of that name (`wattloop run --name NAME`) does where no window has it.

    Raises:
        NoSuchWindow: nothing of that name was measured; what was, is named.
    """
    import_orphaned(store, finalize_orphaned_run)
    inner = [run for run in _within(store, session.run_id) if run.boot_id == session.host.boot_id]
    windows = [window for run in inner for window in read_windows(store, run.run_id)]
    named = [(w.begin_s, w.end_s) for w in windows if w.name == name]
    if not named:
        named = [(r.started_s, r.ended_s) for r in inner if r.name == name and r.ended_s]
    if not named:
        others = sorted({*(w.name for w in windows), *(r.name for r in inner)})
        raise NoSuchWindow(_said(name, others))
    return min(begin_s for begin_s, _ in named), max(end_s for _, end_s in named)


def _within(store: Store, run_id: str) -> list[RunRecord]:
    """Runs that processes of a run measured, and those within them."""
    found: list[RunRecord] = []
    left = [run_id]
    while left:
        children = child_runs(store, left.pop())
        found += children
        left += [child.run_id for child in children]
    return found


def _said(name: str, others: list[str]) -> str:
    if others:
        return f"it measured no window '{name}', but {', '.join(repr(o) for o in others)}"
    return (
        f"it measured no window '{name}'; put 'with wattloop.measure(\"{name}\"):' around the part "
        f"that counts, or start that part with 'wattloop run --name {name} -- ...'"
    )
