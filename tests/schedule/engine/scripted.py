"""A policy that does what it was told, when it was told."""

from collections.abc import Mapping, Sequence

from wattloop.schedule.actions import Action, Wake
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.view import ClusterView


class Scripted(Policy):
    """Actions by time; each is asked for once, in the order given."""

    name = "scripted"
    needs_free_gpus = False
    sets_caps = True

    def __init__(self, script: Mapping[float, Sequence[object]]) -> None:
        self._script = dict(script)
        self.asked_s: list[float] = []

    def decide(self, view: ClusterView) -> Sequence[Action]:
        """What stands in the script for now, and a wake for what stands there next."""
        self.asked_s.append(view.now_s)
        actions = list(self._script.pop(view.now_s, ()))
        following = [at_s for at_s in self._script if at_s > view.now_s]
        return [*actions, *([Wake(min(following))] if following else [])]
