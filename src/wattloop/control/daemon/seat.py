"""One device: who has it, what they set, and what it goes back to.

Below a lease lies the operator's default cap, and below that what the device had before the daemon
touched it. All of it is one `Hold`: locked, journaled before it is set, read back.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from wattloop.control.daemon.client import Change
from wattloop.control.daemon.lease import Lease, PutBack
from wattloop.control.hold import Hold, hold
from wattloop.control.lever import Lever, Setting, WaitsForAnother
from wattloop.control.looking import looked_at
from wattloop.core.errors import DeviceBusy, LeverError, WattloopError

__all__ = ["Seat"]

# A hold looks at leftovers with the environment of whoever left them: one at a time.
_entering = threading.Lock()


class Seat:
    """A device and its levers. Thread-safe: one request at a time."""

    def __init__(
        self, device: str, levers: Mapping[str, Lever], say: Callable[[str], None], place: Path
    ) -> None:
        self.device = device
        self.levers = dict(levers)
        self.lease: Lease | None = None
        self.defaults: dict[str, Setting] = {}
        """Lever -> the operator's default cap."""
        self.stuck: dict[str, Setting] = {}
        """Levers that did not go back yet -> what we had set them to."""
        self._leased: dict[str, Setting] = {}
        self._hold: Hold | None = None
        self._say = say
        self._place = place
        self._busy = threading.RLock()

    @property
    def managed(self) -> bool:
        """Whether the daemon has the device in its hands."""
        return self._hold is not None

    def leased(self) -> dict[str, Setting]:
        """Lever -> value, of the present lease."""
        with self._busy:
            return dict(self._leased)

    def set(self, lease: Lease, name: str, value: Setting, job: str = "") -> Change:
        """Set a lever for a lease.

        Raises:
            DeviceBusy: another client has the device, or a process beside the daemon.
            LeverError: it did not take; it is back at what it was.
        """
        with self._busy:
            if self.lease not in (None, lease):
                raise DeviceBusy(f"{name.partition('/')[0]} is held by {self.lease}")
            held = self._held(name)
            before = self._leased.get(name, self._below(name))
            try:
                self._write(held, name, value)
            except WattloopError:
                if name not in self._leased:
                    self._back(name, value)
                self._tidy()
                raise
            self.lease = lease
            self._leased[name] = value
            lease.jobs[name] = job
            return Change(before, self._shows(name, value))

    def release(self, lease: Lease, name: str | None = None) -> list[PutBack]:
        """Put a lever (all of the lease unless named) back to the default cap or what it was."""
        with self._busy:
            if self.lease is not lease:
                return []
            names = [own for own in self._leased if name in (None, own)]
            done = []
            for own in names:
                before = self._leased.pop(own)
                lease.jobs.pop(own, None)
                done.append(self._back(own, before))
            if not self._leased:
                self.lease = None
            self._tidy()
            return done

    def cap(self, name: str, value: Setting) -> Change | None:
        """Make `value` the default of a lever, now or when its lease ends; None for no change.

        A cap never raises: what stands lower already is left.

        Raises:
            LeverError: it did not take.
        """
        with self._busy:
            held = self._held(name)
            before = held.previous[name]
            if isinstance(before, float | int) and isinstance(value, float | int):
                value = min(before, value)
            if self.defaults.get(name, before) == value:
                self._tidy()
                return None
            if name not in self._leased:
                try:
                    self._write(held, name, value)
                except WattloopError:
                    self._back(name, value)
                    self._tidy()
                    raise
            was = self.defaults.get(name, before)
            self.defaults[name] = value
            return Change(was, value)

    def uncap(self, name: str) -> PutBack | None:
        """No default any more."""
        with self._busy:
            before = self.defaults.pop(name, None)
            done = (
                self._back(name, before)
                if before is not None and name not in self._leased
                else None
            )
            self._tidy()
            return done

    def mend(self) -> list[PutBack]:
        """Try again what did not go back."""
        with self._busy:
            waiting = [pair for pair in self.stuck.items() if pair[0] not in self._leased]
            done = [self._back(name, before) for name, before in waiting]
            self._tidy()
            return [one for one in done if one.lever not in self.stuck]

    def renew(self, levers: Mapping[str, Lever]) -> None:
        """Levers as they were found again; while the device is in use it keeps those it has."""
        with self._busy:
            if self._hold is None:
                self.levers = dict(levers)

    def _held(self, name: str) -> Hold:
        if self._hold is None:
            usable = {own: lever for own, lever in self.levers.items() if _can_go_back(lever, name)}
            fresh = hold(
                list(usable.values()), guardian=False, report=self._say, directory=self._place
            )
            with _entering:
                fresh.__enter__()
            self._hold = fresh
        if name not in self._hold.levers:
            raise LeverError(f"{name} cannot be set: {_why_not(self.levers[name])}")
        return self._hold

    def _write(self, held: Hold, name: str, value: Setting) -> None:
        lever = held.levers[name]
        conflict = lever.conflict({name: lever.accepted(value)})
        if conflict:  # of two bounds one is set before the other
            raise WaitsForAnother(conflict)
        held.set({name: value})
        self.stuck.pop(name, None)

    def _below(self, name: str) -> Setting:
        assert self._hold is not None
        return self.defaults.get(name, self._hold.previous[name])

    def _back(self, name: str, ours: Setting) -> PutBack:
        """To the default cap, or to what it was; what does not go back is tried again."""
        assert self._hold is not None
        found = self._foreign(name, ours)
        if found is not None:
            self.stuck.pop(name, None)
            fault = f"{name} stands at {found}, which somebody else has set since; left alone"
            return PutBack(name, ours, found, fault)
        try:
            if name in self.defaults:
                self._write(self._hold, name, self.defaults[name])
            else:
                self._hold.put_back(name)
        except Exception as error:  # noqa: BLE001 - one lever must not stop the others
            self.stuck[name] = ours
            return PutBack(name, ours, None, str(error) or type(error).__name__)
        self.stuck.pop(name, None)
        return PutBack(name, ours, self._below(name))

    def _foreign(self, name: str, ours: Setting) -> Setting:
        """What somebody beside the daemon has set a lever to; None when nobody has."""
        lever = self.levers[name]
        if not lever.reads_back:
            return None
        try:
            found = lever.read()
        except LeverError:
            return None
        known = (ours, self._below(name))
        return None if any(lever.took(value, found) for value in known) else found

    def _tidy(self) -> None:
        """Let the device go when nothing is set on it."""
        if self._hold is None or self._leased or self.defaults or self.stuck:
            return
        held, self._hold = self._hold, None
        for failed in held.release():
            self._say(f"wattloop: {failed.message}")

    def _shows(self, name: str, value: Setting) -> Setting:
        lever = self.levers[name]
        if not lever.reads_back:
            return value
        try:
            return lever.read()
        except LeverError:
            return value


def _can_go_back(lever: Lever, wanted: str) -> bool:
    """Whether it may be set and put back; the one that is asked for says so itself."""
    if lever.name == wanted:
        return True
    try:
        looked_at({lever.name: lever})
    except LeverError:
        return False
    return lever.state().available


def _why_not(lever: Lever) -> str:
    state = lever.state()
    return state.reason or "it cannot be put back to its present value"
