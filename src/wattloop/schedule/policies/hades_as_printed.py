"""Hades by its printed formula: low EDP of users who have had much first (ADR 0032)."""

from wattloop.schedule.objectives import EDP
from wattloop.schedule.policies.themis_as_printed import ThemisAsPrinted

__all__ = ["HadesAsPrinted"]


class HadesAsPrinted(ThemisAsPrinted):
    """score = min(P T^2) / (C + 1), C the GPU seconds its user has had: who had much goes first."""

    name = "hades-as-printed"
    objective = EDP
