"""How much of the cluster each user has had."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["Use"]


class Use:
    """GPU seconds by user, running jobs included up to the moment they are asked for.

    Args:
        users: how many there are.
    """

    def __init__(self, users: int) -> None:
        # use(t) = offset + gpus * t: starting k GPUs at t adds k to the slope, -k t to the offset.
        self._offset_gpu_s = [0.0] * users
        self._gpus = [0] * users

    def start(self, user: int, gpus: int, now_s: float) -> None:
        """A user gets GPUs."""
        self._offset_gpu_s[user] -= gpus * now_s
        self._gpus[user] += gpus

    def stop(self, user: int, gpus: int, now_s: float) -> None:
        """A user gives GPUs back."""
        self._offset_gpu_s[user] += gpus * now_s
        self._gpus[user] -= gpus

    def gpus(self) -> NDArray[np.int64]:
        """GPUs each user has now."""
        return np.asarray(self._gpus, dtype=np.int64)

    def gpu_s(self, now_s: float) -> NDArray[np.float64]:
        """GPU seconds each user has had up to now."""
        return np.asarray(self._offset_gpu_s) + np.asarray(self._gpus, dtype=float) * now_s
