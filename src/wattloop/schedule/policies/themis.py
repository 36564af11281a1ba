"""Themis: short jobs of users with little usage first (thesis algorithm 4, ADR 0032)."""

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.objectives import TIME
from wattloop.schedule.policies.packing import PackingPolicy
from wattloop.schedule.queue import Columns
from wattloop.schedule.view import ClusterView


class Themis(PackingPolicy):
    """score = min(T) (C + 1), C the GPU seconds its user has had: who had little goes first."""

    name = "themis"
    objective = TIME

    def rank(
        self, view: ClusterView, waiting: Columns, cost: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Thesis 5.4.1, as its sentence says."""
        return cost * (view.use.gpu_s(view.now_s)[waiting.user] + 1)


class ThemisAsPrinted(Themis):
    """score = min(T) / (C + 1), C the GPU seconds its user has had: who had much goes first."""

    name = "themis-as-printed"

    def rank(
        self, view: ClusterView, waiting: Columns, cost: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Thesis 5.4.1, as its formula says."""
        return cost / (view.use.gpu_s(view.now_s)[waiting.user] + 1)
