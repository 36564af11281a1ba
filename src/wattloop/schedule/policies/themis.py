"""Themis and Hades: users with little usage first (thesis algorithms 4 and 9, ADR 0032)."""

from wattloop.schedule.objectives import EDP, TIME
from wattloop.schedule.policies.packing import PackingPolicy
from wattloop.schedule.queue import Columns, Floats
from wattloop.schedule.view import ClusterView


class Themis(PackingPolicy):
    """score = min(T) (C + 1), C the GPU seconds of its user: users with little usage go first."""

    name = "themis"
    objective = TIME

    def rank(self, view: ClusterView, waiting: Columns, cost: Floats) -> Floats:
        """The sentence in thesis 5.4.1."""
        return cost * (view.use.gpu_s(view.now_s)[waiting.user] + 1)


class ThemisAsPrinted(Themis):
    """score = min(T) / (C + 1), C the GPU seconds of its user: users with much usage go first."""

    name = "themis-as-printed"

    def rank(self, view: ClusterView, waiting: Columns, cost: Floats) -> Floats:
        """The formula in thesis 5.4.1."""
        return cost / (view.use.gpu_s(view.now_s)[waiting.user] + 1)


class Hades(Themis):
    """score = min(P T^2) (C + 1), C the GPU seconds of its user: Themis with energy."""

    name = "hades"
    objective = EDP


class HadesAsPrinted(ThemisAsPrinted):
    """score = min(P T^2) / (C + 1), C the GPU seconds of its user: much usage goes first."""

    name = "hades-as-printed"
    objective = EDP
