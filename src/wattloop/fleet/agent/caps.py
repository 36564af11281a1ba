"""Power caps of jobs, set through the control daemon.

The lease on every card is this agent's connection to the daemon: if either dies, the daemon (or
its guardian) puts every card back. A cap that was lost that way is set again when the daemon is
back and the job still runs.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from wattloop.control.daemon.client import LOW_POWER, Client, connect
from wattloop.control.daemon.job_gpus import JobGpus, write_job_gpus
from wattloop.core.errors import WattloopError
from wattloop.core.plausible import highest_power_w
from wattloop.core.records import Scope
from wattloop.fleet.agent.config import ControlConfig
from wattloop.fleet.agent.job_facts import JobFacts

Cap = float | str
HIGHEST_W = highest_power_w(Scope.GPU)

_log = logging.getLogger("wattloop.agent")


def chosen_cap(facts: JobFacts | None, default_cap: str | None) -> tuple[Cap | None, str]:
    """Return the cap of a job's GPUs and its source; None for no cap.

    The operator's side decides (AdminComment), then the job's user, then the default. A job whose
    own words imitate the operator's gets the low-power mode: it shall gain nothing by it.
    """
    if facts is not None and facts.tampered:
        return LOW_POWER, "its name or comment imitates AdminComment: refused, low power instead"
    chosen = None if facts is None else facts.cap.get("cap_w")
    if isinstance(chosen, int | float) and 0 < chosen <= HIGHEST_W and chosen is not True:
        return float(chosen), "chosen by the scheduler"
    if facts is not None and facts.low_power:
        return LOW_POWER, "low power, as its user asked"
    if default_cap is not None:
        return as_setting(default_cap), f"the operator's default, {default_cap}"
    return None, ""


def as_setting(text: str) -> Cap:
    """Convert `-10%` to the daemon's form: `90%`."""
    words = text.replace(" ", "")
    if words.startswith("-") and words.endswith("%"):
        return f"{100 - float(words[1:-1]):g}%"
    return words


class Caps:
    """Caps in force on this node. Used by one thread.

    Args:
        config: the daemon's socket, and what else there is to know.
        folder: of the agent; `caps` in it tells prologs to wait, `ready/` that they need not.
    """

    def __init__(self, config: ControlConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._client: Client | None = None
        self._wanted: dict[str, tuple[int, dict[str, Cap]]] = {}
        self._set: dict[str, set[str]] = {}
        self.fault = ""
        """Why caps cannot be set now; empty when they can."""

    def start(self) -> None:
        """Make prologs wait for their caps from now on."""
        ready = self._folder / "ready"
        ready.mkdir(mode=0o700, exist_ok=True)
        for path in ready.iterdir():
            path.unlink(missing_ok=True)
        fresh = self._folder / ".caps.new"
        fresh.write_text(f"{os.getpid()}\n")
        fresh.replace(self._folder / "caps")

    def begin(self, job: str, uid: int, gpus: Sequence[str], cap: Cap | None) -> dict[str, float]:
        """Set the caps of a job and release its prolog; return the watts by GPU."""
        try:
            if cap is None or not gpus:
                self._put_back(job)  # it may have had one: the scheduler took it back
                return {}
            wanted = (uid, {f"{gpu}/power_limit": cap for gpu in gpus})
            if self._wanted.get(job, wanted) != wanted:
                self._set.pop(job, None)  # another cap for the same cards
            self._wanted[job] = wanted
            return self._apply(job)
        finally:
            self.ready(job)

    def ready(self, job: str) -> None:
        """Release the job's prolog."""
        with suppress(OSError):
            (self._folder / "ready" / job).touch(mode=0o600)

    def end(self, job: str) -> None:
        """Restore the job's cards."""
        self._put_back(job)
        with suppress(OSError):
            (self._folder / "ready" / job).unlink(missing_ok=True)

    def look_after(self) -> None:
        """Set caps again that were lost with a crashed daemon."""
        if self._client is not None and self._client.held:
            try:
                self._client.hello()  # a connection that is gone is noticed when it is used
            except WattloopError as error:
                self._lost(str(error))
                return
        for job in list(self._wanted):
            self._apply(job)

    def tell(self, jobs: Sequence[JobGpus]) -> None:
        """Write the owners of GPUs for the daemon."""
        if self._config.job_gpus is not None:
            try:
                write_job_gpus(Path(self._config.job_gpus), jobs)
            except OSError as error:
                self._lost(f"{self._config.job_gpus}: {error.strerror}")

    def close(self) -> None:
        """Restore everything and release prologs."""
        with suppress(OSError):
            (self._folder / "caps").unlink(missing_ok=True)
        if self._client is not None:
            self._client.close()
            self._client = None

    def _apply(self, job: str) -> dict[str, float]:
        uid, settings = self._wanted[job]
        done: dict[str, float] = {}
        try:
            if self._client is None:
                self._client = connect(self._config.socket)
            for lever, cap in settings.items():
                if lever in self._client.held and lever in self._set.get(job, ()):
                    continue
                change = self._client.set(lever, cap, job=job, uid=uid if uid >= 0 else None)
                self._set.setdefault(job, set()).add(lever)
                if isinstance(change.after, float):
                    done[lever.partition("/")[0]] = change.after
        except WattloopError as error:
            self._lost(f"job {job}: {error}")
            return done
        self.fault = ""
        return done

    def _put_back(self, job: str) -> None:
        self._wanted.pop(job, None)
        for lever in sorted(self._set.pop(job, ())):
            try:
                if self._client is not None and lever in self._client.held:
                    self._client.release(lever)
            except WattloopError as error:
                self._lost(f"{lever} of job {job}: {error}")

    def _lost(self, fault: str) -> None:
        if fault != self.fault:
            _log.warning("caps: %s", fault)
        self.fault = fault
