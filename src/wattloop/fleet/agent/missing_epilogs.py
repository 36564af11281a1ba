"""End events of jobs whose epilog never ran, e.g. after a crash of slurmctld.

Such a job would keep its GPUs, their joules and their cap for ever. Slurm is asked now and then
which jobs it has on this node; for one that it does not name twice, the event is written that
the
epilog owed us.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from wattloop.fleet.agent.job_facts import jobs_on_node
from wattloop.hardware.host import Host

EVERY_S = 30.0


_log = logging.getLogger("wattloop.agent")


class MissingEpilogs:
    """Thread that compares open runs with Slurm's jobs.

    Args:
        events: the folder in which the agent finds events.
        node: this node's name in Slurm.
        running: jobs that the agent takes to be running, at any time.
        slurm_bin: folder of squeue, where it is not in the path.
    """

    def __init__(
        self, events: Path, node: str, running: Callable[[], Sequence[str]], slurm_bin: str = ""
    ) -> None:
        self._events, self._node, self._running = events, node, running
        self._slurm_bin = slurm_bin
        self._missing: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="wattloop-ends", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def look(self) -> list[str]:
        """Compare once; return jobs whose end was written."""
        running = set(self._running())
        known = jobs_on_node(self._node, self._slurm_bin) if running else set()
        if known is None:  # the controller does not answer
            return []
        missing = running - known
        lost = sorted(missing & self._missing)
        for job in lost:
            self._write_end(job)
            _log.warning("job %s: its end was never heard of; Slurm has no such job here", job)
        self._missing = missing - set(lost)
        return lost

    def _work(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - measuring goes on whatever happens here
                _log.exception("looking for lost ends goes on")

    def _write_end(self, job: str) -> None:
        """Write an end event like the epilog: atomically, by renaming."""
        host = Host()
        uptime = (host.read_text("proc", "uptime") or "").split(" ")[0]
        name = f"{time.time_ns()}-{job}-end"
        lines = ["event=end", f"uptime_s={uptime}", f"boot={host.boot_id}", f"job={job}"]
        text = "\n".join([*lines, f"node={self._node}", "lost=yes", "whole=yes"]) + "\n"
        fresh = self._events / f".{name}"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
        fresh.rename(self._events / name)
