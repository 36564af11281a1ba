"""Themis by its printed formula: short jobs of users who have had much first (ADR 0032)."""

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.policies.themis import Themis
from wattloop.schedule.queue import Columns
from wattloop.schedule.view import ClusterView

__all__ = ["ThemisAsPrinted"]


class ThemisAsPrinted(Themis):
    """score = min(T) / (C + 1), C the GPU seconds its user has had: who had much goes first."""

    name = "themis-as-printed"

    def rank(
        self, view: ClusterView, waiting: Columns, cost: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Thesis 5.4.1, as its formula says."""
        return cost / (view.use.gpu_s(view.now_s)[waiting.user] + 1)
