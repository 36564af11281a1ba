"""Segments under way: one at a time in this thread, or several, each in a thread of its own."""

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Protocol

from wattloop.trials.limits import Deferral
from wattloop.tune.bench import Bench
from wattloop.tune.progress import Progress
from wattloop.tune.segment import Segment

__all__ = ["Slots", "slots_of"]


class Slots(Protocol):
    """Where segments run."""

    size: int

    def __len__(self) -> int:
        """How many are under way."""

    def begin(self, segment: Segment) -> None:
        """Start one; there must be room."""

    def ended(self) -> list[tuple[Segment, Progress]]:
        """Wait until at least one has ended. Stops act here only."""


@contextmanager
def slots_of(bench: Bench, stops: Deferral) -> Iterator[Slots]:
    """As many as the bench has; in the end nothing of it is running, whatever happens."""
    size = int(getattr(bench, "slots", 1))
    if size == 1:
        try:
            yield _Here(bench, stops)
        finally:
            bench.close()
        return
    pool = ThreadPoolExecutor(size, "wattloop-slot")
    try:
        yield _Beside(bench, stops, pool, size)
    finally:
        bench.close()  # first: it ends what the threads wait for
        pool.shutdown()


class _Here:
    size = 1

    def __init__(self, bench: Bench, stops: Deferral) -> None:
        self._bench, self._stops = bench, stops
        self._segment: Segment | None = None

    def __len__(self) -> int:
        return int(self._segment is not None)

    def begin(self, segment: Segment) -> None:
        self._segment = segment

    def ended(self) -> list[tuple[Segment, Progress]]:
        segment, self._segment = self._segment, None
        assert segment is not None
        with self._stops.lifted():
            return [(segment, self._bench.run(segment))]


class _Beside:
    def __init__(self, bench: Bench, stops: Deferral, pool: ThreadPoolExecutor, size: int) -> None:
        self.size = size
        self._bench, self._stops, self._pool = bench, stops, pool
        self._under_way: dict[Future[Progress], Segment] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, segment: Segment) -> None:
        self._under_way[self._pool.submit(self._bench.run, segment)] = segment

    def ended(self) -> list[tuple[Segment, Progress]]:
        with self._stops.lifted():
            done, _ = wait(self._under_way, return_when=FIRST_COMPLETED)
        # in the order in which they were begun, so that the same run tells the same story
        return [(self._under_way.pop(f), f.result()) for f in list(self._under_way) if f in done]
