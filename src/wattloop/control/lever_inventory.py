"""What can be set on a machine, and what cannot."""

from dataclasses import dataclass, field

from wattloop.control.lever import Lever, LeverState

__all__ = ["LeverInventory"]


@dataclass(slots=True)
class LeverInventory:
    """What can be set here, and a line for each kind that cannot, with the reason."""

    levers: list[Lever] = field(default_factory=list)
    absent: list[LeverState] = field(default_factory=list)

    def states(self) -> list[LeverState]:
        """Every lever as it stands now, then those that are not there."""
        return [lever.state() for lever in self.levers] + self.absent
