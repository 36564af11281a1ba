"""Progress bars and spinners, and a warning about other load on the machine."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from wattloop.cli.output import PLAIN_TERMINALS, is_quiet, is_terminal, say
from wattloop.measure.session import Session

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID


# Progress on standard error: bars and spinners on a terminal that can redraw a line.
#
# Every text is shown as it is: names of trials, models and files may hold square brackets, which
# rich would otherwise read as markup.

BAR_WIDTH = 20


def is_redrawable(stream: TextIO | None = None) -> bool:
    """Return True for a terminal on which a line can be replaced.

    By default that is standard error, unless `-q` is given.
    """
    named = os.environ.get("TERM", "").lower()
    drawn = stream is not None or not is_quiet()
    return drawn and is_terminal(stream or sys.stderr) and named not in PLAIN_TERMINALS


def bars(*columns: "str | ProgressColumn") -> "Progress":
    """Show rows of `columns`, removed at the end.

    A string is the format of a text. On a narrow terminal texts are cut, the longest first;
    bars, counts and times stay whole.
    """
    from rich.console import Console
    from rich.progress import Progress, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Cut(TextColumn):
        def render(self, task: Task) -> Text:
            text = super().render(task)
            text.no_wrap, text.overflow = True, "ellipsis"
            return text

    made = (
        # only columns that may wrap give up width; the text in it does not wrap all the same
        Cut(c, markup=False, table_column=Column(no_wrap=False)) if isinstance(c, str) else c
        for c in columns
    )
    return Progress(
        *made,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=is_terminal(sys.stdout),  # data in a file stays there
    )


@contextmanager
def updated_row(
    columns: "Callable[[], Sequence[str | ProgressColumn]]", **fields: Any
) -> Iterator[Callable[..., None]]:
    """Yield what changes one row of `columns`, by the arguments of rich's `Progress.update`.

    `fields` are those of the columns' formats at the beginning. Nothing is shown on other outputs.
    """
    if not is_redrawable():
        yield lambda **_: None
        return
    with bars(*columns()) as progress:
        task = progress.add_task("", total=None, **fields)
        yield lambda **changes: progress.update(task, **changes)


def trial_columns() -> "tuple[str | ProgressColumn, ...]":
    """Return the columns of a row that counts trials: `left` is what those that are left take."""
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

    return (
        BarColumn(BAR_WIDTH),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        "{task.fields[left]}",
        "{task.description}",
    )


class Bar:
    """One progress bar; it does nothing where it cannot be shown."""

    def __init__(self, progress: "Progress | None" = None, task: "TaskID | None" = None) -> None:
        self._progress, self._task = progress, task

    def advance(self, by: float = 1.0) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, by)

    def update(self, done: float, of: float) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=of)


@contextmanager
def counted(text: str, total: float | None = None) -> Iterator[Bar]:
    """Show a bar with percentage and time left; nothing on other outputs."""
    if not is_redrawable():
        yield Bar()
        return
    from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

    bar = BarColumn(BAR_WIDTH)
    columns = ("{task.description}", bar, TaskProgressColumn(), TimeRemainingColumn())
    with bars(*columns) as progress:
        yield Bar(progress, progress.add_task(text, total=total))


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Show a line with the elapsed time; nothing on other outputs."""
    with updated_row(spinner_columns) as update:
        update(description=text)
        yield


def spinner_columns() -> "tuple[str | ProgressColumn, ...]":
    """Return the columns of a row that tells what goes on, and for how long."""
    from rich.progress import SpinnerColumn, TimeElapsedColumn

    return SpinnerColumn(), "{task.description}", TimeElapsedColumn()


BUSY_LOAD = 0.5
"""Programs that want a core, on average over the last minute."""


def warn_if_busy(session: Session, consequence: str) -> None:
    """Warn about other load, its effect and the remedy."""
    text = session.host.read_text("proc", "loadavg") or ""
    try:
        load = float(text.split()[0])
    except (IndexError, ValueError):
        return
    if load > BUSY_LOAD:
        say(f"wattloop: warning: the machine is not quiet (load {load:g}): {consequence}")
