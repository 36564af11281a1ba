"""Executor without training: measured tables give the time and energy of each segment."""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from wattloop.cap.evaluation import MeasuredCurve
from wattloop.cap.finder import CapFinder
from wattloop.cap.online import OnlineRules
from wattloop.core.errors import ConfigError
from wattloop.tune.replay.tables import RecordedTraining, RecordedWorkload
from wattloop.tune.segment import (
    CAP_LEVER,
    CapFound,
    CapRequest,
    EpochPoint,
    Progress,
    Segment,
    Status,
    Until,
)

# Searches for a cap in a replayed training depend only on the curve and on the noise of the
# readings. One takes a tenth of a second to compute, so each curve has a few draws that all
# trainings share.

READING_S = 1.0
"""Duration of training that one reading of the meter covers."""
ERROR = 0.02
"""Windows are extended until energy has this relative error."""
POOL = 6
"""Draws of noise per curve."""
RULES = OnlineRules()


@dataclass(frozen=True, slots=True)
class CapScript:
    """One search: (cap, seconds) in order, and the result."""

    stretches: tuple[tuple[float, float], ...]
    found: CapFound


class CapScripts:
    """Searches for a cap of all curves; `noise` is the relative deviation of an energy reading."""

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise
        self._made: dict[tuple[object, ...], CapScript] = {}

    @property
    def readings(self) -> int:
        least = math.ceil(RULES.least_s / READING_S)
        return max(least, math.ceil((self.noise / ERROR) ** 2))

    def draw(
        self, curve: MeasuredCurve, search: CapRequest, draw: np.random.Generator
    ) -> CapScript:
        number = int(draw.integers(POOL)) if self.noise else 0
        key = (curve, search, number)
        if key not in self._made:
            self._made[key] = self._search(curve, search, number)
        return self._made[key]

    def _search(self, curve: MeasuredCurve, search: CapRequest, number: int) -> CapScript:
        caps = tuple(w for w in curve.caps_w if not search.caps_w or w in search.caps_w)
        if len(caps) < 2:
            cap_w = caps[0] if caps else None
            return CapScript((), CapFound(cap_w=cap_w, reason="the device has only one cap"))
        draw = np.random.default_rng([number, *(int(1000 * t) for t in curve.time_s)])
        error = self.noise / math.sqrt(self.readings)
        finder = CapFinder(caps, search.metric, search.k, noise=max(error, 1e-3))
        stretches: list[tuple[float, float]] = []
        window_s = RULES.settle_s + self.readings * READING_S
        while (cap_w := finder.ask()) is not None:
            if search.longest_s is not None and window_s * (len(stretches) + 1) > search.longest_s:
                break
            at = curve.caps_w.index(cap_w)
            power_w = curve.power_w[at] * math.exp(error * draw.standard_normal())
            finder.tell(cap_w, curve.time_s[at], curve.time_s[at] * power_w)
            stretches.append((cap_w, window_s))
        if not stretches:
            return CapScript((), CapFound(cap_w=None, reason="there was no time to try any"))
        choice = finder.best()
        found = CapFound(
            cap_w=choice.cap_w,
            energy_ratio=1 - choice.energy_gain_pct.value / 100,
            time_ratio=1 + choice.time_loss_pct.value / 100,
            probes=tuple((p.cap_w, p.time_s, p.energy_j) for p in finder.probes),
            uncertainty=error,
        )
        return CapScript(tuple(stretches), found)


BATCH = "batch_size"
CLOSE = 1e-9


@dataclass(slots=True)
class _Candidate:
    """Training under way; `energy_j` is the meter's reading."""

    batch_size: int
    training: RecordedTraining
    cap_w: float
    epochs: float = 0.0
    time_s: float = 0.0
    energy_j: float = 0.0


@dataclass(slots=True)
class _Segment:
    """Cost of the current segment so far; `energy_j` is the meter's reading."""

    until: Until
    time_s: float = 0.0
    energy_j: float = 0.0
    variance_j2: float = 0.0
    curve: list[EpochPoint] = field(default_factory=list)
    status: Status | None = None


class ReplayExecutor:
    """Executor that replays trainings with `batch_size` as the parameter, from measured tables.

    Each candidate is a random one of the recorded trainings of its batch size. Epochs to a quality
    are those of that training at any cap; time and energy are those of the batch size at the cap.
    """

    def __init__(
        self, workload: RecordedWorkload, scripts: CapScripts, seed: int | list[int] = 0
    ) -> None:
        self.workload, self.scripts = workload, scripts
        self._draw = np.random.default_rng(seed)
        self._candidates: dict[str, _Candidate] = {}
        self.spent_j: dict[str, float] = {}
        """True energy of each candidate, without the meter's noise."""
        self.trained: dict[str, tuple[int, float]] = {}
        """Batch size of each candidate, and its cap at the end."""
        self.reached: set[str] = set()
        """Candidates that reached the target."""

    @property
    def total_j(self) -> float:
        return math.fsum(self.spent_j.values())

    def run(self, segment: Segment) -> Progress:
        if segment.rates is not None:
            return Progress(
                status=Status.NOT_SUPPORTED, message="the tables have one learning rate"
            )
        known = self._candidates.get(segment.candidate) or self._begin(segment)
        self._candidates[segment.candidate] = known
        before = replace(known)
        part = _Segment(segment.until)
        cap_w = segment.levers.get(CAP_LEVER)
        if segment.cap is None and cap_w is not None:
            if cap_w not in self.workload.curves[known.batch_size].caps_w:
                return Progress(status=Status.NOT_SET, message=f"{cap_w} W was not measured")
            known.cap_w = float(cap_w)
        if segment.until.epochs is not None and known.epochs >= segment.until.epochs - CLOSE:
            part.status = Status.PAUSED  # it has already reached the target
        found = None
        if segment.cap is not None and part.status is None:
            found = self._search_cap(segment, known, part)
        if part.status is None and self._due(known, part) and found is not None:
            part.status = Status.PAUSED  # a search for a cap completes, even past a bound
        while part.status is None:
            self._advance(segment.candidate, known, part, math.inf)
        self.trained[segment.candidate] = (known.batch_size, known.cap_w)
        if self.workload.wanted.reached(known.training.quality(known.epochs)):
            self.reached.add(segment.candidate)
        if not segment.keep:
            self._candidates[segment.candidate] = before
        return self._progress(known, part, found)

    def release(self, candidate: str) -> None:
        self._candidates.pop(candidate, None)

    def close(self) -> None:
        self._candidates.clear()

    def _begin(self, segment: Segment) -> _Candidate:
        size = segment.parameters.get(BATCH)
        if not isinstance(size, int | float) or int(size) not in self.workload.curves:
            raise ConfigError(f"{BATCH} {size!r} is not in the tables of {self.workload.name}")
        trainings = self.workload.trainings[int(size)]
        training = trainings[int(self._draw.integers(len(trainings)))]
        self.spent_j.setdefault(segment.candidate, 0.0)
        return _Candidate(int(size), training, self.workload.curves[int(size)].caps_w[-1])

    def _search_cap(self, segment: Segment, known: _Candidate, part: _Segment) -> CapFound | None:
        """Replay a search for a cap; only the target or the training's own end cut it short."""
        assert segment.cap is not None
        bounds, part.until = part.until, Until(at_target=part.until.at_target)
        script = self.scripts.draw(self.workload.curves[known.batch_size], segment.cap, self._draw)
        for cap_w, window_s in script.stretches:
            known.cap_w = cap_w
            end_s = part.time_s + window_s
            while part.status is None and part.time_s < end_s - CLOSE:
                self._advance(segment.candidate, known, part, end_s - part.time_s)
            if part.status is not None:
                return None
        part.until = bounds
        if script.found.cap_w is not None:
            known.cap_w = script.found.cap_w
        return script.found

    def _advance(self, name: str, known: _Candidate, part: _Segment, most_s: float) -> None:
        """Train until the epoch ends, `most_s` have passed, or the segment is over."""
        curve = self.workload.curves[known.batch_size]
        at = curve.caps_w.index(known.cap_w)
        epoch_s, power_w = curve.time_s[at], curve.power_w[at]
        end = math.floor(known.epochs + CLOSE) + 1.0
        until = part.until
        length_s = min(most_s, (end - known.epochs) * epoch_s)
        if until.anywhere:
            length_s = min(length_s, self._room_s(known, part, epoch_s, power_w))
        joules = power_w * length_s
        self.spent_j[name] += joules
        error_j = self._error_j(joules, length_s)
        read_j = max(joules + error_j * self._draw.standard_normal(), joules / 10)
        known.epochs += length_s / epoch_s
        known.time_s += length_s
        known.energy_j += read_j
        part.time_s += length_s
        part.energy_j += read_j
        part.variance_j2 += error_j**2
        if known.epochs >= end - CLOSE:
            known.epochs = end
            self._end_epoch(known, part)
        if part.status is None and until.anywhere and self._due(known, part):
            part.status = Status.PAUSED

    def _error_j(self, joules: float, length_s: float) -> float:
        """Return the error of an epoch: at least that of a window of the required error."""
        readings = max(length_s / READING_S, 1.0)
        return joules * self.scripts.noise / math.sqrt(min(readings, self.scripts.readings))

    def _room_s(self, known: _Candidate, part: _Segment, epoch_s: float, power_w: float) -> float:
        until, rooms = part.until, [math.inf]
        if until.time_s is not None:
            rooms.append(until.time_s - part.time_s)
        if until.energy_j is not None:
            rooms.append((until.energy_j - part.energy_j) / power_w)
        if until.epochs is not None:
            rooms.append((until.epochs - known.epochs) * epoch_s)
        return max(min(rooms), 1e-6)

    def _due(self, known: _Candidate, part: _Segment) -> bool:
        until = part.until
        return (
            (until.time_s is not None and part.time_s >= until.time_s - 1e-6)
            or (until.energy_j is not None and part.energy_j >= until.energy_j * (1 - 1e-6))
            or (until.epochs is not None and known.epochs >= until.epochs - CLOSE)
        )

    def _end_epoch(self, known: _Candidate, part: _Segment) -> None:
        quality = known.training.quality(known.epochs)
        part.curve.append(
            EpochPoint(
                epoch=known.epochs, quality=quality, time_s=known.time_s, energy_j=known.energy_j
            )
        )
        if self.workload.wanted.reached(quality) and part.until.at_target:
            part.status = Status.REACHED
        elif known.epochs >= self.workload.max_epochs:
            part.status = Status.ENDED
        elif self._due(known, part):
            part.status = Status.PAUSED

    def _progress(self, known: _Candidate, part: _Segment, found: CapFound | None) -> Progress:
        assert part.status is not None
        quality = known.training.quality(known.epochs)
        return Progress(
            status=part.status,
            time_s=part.time_s,
            energy_j=part.energy_j,
            uncertainty_j=math.sqrt(part.variance_j2),
            epochs=known.epochs,
            quality=quality,
            best=quality,
            curve=tuple(part.curve),
            cap=found,
            provenance="replayed",
        )
