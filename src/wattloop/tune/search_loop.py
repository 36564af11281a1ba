"""Search loop: a strategy asks for segments, an executor trains them, the store records them."""

from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from wattloop.core.clock import Clock, RealClock
from wattloop.core.errors import ConfigError, StoreError, StoreLocked, StrategyError
from wattloop.core.process import Deferral, stops_deferred, stops_raise
from wattloop.core.units import format_duration, format_energy
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.journal_import import import_orphaned
from wattloop.trials.experiment_lock import end_leftovers, lock_experiment
from wattloop.tune.executors.base import Resumable, TrainedSoFar, TrialExecutor
from wattloop.tune.executors.training_curve import CLOSE
from wattloop.tune.search_problem import Limits, Problem
from wattloop.tune.search_store import SearchRecord
from wattloop.tune.segment import Progress, Segment, Status, without_gc
from wattloop.tune.strategies.base import WAIT, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpent:
    """Energy, time and counts that a search has spent so far.

    Attributes:
        energy_j, time_s: of all segments, repetitions and idle devices included.
        elapsed_s: while the search ran; less than `time_s` where several segments run at once.
        repeated_j: of these, what was spent twice because a search was killed.
        idle_j: of these, what devices took that were held and waited.
        unknown: of these, without a reading of energy.
    """

    energy_j: float = 0.0
    time_s: float = 0.0
    elapsed_s: float = 0.0
    repeated_j: float = 0.0
    idle_j: float = 0.0
    candidates: int = 0
    segments: int = 0
    unknown: int = 0

    def after(self, progress: Progress) -> "BudgetSpent":
        repeated_j, idle_j = progress.repeated_j or 0.0, progress.idle_j or 0.0
        # not dataclasses.replace, for the same reason as in `TrainedSoFar.after`
        return BudgetSpent(
            energy_j=self.energy_j + (progress.energy_j or 0.0) + repeated_j + idle_j,
            time_s=self.time_s + progress.time_s + progress.repeated_s,
            elapsed_s=self.elapsed_s,
            candidates=self.candidates,
            repeated_j=self.repeated_j + repeated_j,
            idle_j=self.idle_j + idle_j,
            segments=self.segments + 1,
            unknown=self.unknown + (progress.energy_j is None and progress.time_s > 0),
        )


def reached_limit(limits: Limits, spent: BudgetSpent) -> str:
    """Return the limit that is reached, for people; empty when none is."""
    if limits.energy_j is not None and spent.energy_j >= limits.energy_j:
        return f"the energy budget of {format_energy(limits.energy_j)} is spent"
    if limits.time_s is not None and spent.elapsed_s >= limits.time_s:
        return f"the time of {format_duration(limits.time_s)} is over"
    return ""


def candidate_limit(limits: Limits, spent: BudgetSpent) -> str:
    """Return why no more configurations may start, for people; empty when more may."""
    most = limits.candidates
    if most is None or spent.candidates < most:
        return ""
    return f"{most} configuration{'s were' if most != 1 else ' was'} allowed"


def bound_segment(segment: Segment, limits: Limits, spent: BudgetSpent) -> Segment:
    until = replace(
        segment.until,
        energy_j=_smaller(segment.until.energy_j, limits.energy_j, spent.energy_j),
        time_s=_smaller(segment.until.time_s, limits.time_s, spent.elapsed_s),
        most_j=_smaller(None, limits.energy_j, spent.energy_j),
        most_s=_smaller(None, limits.time_s, spent.elapsed_s),
    )
    if limits.epochs is not None:
        epochs = limits.epochs if until.epochs is None else min(until.epochs, limits.epochs)
        until = replace(until, epochs=epochs)
    return replace(segment, until=until)


def _smaller(own: float | None, most: float | None, used: float) -> float | None:
    if most is None:
        return own
    left = max(0.0, most - used)
    return left if own is None else min(own, left)


class SearchCallback(Protocol):
    """Receiver of the events of a search."""

    def begins(self, segment: Segment, spent: BudgetSpent) -> None:
        """Announce a segment before it is trained."""

    def ended(self, segment: Segment, progress: Progress, spent: BudgetSpent) -> None:
        """Report a segment that has ended and is stored."""


@contextmanager
def open_slots(executor: TrialExecutor, stops: Deferral) -> Iterator["Slots"]:
    size = int(getattr(executor, "slots", 1))
    pool = None if size == 1 else ThreadPoolExecutor(size, "wattloop-slot")
    try:
        yield Slots(executor, stops, pool, size)
    finally:
        executor.close()  # first: it ends what the threads wait for
        if pool is not None:
            pool.shutdown()


class Slots:
    """Segments under way. With one slot they run in this thread, where stop signals arrive."""

    def __init__(
        self, executor: TrialExecutor, stops: Deferral, pool: ThreadPoolExecutor | None, size: int
    ) -> None:
        self.size = size
        self._executor, self._stops, self._pool = executor, stops, pool
        self._running: dict[Future[Progress] | None, Segment] = {}

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, segment: Segment) -> None:
        future = None if self._pool is None else self._pool.submit(self._executor.run, segment)
        self._running[future] = segment

    def ended(self) -> list[tuple[Segment, Progress]]:
        """Wait until at least one has ended. Stop requests take effect only here."""
        with self._stops.lifted():
            if self._pool is None:
                segment = self._running.pop(None)
                return [(segment, self._executor.run(segment))]
            done, _ = wait(filter(None, self._running), return_when=FIRST_COMPLETED)
        # Order of start, so that equal runs give equal records.
        return [
            (self._running.pop(future), future.result())
            for future in list(self._running)
            if future is not None and future in done
        ]


# A killed search resumes where it was: a new strategy is told all finished segments, which are
# never trained again.
@dataclass(frozen=True, slots=True)
class SearchStopped:
    """Reason why a search ended: `limit` is empty when the strategy had nothing more to ask."""

    limit: str
    spent: BudgetSpent


class Search:
    """Run of one search to its end, or to one of its limits.

    Args:
        strategy: new; it is told all recorded segments.
        executor: what trains;; always closed at the end.
    """

    def __init__(
        self,
        record: SearchRecord,
        problem: Problem,
        strategy: Strategy,
        executor: TrialExecutor,
        *,
        listener: SearchCallback | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._record, self._problem = record, problem
        self._strategy, self._executor = strategy, executor
        self._listener = listener
        self._pasts: dict[str, TrainedSoFar] = {}
        self._killed: dict[str, tuple[float, float]] = {}
        self._left: list[Segment] = []
        self._asked: dict[str, Segment] = {}
        """Segments under way, as they were asked for."""
        self._begun: set[str] = set()
        self._kept: set[str] = set()
        """Candidates that the executor keeps for later."""
        self._reported = False
        self._now_s = (clock or RealClock()).now_s
        self._begin_s, self._before_s = self._now_s(), 0.0
        self.spent = BudgetSpent()

    def run(self) -> SearchStopped:
        """Train the remaining segments.

        Raises:
            DeviceBusy: another process runs this search.
            ConfigError: the training never reports its metric.
            StoreError: a result cannot be written; everything before is stored.
        """
        status, limit = "interrupted", ""
        with ExitStack() as stack:
            stack.callback(self._executor.close)
            stack.enter_context(stops_raise())
            stack.enter_context(lock_experiment(self._record.store, self._record.search_id))
            stack.callback(self._record.close)
            end_leftovers(self._record.store, self._record.search_id)
            try:
                with stops_deferred() as stops:
                    with without_gc():
                        self._recall()
                    with open_slots(self._executor, stops) as slots:
                        limit = self._rounds(slots)
                status = "finished"
            except ConfigError:
                status = "failed"
                raise
            finally:
                self._store_status(status, limit)
        return SearchStopped(limit, self.spent)

    # Start.

    def _recall(self) -> None:
        self._import_runs()
        history = self._record.history()
        for segment, progress in history.told:
            self._take(segment, progress)
        self._begun = {event.segment.candidate for event in history.events}
        self._before_s = history.elapsed_s
        self.spent = replace(self.spent, elapsed_s=history.elapsed_s, candidates=len(self._begun))
        self._strategy.recall(history.events)
        self._left = list(history.under_way)
        self._killed = {segment.key: self._record.killed_cost(segment) for segment in self._left}
        wanted = self._wanted() | {segment.candidate for segment in self._left}
        self._kept = {name for name in self._pasts if name in wanted}
        if isinstance(self._executor, Resumable) and history.events:
            self._executor.recall(self._recalled(wanted))
        self._record.running({"best": None})  # written by an earlier interruption

    def _recalled(self, wanted: set[str]) -> Mapping[str, TrainedSoFar]:
        pasts = {name: self._pasts.get(name, TrainedSoFar()) for name in wanted}
        for segment in self._left:
            killed_s, killed_j = self._killed[segment.key]
            known = pasts[segment.candidate]
            pasts[segment.candidate] = replace(known, killed_s=killed_s, killed_j=killed_j)
        return pasts

    def _rounds(self, slots: Slots) -> str:
        """Ask, train and tell until the strategy is done; return the limit that ended it."""
        while True:
            limit = reached_limit(self._problem.limits, self.spent)
            asked: Segment | Literal["wait"] | None = None if limit else "wait"
            while not limit and len(slots) < slots.size:
                asked = self._next()
                if not isinstance(asked, Segment):
                    break
                if asked.candidate not in self._begun:
                    limit = candidate_limit(self._problem.limits, self.spent)
                if not limit:
                    self._begin(asked, slots)
            if not len(slots):
                if asked == "wait" and not limit:
                    raise StrategyError("the strategy waits, and nothing is under way")
                limit = limit or candidate_limit(self._problem.limits, self.spent)
                if not limit:  # no candidate will be resumed
                    for candidate in self._kept:
                        self._executor.release(candidate)
                    self._kept = set()
                return limit
            for segment, progress in slots.ended():
                self._end(segment.key, progress)

    def _next(self) -> Segment | Literal["wait"] | None:
        if self._left:
            return self._left.pop(0)
        asked = self._strategy.ask()
        return "wait" if asked is WAIT else asked

    def _begin(self, segment: Segment, slots: Slots) -> None:
        self._record.begin(segment)
        self._kept.add(segment.candidate)
        self._begun.add(segment.candidate)
        self.spent = replace(self.spent, candidates=len(self._begun))
        if self._listener is not None:
            self._listener.begins(segment, self.spent)
        self._asked[segment.key] = segment
        slots.begin(bound_segment(segment, self._problem.limits, self.spent))

    def _end(self, key: str, progress: Progress) -> None:
        segment = self._asked.pop(key)
        progress = self._complete(segment, self._with_killed(segment, progress))
        self.spent = replace(self.spent, elapsed_s=self._before_s + self._now_s() - self._begin_s)
        self._record.end(segment, progress, {"elapsed_s": self.spent.elapsed_s})
        self._note_scope()
        self._take(segment, progress)
        self._strategy.tell(segment, progress)
        self._release(segment, progress)
        with suppress(StoreLocked):  # the next process imports the run from its journal
            self._import_runs()
        if self._listener is not None:
            self._listener.ended(segment, progress, self.spent)
        if progress.status is Status.NO_METRIC and not self._reported:
            raise ConfigError(f"{segment.candidate}: {progress.message}")

    def _take(self, segment: Segment, progress: Progress) -> None:
        """Tell the strategy of a segment that has ended, now or in an earlier process."""
        past = self._pasts.get(segment.candidate, TrainedSoFar())
        self._pasts[segment.candidate] = past.after(segment, progress)
        self.spent = self.spent.after(progress)
        self._reported = self._reported or progress.best is not None

    def _with_killed(self, segment: Segment, progress: Progress) -> Progress:
        """Add the cost of killed attempts, where the executor has not included it."""
        killed_s, killed_j = self._killed.pop(segment.key, (0.0, 0.0))
        if isinstance(self._executor, Resumable) or not killed_s:
            return progress
        return replace(
            progress,
            repeated_s=progress.repeated_s + killed_s,
            repeated_j=(progress.repeated_j or 0.0) + killed_j,
        )

    def _complete(self, segment: Segment, progress: Progress) -> Progress:
        most = self._problem.limits.epochs
        tried = not segment.keep or segment.rates is not None
        if most is None or tried or progress.status is not Status.PAUSED:
            return progress
        if progress.epochs < most - CLOSE:
            return progress
        return replace(progress, status=Status.ENDED)

    def _wanted(self) -> set[str]:
        alive = self._strategy.alive()
        return {segment.candidate for segment in self._asked.values()} | set(alive or ())

    def _release(self, segment: Segment, progress: Progress) -> None:
        if not progress.status.alive and progress.status is not Status.NOT_SUPPORTED:
            self._kept.discard(segment.candidate)
            self._executor.release(segment.candidate)
        for candidate in self._kept - self._wanted():
            self._kept.discard(candidate)
            self._executor.release(candidate)

    def _note_scope(self) -> None:
        """Store the scope: a resumed search keeps it, because its energies are compared."""
        scope = getattr(self._executor, "scope", None)
        if scope and self._record.experiment.facts.get("scope") != scope:
            self._record.note({"scope": scope})

    def _import_runs(self) -> None:
        import_orphaned(self._record.store, finalize_orphaned_run)

    def _store_status(self, status: str, limit: str) -> None:
        facts: dict[str, Any] = {"stopped": limit, "elapsed_s": self.spent.elapsed_s}
        best = self._strategy.best()
        facts["best"] = None if best is None else asdict(best)
        if self._problem.objective.several:
            facts["front"] = [chosen.candidate for chosen in self._strategy.front()]
        try:
            self._record.set_status(status, facts)
        except StoreError:
            if status == "finished":
                raise  # otherwise the error that ended the search is more useful
