"""A meter with scripted readings, on any clock."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from wattloop.core.clock import Clock
from wattloop.core.records import Domain, DomainKind, Gap, Scope, Signal
from wattloop.core.results import Missing
from wattloop.meters.base import Meter, Reading

Script = Callable[[float], Reading]
"""Seconds on the meter's clock -> what the sensor shows then."""


class ScriptedMeter(Meter):
    """Each domain and signal follows a function of time; reads are counted."""

    name: ClassVar[str] = "scripted"

    def __init__(
        self,
        clock: Clock,
        scripts: Sequence[tuple[Domain, Script]],
        *,
        signals: Sequence[tuple[Signal, Script]] = (),
        refused: Sequence[Missing] = (),
        read_takes_s: float = 0.0,
    ) -> None:
        self._clock = clock
        self._scripts = list(scripts)
        self._signals = list(signals)
        self._refused = tuple(refused)
        self._read_takes_s = read_takes_s
        self.reads = 0
        self.forks = 0
        self.closed = 0

    @property
    def domains(self) -> tuple[Domain, ...]:
        """Return the given domains."""
        return tuple(domain for domain, _ in self._scripts)

    @property
    def refused(self) -> tuple[Missing, ...]:
        """Return the given refusals."""
        return self._refused

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Return the given signals."""
        return tuple(signal for signal, _ in self._signals)

    def read(self) -> Sequence[Reading]:
        """Return the present values of the scripts."""
        self.reads += 1
        if self._read_takes_s:
            self._clock.sleep(self._read_takes_s)
        now_s = self._clock.now_s()
        return [script(now_s) for _, script in self._scripts]

    def read_signals(self) -> Sequence[Reading]:
        """Return the present values of the signals' scripts."""
        now_s = self._clock.now_s()
        return [script(now_s) for _, script in self._signals]

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1

    def after_fork_in_child(self) -> None:
        """Count the calls."""
        self.forks += 1


def counter(name: str = "cpu:0/package", **facts: object) -> Domain:
    """Return a counter with the traits of RAPL by default."""
    return _domain(name, DomainKind.COUNTER, facts)


def gauge(name: str = "gpu:0", **facts: object) -> Domain:
    """Return a gauge with the traits of a GPU's power reading by default."""
    return _domain(name, DomainKind.GAUGE, {"update_period_s": 0.1, **facts})


def lost(reason: str) -> Gap:
    """Return the reading of a device that is lost for good."""
    return Gap(reason, lost=True)


def _domain(name: str, kind: DomainKind, facts: dict[str, object]) -> Domain:
    scope = {"cpu": Scope.CPU, "gpu": Scope.GPU, "dram": Scope.DRAM, "node": Scope.NODE}
    values: dict[str, object] = {
        "name": name,
        "kind": kind,
        "scope": scope.get(name.partition(":")[0], Scope.OTHER),
        "source": "script",
        **facts,
    }
    return Domain(**values)  # type: ignore[arg-type]  # the caller's facts are fields of Domain
