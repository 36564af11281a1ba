"""What a test gets as `energy`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from wattloop.check.figures import Execution, Kind, added, gathered
from wattloop.check.limits import Limit, limit
from wattloop.check.probe import Probe
from wattloop.check.pytest_outcome import Outcome, Wishes, judged_baseline, judged_limits
from wattloop.core.errors import WattloopError
from wattloop.core.settings import Settings

__all__ = ["Energy", "energy_of"]

UNREAD = "a sensor could not be read in every execution: they may be too short for it"
"""Said only where joules are lacking although there is a sensor."""
SETTINGS = pytest.StashKey[Settings]()


class Energy:
    """Measures a test: its blocks, or all of it where there are none.

    Several blocks add up. Asking for a figure outside of a block ends what is measured of this
    execution.
    """

    def __init__(self, wishes: Wishes, settings: Settings, not_side_by_side: bool) -> None:
        self.repeats = wishes.repeats
        self.repeating = False
        self._wishes = wishes
        self._settings = settings
        self._sensors = not_side_by_side
        self._probe: Probe | None = None
        self._executions: list[Execution] = []
        self._parts: list[Execution] = []
        self._whole = False
        self._in_block = False
        self._outcome: Outcome | None = None

    # -- for tests ---------------------------------------------------------------------------

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Only what is inside counts."""
        if self._in_block:
            raise RuntimeError("energy.measure(): blocks of one test cannot be nested")
        probe = self._running()
        if self._whole:
            probe.drop()
            self._whole = False
        self._in_block = True
        probe.begin()
        try:
            yield
        finally:
            self._in_block = False
            self._parts.append(probe.end())

    def assert_below(self, *limits: str) -> None:
        """Fail when the test uses more: `"12 J"`, or `"12 J", "3 s"` to have a limit in CPU
        seconds for machines without sensors. Noise is on the side of the test. Where the mark
        asks for repeats, their mean is judged, in the last one.
        """
        __tracebackhide__ = True
        asked = [_limit(text) for text in limits]
        found = [*self._executions, self._so_far()]
        if len(found) == self.repeats:
            self._judge(found, asked)

    @property
    def energy_j(self) -> float | None:
        """Joules that sensors read in this execution; None where there is none."""
        return self._value(Kind.ENERGY)

    @property
    def cpu_time_s(self) -> float | None:
        """CPU seconds of this process, its threads and ended children."""
        return self._value(Kind.CPU_TIME)

    @property
    def instructions(self) -> float | None:
        """Instructions of the same; None where they cannot be counted."""
        return self._value(Kind.INSTRUCTIONS)

    # -- for the plugin ----------------------------------------------------------------------

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Sensors are at hand."""
        with Probe(self._settings, sensors=self._sensors) as probe:
            if not self._sensors:
                probe.reason = "tests run side by side, so joules cannot be told apart"
            self._probe = probe
            yield

    @contextmanager
    def execution(self) -> Iterator[None]:
        """One call of the test."""
        self._parts, self._whole = [], True
        self._running().begin()
        yield
        self._executions.append(self._so_far())

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """The test is called once more."""
        self.repeating = True
        try:
            yield
        finally:
            self.repeating = False

    def conclude(self) -> None:
        """Judge what the mark asks for, after the last execution."""
        __tracebackhide__ = True
        if self._wishes.below or self._outcome is None:
            self._judge(self._executions, self._wishes.below)
        if self._wishes.baseline:
            assert self._outcome is not None
            try:
                judged_baseline(self._outcome, self._wishes)
            except WattloopError as error:
                raise _failed(error) from None
            self._fail_if_worse()

    def outcome(self, *, passed: bool) -> dict[str, Any] | None:
        """What is said of the test, as plain data; None when it failed before it was measured."""
        return None if self._outcome is None else {**self._outcome.to_dict(), "passed": passed}

    # -- inside ------------------------------------------------------------------------------

    def _judge(self, executions: list[Execution], limits: Sequence[Limit]) -> None:
        __tracebackhide__ = True
        assert self._probe is not None
        reason = self._probe.reason or UNREAD
        self._outcome = judged_limits(self._wishes, gathered(executions), limits, reason)
        self._fail_if_worse()

    def _fail_if_worse(self) -> None:
        __tracebackhide__ = True
        assert self._outcome is not None
        if self._outcome.bad or (self._wishes.strict and self._outcome.verdict == "not judged"):
            pytest.fail(f"energy: {self._outcome.sentence}", pytrace=False)

    def _so_far(self) -> Execution:
        if self._in_block:
            raise RuntimeError("energy: figures are known after the block has ended")
        if self._whole:
            self._parts.append(self._running().end())
            self._whole = False
        return added(self._parts)

    def _value(self, kind: Kind) -> float | None:
        reading = self._so_far().get(kind)
        return None if reading is None else reading.value

    def _running(self) -> Probe:
        if self._probe is None:
            raise RuntimeError("energy: measures only while the test itself runs, not in fixtures")
        return self._probe


def energy_of(item: Any) -> Energy:
    """As the mark, the options and the settings say."""
    from wattloop.core.config_file import load_settings

    config: pytest.Config = item.config
    try:
        wishes = Wishes.of(item)
        if SETTINGS not in config.stash:
            config.stash[SETTINGS] = load_settings()
    except WattloopError as error:
        raise _failed(error) from None
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    return Energy(wishes, config.stash[SETTINGS], workers == 1)


def _limit(text: str) -> Limit:
    __tracebackhide__ = True
    try:
        return limit(text)
    except WattloopError as error:
        raise _failed(error) from None


def _failed(error: WattloopError) -> BaseException:
    """A message in place of a traceback into us."""
    return pytest.fail.Exception(f"energy: {error}", pytrace=False)
