"""The energy of a segment: a measured run of its own, in the scope of the search."""

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

from wattloop.core.model_error import EnergyError, energy_error
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import RunStatus, WindowResult
from wattloop.core.settings import Settings

if TYPE_CHECKING:
    from wattloop.measure.session import Session


SCOPES = ("gpu", "cpu", "dram")


IDLE_SHARE = 0.02


"""A GPU that was never busier than this had no part in a training; a display may take so much."""


class Joules(NamedTuple):
    """Energy in one scope; None when nothing could be read there.

    `error` is its uncertainty taken apart, for a comparison with other energies.
    """

    energy_j: float | None = None
    uncertainty_j: float = 0.0
    provenance: str = ""
    error: EnergyError | None = None


class SegmentMeter:
    """Measures one segment as a run of the store.

    Args:
        settings: how to measure.
        scope: whose energy counts; unless given the widest that somebody reads (`scope_of`).
        name, tags, command: of the run.
        in_process: whether it is this process that trains.
    """

    def __init__(
        self,
        settings: Settings,
        scope: str | None,
        *,
        name: str,
        tags: Mapping[str, str],
        command: Sequence[str] | None = None,
        in_process: bool = True,
    ) -> None:
        from wattloop.measure.session import Session  # not by those who only read what it wrote

        self.session = Session.open(
            settings,
            name=name,
            tags=tags,
            command=command,
            kind="python" if command is None else "command",
            in_process=in_process,
        )
        self.scope = scope or scope_of(self.session)
        self.scope_note = ""
        """Why the scope is not the widest that is read."""
        self._undecided = scope is None
        self._settings = settings
        self._window = self.session.begin("segment")
        self.begin_s = self._window.begin_s

    def now_s(self) -> float:
        """Now, on the clock of the readings."""
        return self.session.clock.now_s()

    def reads(self) -> bool:
        """Whether somebody reads the energy that counts, directly or as parts of a node."""
        read = {channel.domain.scope.value for channel in self.session.channels}
        return bool(read) if self.scope == Scope.NODE.value else self.scope in read

    def energy_j(self, begin_s: float | None = None, end_s: float | None = None) -> float | None:
        """Joules between two moments, the beginning and now unless given."""
        return self.joules(begin_s, end_s).energy_j

    def joules(self, begin_s: float | None = None, end_s: float | None = None) -> Joules:
        """As `energy_j`, with uncertainty and provenance."""
        begin_s = self.begin_s if begin_s is None else begin_s
        end_s = self.now_s() if end_s is None else end_s
        return scoped(self.session.between(begin_s, end_s), self.scope, self._settings)

    def stop(self) -> float:
        """The segment is over, its energy taken; what follows is not in it. The moment."""
        if self._window.end_s is None:
            self._window.end()
            self._decide_scope()
        assert self._window.end_s is not None
        return self._window.end_s

    def _decide_scope(self) -> None:
        """Leave GPUs out that stood idle: the energy of a training is that of what it used."""
        if not self._undecided or self.scope != Scope.GPU.value or not self._gpus_idle():
            return
        other = scope_of(self.session, gpus=False)
        if other is not None and other != self.scope:
            self.scope = other
            self.scope_note = (
                f"the GPU was idle during the first training: the energy of the {other} counts; "
                "scope (or --scope) chooses another"
            )

    def _gpus_idle(self) -> bool:
        """Whether every GPU that is read says how busy it is, and none ever was."""
        domains = [channel.domain for channel in self.session.channels]
        gpus = {d.name.partition("/")[0] for d in domains if d.scope is Scope.GPU}
        peaks: dict[str, float] = {}
        for feed in self.session.feeds:
            if any(signal.name.startswith("gpu:") for signal in feed.signals):
                feed.read_signals()  # the last reading may be older than a short training
                peaks |= feed.signal_peaks
        shares = [peaks.get(f"{gpu}/utilisation") for gpu in gpus]
        return all(share is not None and share <= IDLE_SHARE for share in shares)

    def end(self, *, failed: bool = False, killed: bool = False, **facts: Any) -> None:
        """Take the last readings and keep the run; energies can be asked for all the same."""
        self.stop()
        status = RunStatus.KILLED if killed else RunStatus.FAILED if failed else RunStatus.FINISHED
        self.session.close(status, **facts)


def scope_of(session: "Session", *, gpus: bool = True) -> str | None:
    """The widest scope that is read: a meter of the node, else GPUs, else CPUs, else memory.

    Without `gpus` for a training that is known not to use them.
    """
    read = {channel.domain.scope for channel in session.channels}
    return _widest(read if gpus else read - {Scope.GPU}) or _widest(read)


def widest(result: WindowResult) -> str | None:
    """The same of a run that has ended."""
    return _widest({domain.scope for domain in result.domains})


def _widest(read: Set[Scope]) -> str | None:
    for scope in (Scope.NODE, Scope.GPU, Scope.CPU, Scope.DRAM):
        if scope in read:
            return scope.value
    return None


def scoped(result: WindowResult, scope: str | None, settings: Settings) -> Joules:
    """The energy of a measured window in one scope."""
    if scope is None:
        return Joules()
    if scope in SCOPES:
        parts = result.scope_domains(Scope(scope))
        known = [d.energy_j for d in parts if d.energy_j is not None]
        if not parts or len(known) < len(parts):
            return Joules()
        return Joules(
            sum(known),
            sum(d.uncertainty_j**2 for d in parts) ** 0.5,
            Provenance.weakest(d.provenance for d in parts).value,
            energy_error(parts, result.duration_s),
        )
    from wattloop.accounting.node import node_energy

    node = node_energy(result, settings)
    if node.energy_j is None or node.provenance is None:
        return Joules()
    return Joules(node.energy_j, node.uncertainty_j, node.provenance.value, node.error)
