"""Request handler: judge a client's request by the rules, execute it, log it."""

from collections.abc import Callable
from typing import Any

from wattloop.control.daemon.audit_log import AuditLog
from wattloop.control.daemon.leases import ClientLease, DeviceLease, LeaseTable
from wattloop.control.daemon.protocol import LOW_POWER, VERSION, PermissionDenied, encode_error
from wattloop.control.daemon.rules import Rules
from wattloop.control.lever import Lever, Setting, parse_setting
from wattloop.core.errors import ConfigError, LeverError, WattloopError
from wattloop.version import __version__

Answer = dict[str, Any]


class RequestHandler:
    """Requests that clients may make. The server replaces its rules when they are read again."""

    def __init__(self, rules: Rules, leases: LeaseTable, log: AuditLog) -> None:
        self.rules = rules
        self._leases = leases
        self._log = log
        self._verbs: dict[str, Callable[[ClientLease, Answer], Answer]] = {
            "hello": self._hello,
            "levers": self._levers,
            "read": self._read,
            "check": self._check,
            "set": self._set,
            "release": self._release,
        }

    def answer(self, lease: ClientLease, message: Answer) -> Answer:
        """Return the reply to a request; refusals and failures are in it, and logged."""
        number = message.get("id")
        head: Answer = {"v": VERSION, "id": number if isinstance(number, int) else None}
        try:
            verb = self._verbs.get(str(message.get("do")))
            if verb is None:
                known = ", ".join(self._verbs)
                raise ConfigError(f"'do' is one of {known}, not {str(message.get('do'))[:40]!r}")
            return {**head, "ok": True, **verb(lease, message)}
        except WattloopError as error:
            self._refused(lease, message, error)
            return {**head, "ok": False, "error": encode_error(error)}
        except Exception as error:  # noqa: BLE001 - an internal error must not drop other clients
            self._refused(lease, message, error)
            said = LeverError(f"the control daemon failed: {type(error).__name__}: {error}")
            return {**head, "ok": False, "error": encode_error(said)}

    def _hello(self, lease: ClientLease, message: Answer) -> Answer:
        peer = lease.peer
        trusted = self.rules.trusts(peer)
        return {"user": peer.user, "uid": peer.uid, "trusted": trusted, "wattloop": __version__}

    def _levers(self, lease: ClientLease, message: Answer) -> Answer:
        return {"levers": [self._offer(lease, *pair) for pair in self._leases.levers()]}

    def _offer(self, lease: ClientLease, lever: Lever, device: DeviceLease) -> Answer:
        state = lever.state()
        offer = state.to_dict() | {
            "device": lever.device,
            "reads_back": lever.reads_back,
            "tolerance": lever.tolerance,
            "managed": device.managed,
            "held_by": "" if device.lease in (None, lease) else str(device.lease),
        }
        try:
            allowed = self.rules.range_for(lease.peer, state)
            if state.unit == "name":
                return offer | {"choices": list(allowed.choices or state.choices)}
            low, high = allowed.limits(state)
            return offer | {"low": low, "high": high}
        except (PermissionDenied, ValueError) as reason:
            return offer | {"available": False, "reason": str(reason), "remedy": ""}

    def _read(self, lease: ClientLease, message: Answer) -> Answer:
        lever, _ = self._leases.of(_text(message, "lever"))
        return {"value": lever.read()}

    def _check(self, lease: ClientLease, message: Answer) -> Answer:
        lever, _ = self._leases.of(_text(message, "lever"))
        self._job(lease, message)
        return {"value": self._allowed(lease, lever, message)}

    def _set(self, lease: ClientLease, message: Answer) -> Answer:
        lever, device = self._leases.of(_text(message, "lever"))
        job, uid = self._job(lease, message)
        value = self._allowed(lease, lever, message)
        if self.rules.trusts(lease.peer):
            # a power budget has priority over a user's request
            self._leases.take_over(device, lease, self.rules)
        change = device.set(lease, lever.name, value, job)
        fields: Answer = {"lever": lever.name, "before": change.before, "after": change.after}
        if job or uid is not None:
            fields |= {"job": job, "job_uid": uid}
        asked = message.get("value")
        why = f"asked for {asked}" if isinstance(asked, str) else ""
        self._log.write("set", lease.peer, **fields, why=why)
        return {"before": change.before, "after": change.after}

    def _release(self, lease: ClientLease, message: Answer) -> Answer:
        name = _text(message, "lever") if "lever" in message else None
        if name is not None:
            self._leases.of(name)
        done = self._leases.end(lease, "released", name)
        faults = [one.fault for one in done if one.fault]
        if faults:
            raise LeverError("; ".join(faults))
        return {"released": [one.lever for one in done]}

    def _allowed(self, lease: ClientLease, lever: Lever, message: Answer) -> Setting:
        if "value" not in message:
            raise ConfigError("'value' is missing")
        asked = message["value"]
        state = lever.state()
        if asked == LOW_POWER and state.unit != "name":
            try:
                return lever.accepted(self.rules.low_power_for(lease.peer, state))
            except ValueError as error:
                raise ConfigError(str(error)) from None
        # raises for a client that may set nothing, before any detail is revealed
        self.rules.range_for(lease.peer, state)
        if asked is None:
            value = lever.accepted(None)
        elif isinstance(asked, str | int | float):
            value = parse_setting(asked, lever)
        else:
            raise ConfigError(f"{lever.name}: 'value' is a number, a text or null")
        self.rules.check(lease.peer, state, value)
        return value

    def _job(self, lease: ClientLease, message: Answer) -> tuple[str, int | None]:
        whose = message.get("for")
        if whose is None:
            return "", None
        if not self.rules.trusts(lease.peer):
            raise PermissionDenied(f"no rule trusts {lease.peer.user} to act for jobs")
        job, uid = (whose.get("job"), whose.get("uid")) if isinstance(whose, dict) else (0, 0)
        good = isinstance(job, str) and job.isprintable() and len(job) <= 64
        if not good or not (uid is None or (isinstance(uid, int) and 0 <= uid < 2**32)):
            raise ConfigError("'for' is {job: text, uid: number}")
        return str(job), uid

    def _refused(self, lease: ClientLease, message: Answer, error: Exception) -> None:
        fields = {key: str(message.get(key))[:80] for key in ("do", "lever", "value")}
        kind = encode_error(error)["kind"] if isinstance(error, WattloopError) else "fault"
        self._log.write("refused", lease.peer, kind=kind, **fields, why=str(error))


def _text(message: Answer, field: str) -> str:
    value = message.get(field)
    if not isinstance(value, str) or not value.isprintable() or len(value) > 200:
        raise ConfigError(f"{field!r} is a name of at most 200 letters")
    return value
