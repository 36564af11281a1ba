"""What every policy is: a pure function of a view."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from wattloop.schedule.actions import Action
from wattloop.schedule.view import ClusterView


class Policy(ABC):
    """Looks at a cluster and says what to do now.

    `decide` keeps no memory from one call to the next and changes nothing it is shown: the same
    view gives the same actions, so that a simulation repeats and a driver may be restarted.
    It is asked again, at once or at the next round, as long as it starts or stops something.
    """

    name: str = ""
    needs_free_gpus: bool = True
    """Asked only when a job waits and a GPU is free. One that stops or recaps jobs says False."""
    sets_caps: bool = False
    """Chooses power limits. All others are shown placements under the highest one only."""

    @abstractmethod
    def decide(self, view: ClusterView) -> Sequence[Action]:
        """Actions to carry out in this order; none when there is nothing to do."""
