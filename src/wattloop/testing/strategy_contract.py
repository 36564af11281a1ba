"""Contract test of search strategies, also of third parties.

def test_my_strategy_keeps_the_contract():
    check_strategy(MyStrategy)
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from wattloop.core.errors import StrategyError
from wattloop.testing.synthetic_trainings import SyntheticExecutor
from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import Progress, Segment, Status
from wattloop.tune.strategies.base import WAIT, Strategy, StrategyEvent

Make = Callable[[Problem], Strategy]

MOST_SEGMENTS = 3_000
"""A strategy that asks for more on so small a problem never ends."""
MOST_PREFIXES = 15
"""Places of a log at which it is cut and resumed."""


class TriedBench(Protocol):
    """An executor whose trainings can be made to fail; `SyntheticBench` is one."""

    problem: Problem
    failing: Callable[[Segment], Status | None]
    metered: bool

    def run(self, segment: Segment) -> Progress:
        """Train for one segment."""

    def release(self, candidate: str) -> None:
        """It will not be asked for again."""


def check_strategy(
    make: Make,
    bench: Callable[[], TriedBench] = SyntheticExecutor,
    *,
    at_once: Sequence[int] = (1, 3),
) -> None:
    """Raise AssertionError with the promise that the strategy breaks.

    Args:
        make: a new strategy for a problem.
        bench: a new bench, each time the same.
        at_once: how many segments are under way at once.
    """
    for workers in at_once:
        _check_whole(make, bench, workers)
    _check_foreign(make, bench)
    _check_limits(make, bench)
    for status in Status:
        if not status.good:
            _check_failures(make, bench, status)
    _check_blind(make, bench)


def played(
    strategy: Strategy, bench: TriedBench, workers: int = 1, log: Sequence[StrategyEvent] = ()
) -> list[StrategyEvent]:
    """The events of a search to its end; `log` is what came before, with segments under way.

    The oldest of `workers` segments is told first, so what is told does not depend on when
    the search was cut.
    """
    events = list(log)
    under_way = [e.segment for e in events if e.progress is None]
    for event in events:
        if event.progress is not None:
            under_way.remove(event.segment)
    over = False
    while not over or under_way:
        assert len(events) < 2 * MOST_SEGMENTS, "it never ends"
        asked = None if over or len(under_way) >= workers else strategy.ask()
        if isinstance(asked, Segment):
            events.append(StrategyEvent(asked))
            under_way.append(asked)
            continue
        if asked is None and len(under_way) < workers:
            over = True
        if asked is WAIT:
            assert under_way, "it waits for something, but nothing is under way"
        if under_way:
            segment = under_way.pop(0)
            progress = bench.run(segment)
            strategy.tell(segment, progress)
            events.append(StrategyEvent(segment, progress))
            over = False
            _release(strategy, bench, events, under_way)
    return events


def _release(
    strategy: Strategy,
    bench: TriedBench,
    events: Sequence[StrategyEvent],
    under_way: Sequence[Segment],
) -> None:
    alive = strategy.alive()
    if alive is None:
        return
    last = events[-1].segment.candidate
    busy = {segment.candidate for segment in under_way}
    begun = {last} if len(events) % 5 else {event.segment.candidate for event in events}
    for candidate in sorted(begun - alive - busy):
        bench.release(candidate)


def _check_whole(make: Make, bench: Callable[[], TriedBench], workers: int) -> None:
    first = bench()
    strategy = make(first.problem)
    events = played(strategy, first, workers)
    _check_segments(first.problem, [e.segment for e in events if e.progress is None])
    _check_best(strategy, events)
    assert strategy.ask() is None, "a search that is over stays over"
    second = bench()
    again = make(second.problem)
    assert played(again, second, workers) == events, "told the same, it must ask the same"
    assert again.best() == strategy.best(), "told the same, it must choose the same"
    step = max(1, len(events) // MOST_PREFIXES)
    for cut in range(0, len(events) + 1, step):
        _check_resumed(make, bench, events, cut, workers)


def _check_resumed(
    make: Make, bench: Callable[[], TriedBench], events: list[StrategyEvent], cut: int, workers: int
) -> None:
    """A search that was killed after `cut` events goes on as if nothing had happened."""
    there = bench()
    for event in events[:cut]:  # the trainings themselves, which a bench keeps
        if event.progress is not None:
            there.run(event.segment)
    resumed = make(there.problem)
    resumed.recall(_stored(events[:cut]))
    rest = played(resumed, there, workers, events[:cut])
    for place, (one, other) in enumerate(zip(rest, events, strict=False)):
        assert one.segment == other.segment, (
            f"resumed after {cut} events, event {place} is {one.segment.key}, not "
            f"{other.segment.key}"
        )
    assert len(rest) == len(events), f"resumed after {cut} events it has {len(rest)} in all"


def _stored(events: Sequence[StrategyEvent]) -> list[StrategyEvent]:
    """The same, as a store of JSON gives them back."""
    found = []
    for event in events:
        segment = Segment.from_dict(json.loads(json.dumps(event.segment.to_dict())))
        assert segment == event.segment, f"{event.segment.key}: does not survive JSON"
        progress = event.progress
        if progress is not None:
            progress = Progress.from_dict(json.loads(json.dumps(progress.to_dict())))
        found.append(StrategyEvent(segment, progress))
    return found


def _check_segments(problem: Problem, asked: Sequence[Segment]) -> None:
    assert asked, "it asked for nothing"
    keys = [segment.key for segment in asked]
    assert len(set(keys)) == len(keys), "a key is asked for twice"
    hardware = set(problem.space.hardware)
    parameters: dict[str, object] = {}
    for segment in asked:
        known = parameters.setdefault(segment.candidate, segment.parameters)
        assert known == segment.parameters, f"{segment.candidate}: its parameters changed"
        levers = {name: value for name, value in segment.levers.items() if name in hardware}
        found = {**segment.parameters, **levers}
        assert problem.space.complete(found) == found, f"{segment.key}: not in the space"
        epochs, most = segment.until.epochs, problem.limits.epochs
        if most is not None and segment.rates is None:
            assert epochs is not None and epochs <= most, f"{segment.key}: over {most} epochs"


def _check_best(strategy: Strategy, events: Sequence[StrategyEvent]) -> None:
    best = strategy.best()
    last = {e.segment.candidate: e.progress for e in events if e.progress is not None}
    good = [p for p in last.values() if p is not None and p.status.good]
    quality = strategy.problem.quality
    if best is None:
        assert not any(quality.reached(p.best) for p in good), (
            "a candidate was good enough, and none is best"
        )
        return
    progress = last.get(best.candidate)
    assert progress is not None, f"best is {best.candidate}, which was never told"
    assert progress.status.good, f"best is {best.candidate}, which is {progress.status}"
    assert quality.target is None or quality.reached(progress.best), "best is not good enough"
    asked = next(e.segment for e in events if e.segment.candidate == best.candidate)
    assert dict(best.parameters) == dict(asked.parameters), "best has other parameters"
    assert best.why, "a choice has its reason"


def _check_foreign(make: Make, bench: Callable[[], TriedBench]) -> None:
    """Events of another search, and segments that were not asked for, are refused."""
    there = bench()
    strategy = make(there.problem)
    asked = strategy.ask()
    assert isinstance(asked, Segment), "the first thing it asks for is a segment"
    progress = there.run(asked)
    stranger = replace(asked, key="stranger/7", candidate="stranger")
    calls: list[Callable[[], None]] = [
        lambda: make(there.problem).recall([StrategyEvent(stranger)]),
        lambda: strategy.tell(stranger, progress),
    ]
    for call in calls:
        try:
            call()
        except StrategyError:
            continue
        raise AssertionError("it took an event that was not its own")


def _check_limits(make: Make, bench: Callable[[], TriedBench]) -> None:
    for candidates, epochs in ((3, 2.0), (1, 5.0)):
        there = bench()
        limits = replace(there.problem.limits, candidates=candidates, epochs=epochs)
        there.problem = replace(there.problem, limits=limits)
        events = played(make(there.problem), there)
        begun = {event.segment.candidate for event in events}
        assert len(begun) <= candidates, f"{len(begun)} candidates, {candidates} are allowed"
        _check_segments(there.problem, [e.segment for e in events if e.progress is None])
        for event in events:
            if event.progress is not None:
                assert event.progress.epochs <= epochs, f"{event.segment.key}: too many epochs"


def _check_failures(make: Make, bench: Callable[[], TriedBench], status: Status) -> None:
    """Failures of some and of all trainings end neither the search nor the process."""

    def third(segment: Segment) -> Status | None:
        return status if sum(segment.candidate.encode()) % 3 == 0 else None

    for failing in (third, lambda segment: status):
        for workers in (1, 3):
            there = bench()
            there.failing = failing
            strategy = make(there.problem)
            events = played(strategy, there, workers)
            _check_best(strategy, events)
            _check_segments(there.problem, [e.segment for e in events if e.progress is None])


def _check_blind(make: Make, bench: Callable[[], TriedBench]) -> None:
    """Where no energy can be read it still comes to an end."""
    there = bench()
    there.metered = False
    strategy = make(there.problem)
    played(strategy, there)
    strategy.best()
