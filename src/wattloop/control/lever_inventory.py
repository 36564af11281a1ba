"""What can be set on a machine, and what cannot."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from wattloop.control.lever import Lever, LeverState

__all__ = ["FoundLevers", "LeverInventory"]


class FoundLevers(list[Lever]):
    """Levers, with why others are not there for whoever asks for one of those."""

    def __init__(self, levers: Iterable[Lever] = (), absent: Iterable[LeverState] = ()) -> None:
        super().__init__(levers)
        self.absent = tuple(absent)


@dataclass(slots=True)
class LeverInventory:
    """What can be set here, and a line for each kind that cannot, with the reason."""

    levers: list[Lever] = field(default_factory=list)
    absent: list[LeverState] = field(default_factory=list)

    def states(self) -> list[LeverState]:
        """Every lever as it stands now, then those that are not there."""
        return [lever.state() for lever in self.levers] + self.absent
