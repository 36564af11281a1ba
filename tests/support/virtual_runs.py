"""Stored runs of virtual GPUs that follow a script, on a virtual clock.

The cards, their meters, streams, journal, accounting and store are the real ones; only the clock is
virtual, so nothing sleeps. Every number is marked `simulated`.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from wattloop.core.clock import VirtualClock
from wattloop.core.records import Provenance, Scope, Signal
from wattloop.core.results import RunStatus
from wattloop.core.settings import Settings
from wattloop.measure.meter_stream import MeterStream, domain_sources
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.measure.run_journal import RunJournal, feed_to_dict
from wattloop.measure.session import RunResult
from wattloop.measure.window_energy import window_energy
from wattloop.meters.base import Meter, Reading
from wattloop.store.database import Store
from wattloop.store.journal_import import import_orphaned
from wattloop.store.runs import RunRecord, find_run
from wattloop.testing.journals import header
from wattloop.virtual.cards import card_named
from wattloop.virtual.gpu import IDLE, Activity, VirtualGpu
from wattloop.virtual.meter import VirtualEnergy, VirtualPower

from .scripted_meter import ScriptedMeter, gauge

SIGNALS_S = 1.0
"""As the sampler of `wattloop run` reads them."""


class Work(NamedTuple):
    """Load of a card from `begin_s` of the run on.

    `resident` is the share of the time in which a kernel is on the card, which NVML shows as its
    utilisation: small kernels are there all the time and fill little of it. The card's own busy
    share unless given.
    """

    begin_s: float
    activity: Activity
    resident: float | None = None


@dataclass(frozen=True, slots=True)
class CardScript:
    """Script of one card.

    Attributes:
        works: in order of time; idle before the first.
        limit_share: power limit, as a part of the default.
        clock_share: locked SM clock, as a part of the highest; 1 is not locked.
        memory_share: memory in use.
    """

    works: Sequence[Work] = ()
    limit_share: float = 1.0
    clock_share: float = 1.0
    memory_share: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScript:
    """Script of a run: its length, its cards, and events in addition to their sensors.

    Attributes:
        averaged: True if utilisations are means of the last second, as NVML's are, instead of
            present values.
        signals: True if values other than power can be read from the cards.
        cpu_w, cpu_utilisation: of the processor, constant; it is always part of a run.
        events: events that an integration would record, such as steps.
    """

    run_id: str
    duration_s: float
    name: str = "train"
    host: str = "node1"
    model: str = "h200"
    cards: Sequence[CardScript] = ()
    interval_s: float = 0.1
    averaged: bool = True
    signals: bool = True
    cpu_w: float = 60.0
    cpu_utilisation: float = 0.5
    command: Sequence[str] = ("python", "train.py")
    tags: Mapping[str, str] = field(default_factory=dict)
    events: Sequence[dict[str, Any]] = ()
    status: RunStatus = RunStatus.FINISHED
    settings: Settings = field(default_factory=Settings)
    started_wall_s: float = 1_800_000_000.0


def write_run(store: Store, script: RunScript) -> RunRecord:
    """Run the script through meters and journal into the store."""
    clock = VirtualClock(1_000.0, script.started_wall_s)
    model = card_named(script.model)
    gpus = [VirtualGpu(i, model, clock=clock) for i in range(len(script.cards))]
    for gpu, card in zip(gpus, script.cards, strict=True):
        if card.limit_share < 1:
            gpu.set_power_cap(max(model.min_limit_w, card.limit_share * model.default_limit_w))
        if card.clock_share < 1:
            gpu.set_clock(max(model.min_clock_mhz, card.clock_share * model.max_clock_mhz))
        gpu.set_memory_used(card.memory_share * model.memory_b)
    meters: list[Meter] = [_cpu(clock, script)]
    if gpus:
        meters += [VirtualEnergy(gpus, clock), _ScriptedPower(gpus, clock, script)]
    feeds = [MeterStream(meter, clock, index) for index, meter in enumerate(meters)]
    journal = RunJournal(synced=False)
    started_s = clock.now_s()
    head = header(
        script.run_id,
        name=script.name,
        host=script.host,
        command=list(script.command),
        tags=dict(script.tags),
        feeds=[feed_to_dict(feed) for feed in feeds],
        missing=[],
        started_s=started_s,
        started_wall_s=script.started_wall_s,
        settings={"interval_s": script.interval_s},
    )
    store.journals.mkdir(parents=True, exist_ok=True)
    journal.begin(store.journals / f"{script.run_id}.journal", head, started_s)
    _play(script, clock, gpus, feeds)
    for event in script.events:
        journal.add_event(event)
    journal.write(feeds, clock.now_s(), lambda end_s: True)
    result = window_energy(
        domain_sources(feeds),
        (),
        name="train",
        window_id=0,
        parent_id=None,
        begin_s=started_s,
        end_s=clock.now_s(),
    )
    run = RunResult(
        run_id=script.run_id,
        status=script.status,
        exit_code=0,
        signal=None,
        started_wall_s=script.started_wall_s,
        result=result,
    ).accounted(script.settings, "machine")
    journal.end({"type": "end", "time_s": result.end_s, **run.to_end_dict()})
    list(import_orphaned(store, finalize_orphaned_run))
    return find_run(store, script.run_id)


def _play(
    script: RunScript, clock: VirtualClock, gpus: list[VirtualGpu], feeds: list[MeterStream]
) -> None:
    """Advance time: changes of load when they are due, readings at the sampler's pace."""
    started_s = clock.now_s()
    due = sorted(
        (
            (started_s + work.begin_s, number, work.activity)
            for number, card in enumerate(script.cards)
            for work in card.works
        ),
        key=lambda change: change[:2],
    )
    place, signals_s = 0, started_s
    for tick in range(int(script.duration_s / script.interval_s) + 1):
        now_s = started_s + tick * script.interval_s
        clock.advance(now_s - clock.now_s())
        while place < len(due) and due[place][0] <= now_s:
            at_s, number, activity = due[place]
            gpus[number].occupy(activity if activity.busy > 0 else IDLE, at_s)
            place += 1
        for feed in feeds:
            feed.read()
        if now_s >= signals_s:
            signals_s = now_s + SIGNALS_S - 1e-6
            for feed in feeds:
                feed.read_signals()


class _ScriptedPower(VirtualPower):
    """A meter whose utilisation is NVML's: the share of the last second with a kernel on the
    card.
    """

    name: ClassVar[str] = "virtual-power"
    LOOKS = 20

    def __init__(self, gpus: Sequence[VirtualGpu], clock: VirtualClock, script: RunScript) -> None:
        self._script = script
        self._started_s = clock.now_s()
        super().__init__(gpus, clock)

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Return the signals of a virtual card, or none."""
        return super().signals if self._script.signals else ()

    def read_signals(self) -> Sequence[Reading]:
        """Return the card's signals with the scripted shares."""
        if not self._script.signals:
            return []
        values = list(super().read_signals())
        names = [signal.name for signal in self.signals]
        now_s = self._clock.now_s()
        looks = self.LOOKS if self._script.averaged else 1
        times_s = [now_s - i * SIGNALS_S / looks for i in range(looks)]
        cards = zip(self._gpus, self._names, self._script.cards, strict=True)
        for gpu, name, card in cards:
            segments = [gpu.at(time_s) for time_s in times_s]
            memory = sum(segment.memory_utilisation for segment in segments) / looks
            shown = sum(
                self._resident(card, time_s, segment.busy)
                for time_s, segment in zip(times_s, segments, strict=True)
            )
            values[names.index(f"{name}/utilisation")] = round(shown / looks, 2)
            values[names.index(f"{name}/memory_utilisation")] = round(memory, 2)
        return values

    def _resident(self, card: CardScript, time_s: float, busy: float) -> float:
        place = bisect_right(card.works, time_s - self._started_s, key=lambda work: work.begin_s)
        shown = card.works[place - 1].resident if place else None
        return busy if shown is None else shown


def _cpu(clock: VirtualClock, script: RunScript) -> ScriptedMeter:
    power_w, utilisation = script.cpu_w, script.cpu_utilisation
    domain = gauge("cpu:0/package")._replace(
        scope=Scope.CPU, provenance=Provenance.SIMULATED, source="a script", tdp_w=2 * power_w
    )
    return ScriptedMeter(
        clock,
        [(domain, lambda now_s: power_w)],
        signals=[(Signal("cpu/utilisation", "fraction"), lambda now_s: utilisation)],
    )
