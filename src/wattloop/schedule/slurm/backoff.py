"""Jobs that Slurm would not start: left out for a while, longer each time."""

__all__ = ["BackOff"]

FIRST_S = 30.0
MOST_S = 600.0


class BackOff:
    """Until when each job is not offered to the policy.

    Attributes:
        until_s: by job.
    """

    def __init__(self) -> None:
        self.until_s: dict[str, float] = {}
        self._times: dict[str, int] = {}

    def add(self, key: str, now_s: float) -> float:
        """Leave a job out; for how long."""
        times = self._times[key] = self._times.get(key, 0) + 1
        wait_s = min(FIRST_S * 2.0 ** (times - 1), MOST_S)
        self.until_s[key] = now_s + wait_s
        return wait_s

    def times(self, key: str) -> int:
        """How often it was left out."""
        return self._times.get(key, 0)

    def forget_all_but(self, keys: set[str]) -> None:
        """Jobs that are gone need no memory."""
        for gone in self.until_s.keys() - keys:
            del self.until_s[gone]
        for gone in self._times.keys() - keys:
            del self._times[gone]
