"""The joules of every run on the node, kept so that they add up to the node's at any moment.

A domain that falls silent waits: when it speaks again, what it counted meanwhile goes to those
who were there. What comes after a job's run is closed, or too late to know who was there, is
nobody's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wattloop.fleet.agent.shares import NOBODY, Layout, Part, Stretch, split

__all__ = ["Account", "Ledger"]

REMEMBER_S = 900.0
"""How long it is known who was there, for domains that fell silent."""
Take = Callable[[str, float], float]
Readable = Callable[[str, float], bool]


@dataclass(slots=True)
class Account:
    """Joules of one run by domain, since it began; and what each rule alone would give it."""

    energy_j: dict[str, float] = field(default_factory=dict)
    by_cpus_j: dict[str, float] = field(default_factory=dict)
    by_time_j: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, part: Part) -> None:
        """One more part of a domain."""
        self.energy_j[name] = self.energy_j.get(name, 0.0) + part.energy_j
        self.by_cpus_j[name] = self.by_cpus_j.get(name, 0.0) + part.by_cpus_j
        self.by_time_j[name] = self.by_time_j.get(name, 0.0) + part.by_time_j

    def doubt_j(self, name: str) -> float:
        """How far the share may be off because of the rule by which it was split."""
        own_j = self.energy_j.get(name, 0.0)
        rules_j = (self.by_cpus_j.get(name, 0.0), self.by_time_j.get(name, 0.0))
        return max(abs(own_j - rule_j) for rule_j in rules_j)

    def to_state(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {n: [j, self.by_cpus_j[n], self.by_time_j[n]] for n, j in self.energy_j.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Account:
        """Inverse of `to_state`."""
        account = cls()
        for name, values in state.items():
            account.add(name, Part(*(float(v) for v in values)))
        return account


class Ledger:
    """Accounts of all runs, `NOBODY` among them.

    Args:
        layout: the node's domains.
        known_s: from when on each domain's energy is known.
    """

    def __init__(self, layout: Layout, known_s: Mapping[str, float]) -> None:
        self.layout = layout
        self.accounts: dict[str, Account] = {NOBODY: Account()}
        self.done_s: dict[str, float] = dict(known_s)
        """Up to when each domain is shared out."""
        self._stretches: deque[Stretch] = deque()

    def open(self, run: str, account: Account | None = None) -> Account:
        """Begin an account, or take up one that was kept."""
        self.accounts[run] = Account() if account is None else account
        return self.accounts[run]

    def close(self, run: str) -> Account:
        """End an account."""
        return self.accounts.pop(run)

    def renew_nobody(self) -> Account:
        """The account of nobody so far; a new one begins."""
        old = self.accounts[NOBODY]
        self.accounts[NOBODY] = Account()
        return old

    def extend(self, stretches: Iterable[Stretch]) -> None:
        """Who was there, up to now."""
        self._stretches.extend(stretches)

    def settle(self, take: Take, readable: Readable, idle_w: Mapping[str, float]) -> None:
        """Share out whatever is known by now.

        Args:
            take: joules of a domain from where it was shared out up to an instant.
            readable: whether a domain is known up to an instant.
            idle_w: power of shared domains with nothing to do.
        """
        silent: set[str] = set()
        for stretch in self._stretches:
            energy_j: dict[str, float] = {}
            for name, done_s in self.done_s.items():
                if done_s >= stretch.end_s or name in silent:
                    continue
                if not readable(name, stretch.end_s):
                    silent.add(name)
                    continue
                if done_s < stretch.begin_s:
                    self._to_nobody(name, take(name, stretch.begin_s))
                energy_j[name] = take(name, stretch.end_s)
                self.done_s[name] = stretch.end_s
            if energy_j:
                self._book(split(self.layout, stretch, energy_j, idle_w))
        self._forget()

    def settled(self, run_domains: Iterable[str], until_s: float) -> bool:
        """Whether all these domains are shared out up to an instant."""
        return all(self.done_s.get(name, until_s) >= until_s for name in run_domains)

    def _book(self, parts: Mapping[str, Mapping[str, Part]]) -> None:
        for run, own in parts.items():
            account = self.accounts.get(run) or self.accounts[NOBODY]
            for name, part in own.items():
                account.add(name, part)

    def _to_nobody(self, name: str, joules: float) -> None:
        self.accounts[NOBODY].add(name, Part(joules, joules, joules))

    def _forget(self) -> None:
        """Drop what every domain is through with, and what is too long ago."""
        behind_s = min(self.done_s.values(), default=float("inf"))
        stretches = self._stretches
        while stretches:
            too_old = stretches[0].end_s < stretches[-1].end_s - REMEMBER_S
            if stretches[0].end_s > behind_s and not too_old:
                return
            stretches.popleft()
