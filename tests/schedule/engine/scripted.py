"""A policy with a script of actions and times."""

from collections.abc import Mapping, Sequence

from wattloop.schedule.actions import Action, Wake
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.view import ClusterView


class Scripted(Policy):
    """Actions by time; each is returned once, in the given order."""

    name = "scripted"
    needs_free_gpus = False
    sets_caps = True

    def __init__(self, script: Mapping[float, Sequence[object]]) -> None:
        self._script = dict(script)
        self.asked_s: list[float] = []

    def decide(self, view: ClusterView) -> Sequence[Action]:
        """Return the script's actions for now, and a wake for its next ones."""
        self.asked_s.append(view.now_s)
        actions = list(self._script.pop(view.now_s, ()))
        following = [at_s for at_s in self._script if at_s > view.now_s]
        return [*actions, *([Wake(min(following))] if following else [])]
