"""All devices of the machine, and who holds which."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from wattloop.control.daemon.change_log import ChangeLog
from wattloop.control.daemon.lease import Lease, PutBack
from wattloop.control.daemon.rules import Rules
from wattloop.control.daemon.seat import Seat
from wattloop.control.lever import Lever, Setting
from wattloop.core.errors import ConfigError, WattloopError

__all__ = ["Leases"]


class Leases:
    """Seats by device. The main thread adds and removes them; connections use them."""

    def __init__(self, levers: Iterable[Lever], log: ChangeLog, place: Path) -> None:
        self.seats: dict[str, Seat] = {}
        self._by_lever: dict[str, Seat] = {}
        self._log = log
        self._place = place
        self._complained: dict[str, str] = {}
        self.found(levers)

    def found(self, levers: Iterable[Lever]) -> None:
        """Levers of the machine; devices in use keep the ones they have."""
        by_device: dict[str, dict[str, Lever]] = {}
        for lever in levers:
            by_device.setdefault(lever.device, {})[lever.name] = lever
        seats = {d: s for d, s in self.seats.items() if s.managed or s.lease is not None}
        for device, own in by_device.items():
            known = self.seats.get(device)
            if known is None:
                seats[device] = Seat(device, own, self._noted, self._place)
            else:
                known.renew(own)
                seats[device] = known
        self.seats = seats
        self._by_lever = {name: seat for seat in self.seats.values() for name in seat.levers}

    def levers(self) -> Iterator[tuple[Lever, Seat]]:
        """Every lever with its device."""
        for name, seat in self._by_lever.items():
            yield seat.levers[name], seat

    def of(self, name: str) -> tuple[Lever, Seat]:
        """One lever.

        Raises:
            ConfigError: there is none of that name.
        """
        seat = self._by_lever.get(name)
        if seat is None:
            known = ", ".join(self._by_lever) or "no levers at all"
            raise ConfigError(f"{name[:60]!r}: no such lever here; there are {known[:400]}")
        return seat.levers[name], seat

    def end(self, lease: Lease, why: str, name: str | None = None) -> list[PutBack]:
        """Put back what a lease has set (one lever if named); every line is logged."""
        done: list[PutBack] = []
        for seat in list(self.seats.values()):
            jobs = dict(lease.jobs)
            for one in seat.release(lease, name):
                self._logged("released", one, why, lease, jobs.get(one.lever, ""))
                done.append(one)
        return done

    def take_over(self, seat: Seat, lease: Lease, rules: Rules) -> None:
        """End a user's lease on a device that a trusted client wants; not another trusted one's."""
        other = seat.lease
        if other is None or other is lease or rules.trusts(other.peer):
            return
        for one in seat.release(other):
            self._logged("released", one, f"taken over by {lease}", other)

    def apply_defaults(self, rules: Rules, *, again: bool = False) -> None:
        """The operator's caps on all devices; one that is leased gets its cap when the lease ends.

        Args:
            rules: with the caps.
            again: only where it failed before.
        """
        for lever, seat in list(self.levers()):
            if again and lever.name not in self._complained:
                continue
            cap = rules.default_cap_for(lever.name)
            try:
                if cap is None:
                    done = seat.uncap(lever.name)
                    if done is not None:
                        self._logged("default_ended", done, "the rules have none any more")
                    continue
                change = seat.cap(lever.name, lever.accepted(cap.on(lever.state())))
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
        """Put back what new rules do not allow any more."""
        for lever, seat in list(self.levers()):
            lease = seat.lease
            if lease is None or lever.name not in seat.leased():
                continue
            refusal = _refusal(rules, lease, lever, seat.leased()[lever.name])
            if refusal:
                self.end(lease, f"revoked: {refusal}", lever.name)

    def mend(self) -> None:
        """Try again what did not go back."""
        for seat in list(self.seats.values()):
            for one in seat.mend():
                self._logged("mended", one, "it did not go back before")

    def close(self) -> None:
        """Everything back to what it was before the daemon."""
        for seat in list(self.seats.values()):
            if seat.lease is not None:
                self.end(seat.lease, "the daemon ends")
            for name in list(seat.defaults):
                done = seat.uncap(name)
                if done is not None:
                    self._logged("default_ended", done, "the daemon ends")

    def _logged(
        self, event: str, one: PutBack, why: str, lease: Lease | None = None, job: str = ""
    ) -> None:
        fields: dict[str, Any] = {"lever": one.lever, "before": one.before, "after": one.after}
        if job:
            fields["job"] = job
        if one.fault:
            event, fields["fault"] = "not_restored", one.fault
        self._log.write(event, lease.peer if lease else None, **fields, why=why)

    def _complain(self, lever: str, why: str) -> None:
        """Once per reason: it is tried again every few seconds."""
        if self._complained.get(lever) != why:
            self._complained[lever] = why
            self._log.write("default_failed", lever=lever, why=why)

    def _noted(self, message: str) -> None:
        self._log.write("note", why=message.removeprefix("wattloop: "))


def _refusal(rules: Rules, lease: Lease, lever: Lever, value: Setting) -> str:
    """Why a value may not stay; empty when it may: within the ranges, or as the low-power mode."""
    try:
        rules.check(lease.peer, lever.state(), value)
    except WattloopError as error:
        try:
            low_power = rules.low_power_for(lease.peer, lever.state())
            return "" if lever.accepted(low_power) == value else str(error)
        except (WattloopError, ValueError):
            return str(error)
    return ""
