"""Who is told what happens in a search."""

from typing import Protocol

from wattloop.tune.progress import Progress
from wattloop.tune.search_limits import Spent
from wattloop.tune.segment import Segment

__all__ = ["Listener", "Silent"]


class Listener(Protocol):
    """Told what happens."""

    def begins(self, segment: Segment, spent: Spent) -> None:
        """A segment is about to be trained."""

    def ended(self, segment: Segment, progress: Progress, spent: Spent) -> None:
        """A segment has ended and is stored."""


class Silent:
    """Nobody listens."""

    def begins(self, segment: Segment, spent: Spent) -> None:
        """Nothing to say."""

    def ended(self, segment: Segment, progress: Progress, spent: Spent) -> None:
        """Nothing to say."""
