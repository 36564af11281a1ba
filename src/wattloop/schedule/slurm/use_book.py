"""What users have had: GPU seconds of jobs that ended, for policies that are fair."""

from collections.abc import Iterable

from wattloop.schedule.slurm.job_record import SlurmJob

__all__ = ["UseBook"]


class UseBook:
    """Sees jobs come and go."""

    def __init__(self) -> None:
        self._seen: dict[str, SlurmJob] = {}

    def look(
        self, running: Iterable[SlurmJob], use_gpu_s: dict[str, float], now_s: float
    ) -> list[SlurmJob]:
        """Add what ended since the last look to `use_gpu_s`, by user; the jobs that are new."""
        now = {job.key: job for job in running}
        for key, was in self._seen.items():
            if key not in now or now[key].start_s != was.start_s:
                gpu_s = sum(gpus for _, gpus in was.placed) * max(now_s - was.start_s, 0.0)
                use_gpu_s[was.user] = use_gpu_s.get(was.user, 0.0) + gpu_s
        new = [job for key, job in now.items() if key not in self._seen]
        self._seen = now
        return new
