"""Leases of devices: the client of each device, the values it set, and their restoration."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattloop.control.daemon.audit_log import AuditLog
from wattloop.control.daemon.client import Change
from wattloop.control.daemon.protocol import Peer
from wattloop.control.daemon.rules import Rules
from wattloop.control.lever import Lever, Setting, WriteOrderError
from wattloop.control.session import LeverSession, lever_session, snapshot_levers
from wattloop.core.errors import ConfigError, DeviceBusy, LeverError, WattloopError


class ClientLease:
    """The lease of one connection; compared by identity."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.jobs: dict[str, str] = {}
        """Lever -> job in whose name it is set."""

    def __str__(self) -> str:
        jobs = ", ".join(sorted(set(filter(None, self.jobs.values()))))
        return f"{self.peer}" + (f" for job {jobs}" if jobs else "")


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """Result of restoring a lever at the end of its lease."""

    lever: str
    before: Setting
    after: Setting
    fault: str = ""


# State of one device: its lease, the values set, and the value to restore.
#
# Below a lease lies the operator's default cap, and below that the value before the daemon. All of
# it is one `LeverSession`: locked, journaled before it is set, read back.

# A session restores leftovers in the environment of their owner: one at a time.
_entering = threading.Lock()


class DeviceLease:
    """A device and its levers. Thread-safe: one request at a time."""

    def __init__(
        self, device: str, levers: Mapping[str, Lever], say: Callable[[str], None], place: Path
    ) -> None:
        self.device = device
        self.levers = dict(levers)
        self.lease: ClientLease | None = None
        self.defaults: dict[str, Setting] = {}
        """Lever -> the operator's default cap."""
        self.stuck: dict[str, Setting] = {}
        """Levers that are not restored yet -> the value that the daemon had set."""
        self._leased: dict[str, Setting] = {}
        self._session: LeverSession | None = None
        self._say = say
        self._place = place
        self._busy = threading.RLock()

    @property
    def managed(self) -> bool:
        return self._session is not None

    def leased(self) -> dict[str, Setting]:
        with self._busy:
            return dict(self._leased)

    def set(self, lease: ClientLease, name: str, value: Setting, job: str = "") -> Change:
        """Set a lever for a lease.

        Raises:
            DeviceBusy: another client or another process has the device.
            LeverError: the value was not accepted; the lever is restored.
        """
        with self._busy:
            if self.lease not in (None, lease):
                raise DeviceBusy(f"{name.partition('/')[0]} is held by {self.lease}")
            held = self._session_for(name)
            before = self._leased.get(name, self._base_value(name))
            try:
                self._write(held, name, value)
            except WattloopError:
                if name not in self._leased:
                    self._restore(name, value)
                self._release_if_unused()
                raise
            self.lease = lease
            self._leased[name] = value
            lease.jobs[name] = job
            return Change(before, self._shows(name, value))

    def release(self, lease: ClientLease, name: str | None = None) -> list[ReleaseResult]:
        """Restore a lever (unless named, all of the lease) to the default cap or previous value."""
        with self._busy:
            if self.lease is not lease:
                return []
            names = [own for own in self._leased if name in (None, own)]
            done = []
            for own in names:
                before = self._leased.pop(own)
                lease.jobs.pop(own, None)
                done.append(self._restore(own, before))
            if not self._leased:
                self.lease = None
            self._release_if_unused()
            return done

    def cap(self, name: str, value: Setting) -> Change | None:
        """Make `value` the default cap of a lever, now or when its lease ends; None removes it.

        A cap never raises a value that is already lower.

        Raises:
            LeverError: the device did not accept it.
        """
        with self._busy:
            held = self._session_for(name)
            before = held.previous[name]
            if isinstance(before, float | int) and isinstance(value, float | int):
                value = min(before, value)
            if self.defaults.get(name, before) == value:
                self._release_if_unused()
                return None
            if name not in self._leased:
                try:
                    self._write(held, name, value)
                except WattloopError:
                    self._restore(name, value)
                    self._release_if_unused()
                    raise
            was = self.defaults.get(name, before)
            self.defaults[name] = value
            return Change(was, value)

    def uncap(self, name: str) -> ReleaseResult | None:
        with self._busy:
            before = self.defaults.pop(name, None)
            done = (
                self._restore(name, before)
                if before is not None and name not in self._leased
                else None
            )
            self._release_if_unused()
            return done

    def retry_restores(self) -> list[ReleaseResult]:
        """Try again to restore levers that could not be restored."""
        with self._busy:
            waiting = [pair for pair in self.stuck.items() if pair[0] not in self._leased]
            done = [self._restore(name, before) for name, before in waiting]
            self._release_if_unused()
            return [one for one in done if one.lever not in self.stuck]

    def renew(self, levers: Mapping[str, Lever]) -> None:
        """Replace the levers after a new search; a device in use keeps its levers."""
        with self._busy:
            if self._session is None:
                self.levers = dict(levers)

    def _session_for(self, name: str) -> LeverSession:
        if self._session is None:
            usable = {own: lever for own, lever in self.levers.items() if _restorable(lever, name)}
            fresh = lever_session(
                list(usable.values()), guardian=False, report=self._say, directory=self._place
            )
            with _entering:
                fresh.__enter__()
            self._session = fresh
        if name not in self._session.levers:
            reason = self.levers[name].state().reason
            reason = reason or "it cannot be put back to its present value"
            raise LeverError(f"{name} cannot be set: {reason}")
        return self._session

    def _write(self, held: LeverSession, name: str, value: Setting) -> None:
        lever = held.levers[name]
        conflict = lever.conflict({name: lever.accepted(value)})
        if conflict:  # one of two bounds is set before the other
            raise WriteOrderError(conflict)
        held.set({name: value})
        self.stuck.pop(name, None)

    def _base_value(self, name: str) -> Setting:
        assert self._session is not None
        return self.defaults.get(name, self._session.previous[name])

    def _restore(self, name: str, ours: Setting) -> ReleaseResult:
        """Restore to the default cap or the previous value; a failure is tried again later."""
        assert self._session is not None
        found = self._foreign(name, ours)
        if found is not None:
            self.stuck.pop(name, None)
            fault = f"{name} is at {found}, which another process has set since; left alone"
            return ReleaseResult(name, ours, found, fault)
        try:
            if name in self.defaults:
                self._write(self._session, name, self.defaults[name])
            else:
                self._session.restore(name)
        except Exception as error:  # noqa: BLE001 - one lever must not stop the others
            self.stuck[name] = ours
            return ReleaseResult(name, ours, None, str(error) or type(error).__name__)
        self.stuck.pop(name, None)
        return ReleaseResult(name, ours, self._base_value(name))

    def _foreign(self, name: str, ours: Setting) -> Setting:
        """Return the value that another process has set the lever to; None otherwise."""
        lever = self.levers[name]
        if not lever.reads_back:
            return None
        try:
            found = lever.read()
        except LeverError:
            return None
        known = (ours, self._base_value(name))
        return None if any(lever.took(value, found) for value in known) else found

    def _release_if_unused(self) -> None:
        if self._session is None or self._leased or self.defaults or self.stuck:
            return
        held, self._session = self._session, None
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


def _restorable(lever: Lever, wanted: str) -> bool:
    """Return True if the lever can be set and restored; the requested one reports its own error."""
    if lever.name == wanted:
        return True
    try:
        snapshot_levers({lever.name: lever})
    except LeverError:
        return False
    return lever.state().available


class LeaseTable:
    """Leases by device. The main thread adds and removes them; connections use them."""

    def __init__(self, levers: Iterable[Lever], log: AuditLog, place: Path) -> None:
        self.devices: dict[str, DeviceLease] = {}
        self._by_lever: dict[str, DeviceLease] = {}
        self._log = log
        self._place = place
        self._complained: dict[str, str] = {}
        self.found(levers)

    def found(self, levers: Iterable[Lever]) -> None:
        """Update the levers of the machine; devices in use keep theirs."""
        by_device: dict[str, dict[str, Lever]] = {}
        for lever in levers:
            by_device.setdefault(lever.device, {})[lever.name] = lever
        devices = {d: s for d, s in self.devices.items() if s.managed or s.lease is not None}
        for device, own in by_device.items():
            known = self.devices.get(device)
            if known is None:
                devices[device] = DeviceLease(device, own, self._noted, self._place)
            else:
                known.renew(own)
                devices[device] = known
        self.devices = devices
        self._by_lever = {
            name: device for device in self.devices.values() for name in device.levers
        }

    def levers(self) -> Iterator[tuple[Lever, DeviceLease]]:
        for name, device in self._by_lever.items():
            yield device.levers[name], device

    def of(self, name: str) -> tuple[Lever, DeviceLease]:
        """Return one lever. Raises ConfigError: no lever has that name."""
        device = self._by_lever.get(name)
        if device is None:
            known = ", ".join(self._by_lever) or "no levers at all"
            raise ConfigError(f"{name[:60]!r}: no such lever here; there are {known[:400]}")
        return device.levers[name], device

    def end(self, lease: ClientLease, why: str, name: str | None = None) -> list[ReleaseResult]:
        """Restore the values of a lease (one lever if named); every change is logged."""
        done: list[ReleaseResult] = []
        for device in list(self.devices.values()):
            jobs = dict(lease.jobs)
            for one in device.release(lease, name):
                self._logged("released", one, why, lease, jobs.get(one.lever, ""))
                done.append(one)
        return done

    def take_over(self, device: DeviceLease, lease: ClientLease, rules: Rules) -> None:
        """End a lease on a device that a trusted client needs, unless it is trusted itself."""
        other = device.lease
        if other is None or other is lease or rules.trusts(other.peer):
            return
        for one in device.release(other):
            self._logged("released", one, f"taken over by {lease}", other)

    def apply_defaults(self, rules: Rules, *, again: bool = False) -> None:
        """Apply the operator's caps, under a lease when it ends; `again`: where it failed."""
        for lever, device in list(self.levers()):
            if again and lever.name not in self._complained:
                continue
            cap = rules.default_cap_for(lever.name)
            try:
                if cap is None:
                    done = device.uncap(lever.name)
                    if done is not None:
                        self._logged("default_ended", done, "the rules have none any more")
                    continue
                change = device.cap(lever.name, lever.accepted(cap.on(lever.state())))
            except (WattloopError, ValueError) as error:
                self._complain(lever.name, str(error))
                continue
            self._complained.pop(lever.name, None)
            if change is not None:
                fields: dict[str, Any] = {
                    "before": change.before,
                    "after": change.after,
                    "why": f"cap of {cap}",
                }
                self._log.write("default", lever=lever.name, **fields)

    def revoke(self, rules: Rules) -> None:
        for lever, device in list(self.levers()):
            lease = device.lease
            if lease is None or lever.name not in device.leased():
                continue
            refusal = _refusal(rules, lease, lever, device.leased()[lever.name])
            if refusal:
                self.end(lease, f"revoked: {refusal}", lever.name)

    def retry_restores(self) -> None:
        for device in list(self.devices.values()):
            for one in device.retry_restores():
                self._logged("mended", one, "it did not go back before")

    def close(self) -> None:
        """Restore everything to the values before the daemon."""
        for device in list(self.devices.values()):
            if device.lease is not None:
                self.end(device.lease, "the daemon ends")
            for name in list(device.defaults):
                done = device.uncap(name)
                if done is not None:
                    self._logged("default_ended", done, "the daemon ends")

    def _logged(
        self,
        event: str,
        one: ReleaseResult,
        why: str,
        lease: ClientLease | None = None,
        job: str = "",
    ) -> None:
        fields: dict[str, Any] = {"lever": one.lever, "before": one.before, "after": one.after}
        if job:
            fields["job"] = job
        if one.fault:
            event, fields["fault"] = "not_restored", one.fault
        self._log.write(event, lease.peer if lease else None, **fields, why=why)

    def _complain(self, lever: str, why: str) -> None:
        """Log each reason once: the attempt is repeated every few seconds."""
        if self._complained.get(lever) != why:
            self._complained[lever] = why
            self._log.write("default_failed", lever=lever, why=why)

    def _noted(self, message: str) -> None:
        self._log.write("note", why=message.removeprefix("wattloop: "))


def _refusal(rules: Rules, lease: ClientLease, lever: Lever, value: Setting) -> str:
    """Return why a value is not allowed; empty within the ranges or the low-power mode."""
    try:
        rules.check(lease.peer, lever.state(), value)
    except WattloopError as error:
        try:
            low_power = rules.low_power_for(lease.peer, lever.state())
            return "" if lever.accepted(low_power) == value else str(error)
        except (WattloopError, ValueError):
            return str(error)
    return ""
