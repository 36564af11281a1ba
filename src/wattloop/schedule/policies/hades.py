"""Hades: least energy-delay products of users with little usage first (algorithm 9, ADR 0032)."""

from wattloop.schedule.objectives import EDP
from wattloop.schedule.policies.themis import Themis, ThemisAsPrinted


class Hades(Themis):
    """score = min(P T^2) (C + 1), C the GPU seconds of its user: Themis with energy."""

    name = "hades"
    objective = EDP


class HadesAsPrinted(ThemisAsPrinted):
    """score = min(P T^2) / (C + 1), C the GPU seconds of its user: much usage goes first."""

    name = "hades-as-printed"
    objective = EDP
