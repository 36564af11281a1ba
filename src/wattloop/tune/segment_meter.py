"""Meter of a segment: one measured run, in the scope of the search."""

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

from wattloop.core.records import Provenance, Scope
from wattloop.core.results import EnergyError, RunStatus, WindowResult, energy_error
from wattloop.core.settings import Settings

if TYPE_CHECKING:
    from wattloop.measure.session import Session


SCOPES = ("gpu", "cpu", "dram")
IDLE_SHARE = 0.02
"""A GPU whose utilisation never exceeds this was not used by a training; a display may cause as
much.
"""


class Joules(NamedTuple):
    """Energy in one scope; None when nothing could be read there.

    `error` holds the components of its uncertainty, for a comparison with other energies.
    """

    energy_j: float | None = None
    uncertainty_j: float = 0.0
    provenance: str = ""
    error: EnergyError | None = None


class SegmentMeter:
    """Measurement of one segment as a run of the store.

    Args:
        scope: whose energy counts; unless given the widest that a meter reads (`scope_of`).
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
        from wattloop.measure.session import Session  # not for a process that only reads its output

        self.session = Session.open(
            settings,
            name=name,
            tags=tags,
            command=command,
            kind="python" if command is None else "command",
            in_process=in_process,
        )
        self.scope = scope or widest_scope(self.session)
        self.scope_note = ""
        """Reason why the scope is not the widest that is read."""
        self._undecided = scope is None
        self._settings = settings
        self._window = self.session.begin("segment")
        self.begin_s = self._window.begin_s

    def now_s(self) -> float:
        return self.session.clock.now_s()

    def reads(self) -> bool:
        read = {channel.domain.scope.value for channel in self.session.channels}
        return bool(read) if self.scope == Scope.NODE.value else self.scope in read

    def energy_j(self, begin_s: float | None = None, end_s: float | None = None) -> float | None:
        """Return the joules between two times, by default from the beginning to now."""
        return self.joules(begin_s, end_s).energy_j

    def joules(self, begin_s: float | None = None, end_s: float | None = None) -> Joules:
        begin_s = self.begin_s if begin_s is None else begin_s
        end_s = self.now_s() if end_s is None else end_s
        return scope_energy(self.session.between(begin_s, end_s), self.scope, self._settings)

    def stop(self) -> float:
        """End the segment and return the time; later energy is not part of it."""
        if self._window.end_s is None:
            self._window.end()
            self._decide_scope()
        assert self._window.end_s is not None
        return self._window.end_s

    def _decide_scope(self) -> None:
        """Leave out idle GPUs: the energy of a training is that of the devices it used."""
        if not self._undecided or self.scope != Scope.GPU.value or not self._gpus_idle():
            return
        other = widest_scope(self.session, gpus=False)
        if other is not None and other != self.scope:
            self.scope = other
            self.scope_note = (
                f"the GPU was idle during the first training: the energy of the {other} counts; "
                "scope (or --scope) chooses another"
            )

    def _gpus_idle(self) -> bool:
        """Return whether every GPU reports its utilisation, and none was ever busy."""
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
        """Take the last readings and store the run; energies can still be asked for."""
        self.stop()
        status = RunStatus.KILLED if killed else RunStatus.FAILED if failed else RunStatus.FINISHED
        self.session.close(status, **facts)


def widest_scope(session: "Session", *, gpus: bool = True) -> str | None:
    """Return the widest scope that is read: the node's meter, else GPUs, else CPUs, else memory.

    Without `gpus` for a training that is known not to use them.
    """
    read = {channel.domain.scope for channel in session.channels}
    return _widest(read if gpus else read - {Scope.GPU}) or _widest(read)


def widest_result_scope(result: WindowResult) -> str | None:
    return _widest({domain.scope for domain in result.domains})


def _widest(read: Set[Scope]) -> str | None:
    for scope in (Scope.NODE, Scope.GPU, Scope.CPU, Scope.DRAM):
        if scope in read:
            return scope.value
    return None


def scope_energy(result: WindowResult, scope: str | None, settings: Settings) -> Joules:
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
