"""Who may set which lever within which range: the operator's rules, and how they are judged.

Everything is forbidden that no rule allows. A user may do what any of the rules that name them
allows.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from wattloop.control.daemon.job_gpus import gpus_of, read_job_gpus
from wattloop.control.daemon.peer import Peer
from wattloop.control.daemon.protocol import DEFAULT_SOCKET, NotAllowed
from wattloop.control.daemon.ranges import Amount, Range
from wattloop.control.lever import LeverState, Setting
from wattloop.core.errors import ConfigError

__all__ = ["Limits", "Rule", "Rules", "matches"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client, one user and all together may take of the daemon."""

    connections: int = 128
    connections_per_user: int = 16
    requests_per_s: float = 50.0
    burst: float = 400.0
    line_s: float = 5.0
    """A line that was begun is ended, and a reply read, in this time."""
    idle_s: float = 60.0
    """A client that holds nothing and says nothing is let go."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What some users may do.

    Attributes:
        line: in the rules, for people.
        everyone: whoever may open the socket.
        uids, gids: whom it is for.
        levers: pattern -> range.
        low_power: may ask for the operator's low-power mode, for its levers within their ranges;
            without levers for all that have one.
        trusted: may set levers in the name of jobs (a node agent).
        only_own_gpus: of the GPUs, only those of the user's own jobs.
    """

    line: int
    levers: Mapping[str, Range]
    everyone: bool = False
    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()
    low_power: bool = False
    trusted: bool = False
    only_own_gpus: bool = False

    def names(self, peer: Peer) -> bool:
        """Whether it is for this user."""
        return self.everyone or peer.uid in self.uids or not self.gids.isdisjoint(peer.gids)

    def range_for(self, lever: str) -> Range | None:
        """Of the first pattern that fits; None without one."""
        return next((own for pattern, own in self.levers.items() if matches(pattern, lever)), None)


@dataclass(frozen=True, slots=True)
class Rules:
    """The whole file."""

    path: Path
    rules: tuple[Rule, ...] = ()
    socket: Path = DEFAULT_SOCKET
    socket_mode: int = 0o660
    socket_gid: int | None = None
    log: Path = Path("/var/log/wattloop/control.jsonl")
    jobs_file: Path | None = None
    default_caps: Mapping[str, Amount] = field(default_factory=dict)
    low_power: Mapping[str, Amount] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)

    def of(self, peer: Peer) -> list[Rule]:
        """Those that name this user."""
        return [rule for rule in self.rules if rule.names(peer)]

    def trusts(self, peer: Peer) -> bool:
        """Whether this user may set levers in the name of jobs."""
        return any(rule.trusted for rule in self.of(peer))

    @property
    def trusted_uids(self) -> frozenset[int]:
        """Users whom a rule trusts by name."""
        return frozenset().union(*(rule.uids for rule in self.rules if rule.trusted))

    @property
    def trusted_gids(self) -> frozenset[int]:
        """Groups that a rule trusts."""
        return frozenset().union(*(rule.gids for rule in self.rules if rule.trusted))

    def range_for(self, peer: Peer, state: LeverState) -> Range:
        """What this user may set a lever to: of several rules the one that reaches furthest.

        Raises:
            NotAllowed: nothing.
        """
        ranges = [r for rule in self._open(peer, state.name) if (r := rule.range_for(state.name))]
        if not ranges:
            raise NotAllowed(f"{state.name}: no rule of {self.path} lets {peer.user} set it")

        def reach(one: Range) -> float:
            try:
                low, high = one.limits(state)
            except ValueError:
                return -1.0
            return (high or 0.0) - (low or 0.0) + len(one.choices)

        return max(ranges, key=reach)

    def check(self, peer: Peer, state: LeverState, value: Setting) -> None:
        """Raise NotAllowed unless some rule lets this user set this value."""
        self.range_for(peer, state)
        refusals = [
            own.refusal(state, value)
            for rule in self._open(peer, state.name)
            if (own := rule.range_for(state.name))
        ]
        if all(refusals):
            raise NotAllowed(
                f"{state.name}: {refusals[0]}, which is what {self.path} lets {peer.user} set"
            )

    def low_power_for(self, peer: Peer, state: LeverState) -> float:
        """The operator's low-power value of a lever, inside a rule that gives it to this user.

        A rule with levers gives it for those, and within their ranges: a value outside of a range
        becomes its nearest bound. A rule without levers gives it for every lever that has one.

        Raises:
            NotAllowed: there is none, or it is not for this user.
            ValueError: it is not a value of this lever.
        """
        lever = state.name
        found = next((a for p, a in self.low_power.items() if matches(p, lever)), None)
        if found is None:
            raise NotAllowed(f"{lever}: {self.path} has no low_power mode for it")
        wanted = found.on(state)
        inside = []
        for rule in self._open(peer, lever):
            own = rule.range_for(lever) if rule.levers else Range()
            if rule.low_power and own is not None:
                low, high = own.limits(state)
                inside.append(max(min(wanted, wanted if high is None else high), low or 0.0))
        if not inside:
            raise NotAllowed(f"{lever}: no rule of {self.path} gives {peer.user} low_power")
        return min(inside)

    def default_cap_for(self, lever: str) -> Amount | None:
        """The operator's cap while nobody holds it."""
        return next((a for p, a in self.default_caps.items() if matches(p, lever)), None)

    def _open(self, peer: Peer, lever: str) -> list[Rule]:
        """Rules that name this user and do not fail for whose GPU it is.

        Raises:
            NotAllowed: there are some, but it is not the user's own GPU.
        """
        named = self.of(peer)
        gpu = re.match(r"gpu:(\d+)/", lever)
        if gpu is None or not any(rule.only_own_gpus for rule in named):
            return named
        own = self._own_gpus(peer)
        rules = [rule for rule in named if not rule.only_own_gpus or int(gpu.group(1)) in own]
        if named and not rules:
            theirs = ", ".join(f"gpu:{n}" for n in sorted(own)) or "none"
            raise NotAllowed(
                f"{lever}: {peer.user} may set only GPUs of their own jobs here: {theirs}"
            )
        return rules

    def _own_gpus(self, peer: Peer) -> set[int]:
        if self.jobs_file is None:
            return set()
        try:
            return gpus_of(read_job_gpus(self.jobs_file), peer.uid)
        except ConfigError as error:
            raise NotAllowed(f"whose GPU it is cannot be told: {error}") from None


def matches(pattern: str, lever: str) -> bool:
    """`gpu:*/power_limit`, `cpu/governor`, or `gpu/power_limit` for all GPUs."""
    if fnmatchcase(lever, pattern):
        return True
    family, _, leaf = pattern.partition("/")
    device, _, own = lever.partition("/")
    return ":" not in family and device.partition(":")[0] == family and own == leaf
