"""Policy interface: a pure function of a view."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from wattloop.schedule.actions import Action
from wattloop.schedule.view import ClusterView


class Policy(ABC):
    """Function from the state of a cluster to actions.

    `decide` has no memory between calls and changes nothing in the view: the same view gives the
    same actions, so that simulations are reproducible and a driver can be restarted. It is called
    again, at once or at the next round, as long as it starts or stops jobs.
    """

    name: str = ""
    needs_free_gpus: bool = True
    """Called only if a job waits and a GPU is free. False for policies that stop or recap jobs."""
    sets_caps: bool = False
    """Chooses power caps. Other policies see only placements with the highest cap."""

    sleeps: bool = False
    """Idle GPUs and nodes use the cluster's power-down states; parameter `sleep` of any policy."""
    isolates: bool = False
    """Jobs get the node with the most free GPUs, so that few share a node and slow each other
    down; by default the one with the fewest, so that whole nodes stay free. Parameter `isolate`."""

    @abstractmethod
    def decide(self, view: ClusterView) -> Sequence[Action]:
        """Return actions in the order of their execution."""

    def references(self) -> Sequence["Policy"]:
        """Return policies with which a simulator schedules the same jobs for `ClusterView.delay`.

        The policy compares the ages of its jobs with theirs.
        """
        return ()
