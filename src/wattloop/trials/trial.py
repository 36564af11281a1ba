"""One trial: a configuration that is measured once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattloop.control.lever import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A command (or, for `TrialRunner.call`, a function) under given settings.

    Attributes:
        key: names it within its experiment; the same trial planned again has the same key, which
            is how a resumed experiment knows what it has paid for.
        timeout_s: after this long the program is ended; None waits for ever.
        facts: whatever else describes the trial (number of GPUs, repeat); written down with it.
        window: the part of the program that counts, as `wattloop.measure(window)` in it marks it;
            empty for all of it.
    """

    key: str
    settings: Mapping[str, Setting] = field(default_factory=dict)
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    window: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "levers": dict(self.settings),
            "command": list(self.command),
            "environment": dict(self.environment),
            "timeout_s": self.timeout_s,
            "window": self.window,
            **self.facts,
        }
