"""The fixture `energy` of a test: its limits, its baseline, its outcome."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from wattloop.check.baselines import Baselines, Machine, NotComparable
from wattloop.check.figures import (
    JUDGED_FIRST,
    Execution,
    FigureKind,
    FigureSeries,
    Limit,
    add_figures,
    collect_series,
    format_figure,
    judged_kind,
    parse_limit,
    parse_share,
)
from wattloop.check.measurement import BlockMeter
from wattloop.check.verdict import against_limit, compare, mean_and_noise
from wattloop.core.errors import ConfigError, WattloopError
from wattloop.core.settings import Settings, load_settings
from wattloop.core.units import format_change

MARK_WORDS = {"below", "baseline", "repeats", "tolerance"}
BAD = ("above", "regression")


@dataclass(frozen=True, slots=True)
class EnergyMark:
    """The mark and the options of one test."""

    name: str
    file: Path
    below: tuple[Limit, ...] = ()
    baseline: bool = False
    repeats: int = 1
    tolerance: float = 0.05
    update: bool = False
    strict: bool = False

    @classmethod
    def of(cls, item: Any) -> "EnergyMark":
        """Read mark and options of a test. Raises ConfigError for unknown words or values."""
        mark = item.get_closest_marker("energy")
        given = {} if mark is None else dict(mark.kwargs)
        strange = [*map(repr, () if mark is None else mark.args), *(given.keys() - MARK_WORDS)]
        if strange:
            raise ConfigError(
                f"the mark energy does not take {strange[0]}; it takes {', '.join(MARK_WORDS)}"
            )
        repeats = given.get("repeats", 1)
        if not isinstance(repeats, int) or not 1 <= repeats <= 1_000:
            raise ConfigError(f"the mark energy: repeats={repeats!r} is not a number from 1 on")
        below = given.get("below") or ()
        option = item.config.getoption("--energy-tolerance")
        tolerance = given.get("tolerance") or option or item.config.getini("energy_tolerance")
        return cls(
            name=f"{item.path.name}::{item.nodeid.partition('::')[2]}",
            file=item.path.parent / item.config.getini("energy_baselines"),
            below=tuple(map(parse_limit, (below,) if isinstance(below, str) else below)),
            baseline=bool(given.get("baseline", False)),
            repeats=repeats,
            tolerance=parse_share(tolerance, "tolerance"),
            update=item.config.getoption("--energy-update"),
            strict=item.config.getoption("--energy-strict"),
        )


@dataclass(slots=True)
class EnergyOutcome:
    """One line of the summary.

    Attributes:
        verdict: `below`, `above`, `same`, `unclear`, `improved`, `regression`, `new` (no
            baseline yet), `taken` (now the baseline), `not judged`, `measured` (nothing was asked).
        against: the limit or baseline, for people.
        series: every figure, for the baselines file; empty unless it is to be taken.
    """

    name: str
    file: str
    kind: FigureKind
    value: float
    noise: float
    repeats: int
    provenance: str
    verdict: str = "measured"
    against: str = ""
    notes: list[str] = field(default_factory=list)
    series: dict[str, Any] = field(default_factory=dict)
    figures: dict[FigureKind, FigureSeries] = field(default_factory=dict, repr=False)

    @property
    def bad(self) -> bool:
        return self.verdict in BAD

    @property
    def shown(self) -> str:
        noise = f" ± {format_figure(self.kind, self.noise)}" if self.noise else ""
        return f"{format_figure(self.kind, self.value)}{noise}"

    @property
    def sentence(self) -> str:
        against = f"; {self.against}" if self.against else ""
        notes = "".join(f"; {note}" for note in self.notes)
        times = f", mean of {self.repeats}" if self.repeats > 1 else ""
        figure = f"{self.kind.words} {self.shown} ({self.provenance}{times})"
        return f"{self.verdict}: {figure}{against}{notes}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which xdist can carry."""
        data = asdict(self)
        del data["figures"]
        return {**data, "kind": self.kind.value, "shown": self.shown}


def judge_limits(
    mark: EnergyMark, now: dict[FigureKind, FigureSeries], limits: Sequence[Limit], reason: str
) -> EnergyOutcome:
    """Hold the figures against the limit of the kind that says most, of those given."""
    order = {kind: place for place, kind in enumerate(JUDGED_FIRST)}
    usable = sorted((one for one in limits if one.kind in now), key=lambda one: order[one.kind])
    kind = usable[0].kind if usable else judged_kind(now)
    assert kind is not None  # CPU time is always there
    mean, noise = mean_and_noise(now[kind])
    series = now[kind]
    found = EnergyOutcome(
        name=mark.name,
        file=str(mark.file),
        kind=kind,
        value=mean,
        noise=noise,
        repeats=len(series.values),
        provenance=series.provenance,
        figures=now,
    )
    if kind is not FigureKind.ENERGY and reason:
        found.notes.append(reason)
    if usable:
        holds, note = against_limit(series, usable[0].value)
        found.verdict = "below" if holds else "above"
        found.against = f"limit {usable[0]}"
        found.notes += [note] if note else []
    elif limits:
        found.verdict = "not judged"
        found.against = f"limit {limits[0]}"
        found.notes.append(f"give a limit in {kind.unit} as well to judge it here")
    return found


def judge_baseline(found: EnergyOutcome, mark: EnergyMark) -> None:
    """Compare the figures with the baseline, or have them taken as such. Raises ConfigError."""
    if mark.update:
        found.verdict = "taken"
        found.series = {kind.value: one.to_dict() for kind, one in found.figures.items()}
        return
    known = Baselines.read_if_any(mark.file)
    if mark.name not in known.entries:
        found.verdict = "new"
        found.notes.append("no baseline yet; take it with --energy-update")
        return
    machine = Machine.here()
    kind = judged_kind(found.figures)
    assert kind is not None
    try:
        comparison = compare(
            mark.name,
            known.find(mark.name, machine),
            found.figures,
            kind,
            machine=machine,
            tolerance=mark.tolerance,
        )
    except NotComparable as error:
        found.verdict = "not judged"
        said = str(error).partition(", or choose --figure")[0]
        found.notes.append(said.replace("--update", "--energy-update"))
        return
    one = comparison.judged
    change = "" if one.change is None else format_change(one.change)
    noise = "" if one.noise is None else f" ±{one.noise:.1%}"
    found.kind = kind
    found.value, found.noise = mean_and_noise(found.figures[kind])
    found.verdict = one.verdict.value
    found.against = f"baseline {format_figure(kind, one.before)}" + (
        f" ({change}{noise})" if change else ""
    )
    found.notes += [*comparison.notes, *one.notes]


UNREAD = "a sensor could not be read in every execution: they may be too short for it"
"""Said only where joules are lacking although there is a sensor."""
SETTINGS = pytest.StashKey[Settings]()


class Energy:
    """Measures a test: its blocks, or all of it where there are none.

    Several blocks add up. Asking for a figure outside of a block ends what is measured of this
    execution.
    """

    def __init__(self, mark: EnergyMark, settings: Settings, not_side_by_side: bool) -> None:
        self.repeats = mark.repeats
        self.repeating = False
        self._mark = mark
        self._settings = settings
        self._sensors = not_side_by_side
        self._probe: BlockMeter | None = None
        self._executions: list[Execution] = []
        self._parts: list[Execution] = []
        self._whole = False
        self._in_block = False
        self._outcome: EnergyOutcome | None = None

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
        return self._value(FigureKind.ENERGY)

    @property
    def cpu_time_s(self) -> float | None:
        """CPU seconds of this process, its threads and ended children."""
        return self._value(FigureKind.CPU_TIME)

    @property
    def instructions(self) -> float | None:
        """Instructions of the same; None where they cannot be counted."""
        return self._value(FigureKind.INSTRUCTIONS)

    # -- for the plugin ----------------------------------------------------------------------

    @contextmanager
    def opened(self) -> Iterator[None]:
        with BlockMeter(self._settings, sensors=self._sensors) as probe:
            if not self._sensors:
                probe.reason = "tests run side by side, so joules cannot be told apart"
            self._probe = probe
            yield

    @contextmanager
    def execution(self) -> Iterator[None]:
        self._parts, self._whole = [], True
        self._running().begin()
        yield
        self._executions.append(self._so_far())

    @contextmanager
    def repeated(self) -> Iterator[None]:
        self.repeating = True
        try:
            yield
        finally:
            self.repeating = False

    def conclude(self) -> None:
        """Judge what the mark asks for, after the last execution."""
        __tracebackhide__ = True
        if self._mark.below or self._outcome is None:
            self._judge(self._executions, self._mark.below)
        if self._mark.baseline:
            assert self._outcome is not None
            try:
                judge_baseline(self._outcome, self._mark)
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
        self._outcome = judge_limits(self._mark, collect_series(executions), limits, reason)
        self._fail_if_worse()

    def _fail_if_worse(self) -> None:
        __tracebackhide__ = True
        assert self._outcome is not None
        if self._outcome.bad or (self._mark.strict and self._outcome.verdict == "not judged"):
            pytest.fail(f"energy: {self._outcome.sentence}", pytrace=False)

    def _so_far(self) -> Execution:
        if self._in_block:
            raise RuntimeError("energy: figures are known after the block has ended")
        if self._whole:
            self._parts.append(self._running().end())
            self._whole = False
        return add_figures(self._parts)

    def _value(self, kind: FigureKind) -> float | None:
        reading = self._so_far().get(kind)
        return None if reading is None else reading.value

    def _running(self) -> BlockMeter:
        if self._probe is None:
            raise RuntimeError("energy: measures only while the test itself runs, not in fixtures")
        return self._probe


def energy_of(item: Any) -> Energy:
    """Return the `Energy` of a test by its mark, the options and the settings."""
    config: pytest.Config = item.config
    try:
        mark = EnergyMark.of(item)
        if SETTINGS not in config.stash:
            config.stash[SETTINGS] = load_settings()
    except WattloopError as error:
        raise _failed(error) from None
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    return Energy(mark, config.stash[SETTINGS], workers == 1)


def _limit(text: str) -> Limit:
    __tracebackhide__ = True
    try:
        return parse_limit(text)
    except WattloopError as error:
        raise _failed(error) from None


def _failed(error: WattloopError) -> BaseException:
    """Fail with a message instead of a traceback into Wattloop."""
    return pytest.fail.Exception(f"energy: {error}", pytrace=False)
