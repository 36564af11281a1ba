"""A search that can be killed: its numbers come from a formula, so every run of it is the same."""

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.tune.small import Halving, small_problem
from wattloop.store.database import open_store
from wattloop.store.experiments import TrialRecord, list_experiments, read_trials
from wattloop.tune.search_loop import Search
from wattloop.tune.search_store import SearchRecord, open_search
from wattloop.tune.segment import EpochPoint, Progress, Segment, Status

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8)
ROUNDS = (2, 4, 6, 8)


class FormulaBench:
    """Trains nothing for a few milliseconds; what it was made to do is in its log.

    Args:
        log: a line when a segment begins.
        slots: how many at once.
        during: called in the middle of each segment.
    """

    def __init__(self, log: Path, slots: int, during: Callable[[Segment], object]) -> None:
        self.slots, self._log, self._during = slots, log, during

    def run(self, segment: Segment) -> Progress:
        note(self._log, f"begin {segment.key}")
        self._during(segment)
        width, epochs = float(segment.parameters["width"]), float(segment.until.epochs)
        quality = (1 - 1 / (1 + epochs)) * (1 - (width - 5) ** 2 / 50)
        return Progress(
            status=Status.PAUSED,
            time_s=epochs,
            energy_j=100 * epochs / width,
            epochs=epochs,
            quality=quality,
            best=quality,
            curve=(EpochPoint(epoch=epochs, quality=quality, time_s=epochs, energy_j=epochs),),
        )

    def release(self, candidate: str) -> None:
        pass

    def close(self) -> None:
        pass


def short(segment: Segment) -> None:
    """Hardly anything."""
    time.sleep(0.003)


def held(folder: Path, passes: int) -> Callable[[Segment], None]:
    """Hold each segment after the first few until the file `go` is in the folder."""
    numbers = itertools.count()

    def during(segment: Segment) -> None:
        short(segment)
        if next(numbers) >= passes:
            while not (folder / "go").exists():
                time.sleep(0.005)

    return during


def search(
    folder: Path,
    slots: int = 1,
    during: Callable[[Segment], object] = short,
    disk: Path | None = None,
) -> None:
    """Begin the search, or continue it, to its end; the log has its winner.

    The store is on `disk`, in `folder` unless given.
    """
    folder.mkdir(exist_ok=True)
    problem = small_problem(widths=WIDTHS)
    strategy = Halving(problem, ROUNDS)
    log = folder / "log"
    with open_store((disk or folder) / "runs.db") as store:
        record = SearchRecord(store, open_search(store, {}, "formula")[0])
        known = [t.key for t in read_trials(store, record.search_id) if t.ended]
        note(log, " ".join(["known", *known]))
        bench = FormulaBench(log, slots, during)
        Search(record, problem, strategy, bench).run()
    note(log, f"best {strategy.best().candidate}")


def trials(folder: Path) -> list[TrialRecord]:
    """Return the trials of the one search in the store."""
    with open_store(folder / "runs.db") as store:
        (only,) = list_experiments(store)
        return read_trials(store, only.experiment_id)


def status(folder: Path) -> str:
    """Of the one search in the store."""
    with open_store(folder / "runs.db") as store:
        (only,) = list_experiments(store)
        return only.status


def is_over(folder: Path) -> bool:
    """Return true if the one search in the store has ended."""
    if not (folder / "runs.db").exists():
        return False
    with open_store(folder / "runs.db") as store:
        return any(known.status == "finished" for known in list_experiments(store))


def best_written(folder: Path) -> object:
    """Return the search's stored best trial."""
    with open_store(folder / "runs.db") as store:
        (only,) = list_experiments(store)
        return only.facts.get("best")


def begun(folder: Path) -> list[str]:
    """Segments that were trained, in order."""
    lines = (folder / "log").read_text().splitlines()
    return [line.split()[1] for line in lines if line.startswith("begin")]


def winner(folder: Path) -> str:
    """Of the search that came to its end."""
    (line,) = [x for x in (folder / "log").read_text().splitlines() if x.startswith("best")]
    return line.split()[1]


def wait_for(folder: Path, count: int, pid: int) -> None:
    """Until so many segments more have begun, or the process has ended."""
    log = folder / "log"
    lines = log.read_text().count("begin") if log.exists() else 0
    while count and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if log.exists() and log.read_text().count("begin") >= lines + count:
            return
        time.sleep(0.001)


def paid_twice(folder: Path) -> list[str]:
    """Segments that were trained although the store had them when their process began."""
    known: set[str] = set()
    found = []
    for line in (folder / "log").read_text().splitlines():
        word, *keys = line.split()
        if word == "known":
            known = set(keys)
        elif word == "begin" and keys[0] in known:
            found.append(keys[0])
    return found


def note(log: Path, text: str) -> None:
    """Append a line; one system call, so that a kill cannot tear it."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{text}\n".encode())
    os.close(file)


def in_child(work: Callable[[], object]) -> int:
    """Start `work` in a process of its own, without the second that a new Python takes."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        work()
        code = 0
    except KeyboardInterrupt:
        code = 130
    except SystemExit as error:
        code = int(error.code or 0)
    finally:
        os._exit(code)


def exit_code(pid: int) -> int:
    """Wait for a child; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
