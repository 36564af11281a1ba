"""Start and end events of jobs, from prolog and epilog; ends whose epilog never ran."""

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wattloop.core.clock import Clock
from wattloop.core.files import atomic_write
from wattloop.core.process import BackgroundThread
from wattloop.core.records import Domain
from wattloop.fleet.agent.config import AgentConfig, AgentContext
from wattloop.fleet.agent.cpu_time import cgroup_file
from wattloop.fleet.agent.job_facts import JobFacts, ask_slurm, jobs_on_node
from wattloop.hardware.host import Host

# What prolog and epilog left in the agent's folder: which job began or ended, and when.
#
# An event is a small file of KEY=VALUE lines, called `<ns>-<job>-start` or `-end`, that appears
# whole (written under another name, then renamed). Files wait for an agent that is not there; they
# are handled in the order of their times and removed when the agent's own state knows of them.
LARGEST_B = 16_384
EVERY_S = 30.0
AGREE_S = 0.05
"""The machine's uptime is known to 10 ms and never set; the time of day is finer but may be."""
_NAME = re.compile(r"(\d{1,20})-([0-9A-Za-z_.-]{1,64})-(start|end)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Start or end of a job on this node.

    Attributes:
        wall_s: time of day at which it was written.
        uptime_s: time since the machine's boot, if known.
        boot: identifier of that boot, if known.
    """

    name: str
    kind: str
    job: str
    wall_s: float
    uptime_s: float | None = None
    boot: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


def parse_event(name: str, text: str) -> JobEvent | None:
    """Parse the name of an event file; None for other files."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    facts: dict[str, str] = {}
    for line in text.split("\n"):  # the hooks' only line break: users choose all the others
        key, equals, value = line.partition("=")
        if equals:
            facts.setdefault(key.strip(), _CONTROL.sub(" ", value).strip())
    if "whole" not in facts:
        return None
    nanoseconds, job, kind = found.groups()
    uptime = facts.get("uptime_s", "")
    return JobEvent(
        name=name,
        kind=kind,
        job=job,
        wall_s=int(nanoseconds) / 1e9,
        uptime_s=float(uptime) if re.fullmatch(r"\d+(\.\d+)?", uptime) else None,
        boot=facts.get("boot", ""),
        facts=facts,
    )


class EventFolder:
    """The folder of event files; only root may write into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int] | None = None

    def prepare(self) -> None:
        """Create the folder, closed to other users."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)

    def changed(self) -> bool:
        """Return True when files came or went since the last call; takes microseconds."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        seen = (found.st_mtime_ns, found.st_ino)
        changed, self._seen = seen != self._seen, seen
        return changed

    def waiting(self) -> tuple[list[JobEvent], list[str]]:
        """Return events in the order of their times, and names of invalid files."""
        events: list[JobEvent] = []
        strange: list[str] = []
        for path in self._files():
            try:
                with path.open("rb") as file:
                    text = file.read(LARGEST_B).decode("utf-8", "replace")
            except OSError:
                continue  # gone since it was listed, or to be read later
            event = parse_event(path.name, text)
            if event is None:
                strange.append(path.name)
            else:
                events.append(event)
        return sorted(events, key=lambda e: (e.wall_s, e.kind == "start", e.job)), strange

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def set_aside(self, name: str) -> None:
        """Move an invalid file aside for inspection."""
        aside = self.path.parent / "strange"
        aside.mkdir(mode=0o700, exist_ok=True)
        (self.path / name).replace(aside / name)

    def _files(self) -> list[Path]:
        try:
            return [p for p in self.path.iterdir() if not p.name.startswith(".") and p.is_file()]
        except OSError:
            return []


class Instant:
    """The present on all clocks of the machine; converts times of events."""

    def __init__(self, clock: Clock, uptime_s: float | None) -> None:
        self.now_s = clock.now_s()
        self._wall_s = clock.wall_s()
        self._uptime_s = uptime_s

    def time_of(self, event: JobEvent) -> float:
        """Return the time of the event on the monotonic clock; never later than now.

        The uptime says roughly when, whatever became of the time of day; the time of day says it
        to the microsecond where the two agree.
        """
        by_wall_s = self.now_s - (self._wall_s - event.wall_s)
        if event.uptime_s is None or self._uptime_s is None:
            return min(self.now_s, by_wall_s)
        by_uptime_s = self.now_s - (self._uptime_s - event.uptime_s)
        exact = abs(by_wall_s - by_uptime_s) < AGREE_S
        return min(self.now_s, by_wall_s if exact else by_uptime_s)


_log = logging.getLogger("wattloop.agent")


class EventQueue:
    """Events in order; files stay until the saved state covers them, and count once."""

    def __init__(self, context: AgentContext, fault: Callable[[str], None]) -> None:
        self._context = context
        self._folder = EventFolder(context.folder / "events")
        self._fault = fault
        self._coming: list[tuple[float, JobEvent]] = []
        self._handled: dict[str, None] = {}
        self._to_remove: list[str] = []

    def prepare(self) -> None:
        self._folder.prepare()

    def remember(self, handled: Iterable[str]) -> None:
        """Resume with the events that an earlier agent handled."""
        self._handled = dict.fromkeys(handled)

    @property
    def handled(self) -> list[str]:
        """Return names of handled events whose files may still exist."""
        return list(self._handled)

    @property
    def waiting(self) -> bool:
        """Return True when known events are not due yet."""
        return bool(self._coming)

    def changed(self) -> bool:
        """Return True when new files came since the last call."""
        return self._folder.changed() and self.fetch()

    def fetch(self) -> bool:
        """Read new events from the folder; True if there are any."""
        found, strange = self._folder.waiting()
        for name in strange:
            self._fault(f"{self._folder.path / name}: makes no sense; set aside")
            self._folder.set_aside(name)
        known = {event.name for _, event in self._coming}
        fresh = [e for e in found if e.name not in known and e.name not in self._handled]
        self._to_remove += [e.name for e in found if e.name in self._handled]
        if fresh:
            instant = Instant(self._context.clock, self._context.uptime_s())
            self._coming += [(instant.time_of(event), event) for event in fresh]
            self._coming.sort(key=lambda pair: (pair[0], pair[1].kind == "start"))
        return bool(fresh)

    def due(self, until_s: float) -> Iterator[tuple[float, JobEvent]]:
        """Return events up to an instant with their times, and mark them as handled."""
        while self._coming and self._coming[0][0] <= until_s:
            said_s, event = self._coming.pop(0)
            self._handled[event.name] = None
            self._to_remove.append(event.name)
            if event.boot and event.boot != self._context.host.boot_id:
                _log.warning("job %s: its %s was before the node's boot", event.job, event.kind)
                continue
            yield said_s, event

    def clean(self) -> None:
        """Remove files of events that the saved state covers."""
        left = []
        for name in self._to_remove:
            try:
                self._folder.remove(name)
                self._handled.pop(name, None)
            except OSError as error:
                self._fault(f"{self._folder.path / name}: {error.strerror or error}")
                left.append(name)
        self._to_remove = left


class SlurmSource:
    """Slurm as the source of a node's jobs: prolog and epilog write the events."""

    def __init__(self, config: AgentConfig, node: str) -> None:
        self._node, self._bin = node, config.slurm_bin
        self._root = Path(config.cgroup_root)

    def attach(self, domains: Mapping[str, Domain]) -> None:
        """Do nothing: Slurm's numbers of GPUs are the driver's."""

    def follower(self, events: Path, running: Callable[[], Sequence[str]]) -> "MissingEpilogs":
        return MissingEpilogs(events, self._node, running, self._bin)

    def cpu_file(self, job: str, uid: int) -> Path | None:
        return cgroup_file(self._root, self._node, job, uid)

    def ask(self, job: str, caps: bool) -> tuple[JobFacts | None, str]:
        return ask_slurm(job, folder=self._bin, caps=caps)

    def refused(self, job: str, why: str) -> None:
        """Do nothing: the agent's fault says it."""

    def exit_status(self, job: str) -> int | None:
        """Return None: the epilog has said it, or it is not known."""
        return None

    def awaits_exit(self, job: str, since_s: float) -> bool:
        return False


class MissingEpilogs(BackgroundThread):
    """Thread that writes the end events of jobs whose epilog never ran.

    Such a job, e.g. after a crash of slurmctld, would keep its GPUs, their joules and their cap
    for ever. It has ended when Slurm does not list it on this node twice in a row.

    Args:
        running: jobs that the agent takes to be running, at any time.
    """

    def __init__(
        self, events: Path, node: str, running: Callable[[], Sequence[str]], slurm_bin: str = ""
    ) -> None:
        super().__init__("wattloop-ends", patience_s=0.0)
        self._events, self._node, self._running = events, node, running
        self._slurm_bin = slurm_bin
        self._missing: set[str] = set()

    def check(self) -> list[str]:
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
                self.check()
            except Exception:  # noqa: BLE001 - measuring must not stop for it
                _log.exception("jobs without an epilog were not checked")

    def _write_end(self, job: str) -> None:
        host = Host()
        uptime = (host.read_text("proc", "uptime") or "").split(" ")[0]
        name = f"{time.time_ns()}-{job}-end"
        lines = ["event=end", f"uptime_s={uptime}", f"boot={host.boot_id}", f"job={job}"]
        text = "\n".join([*lines, f"node={self._node}", "lost=yes", "whole=yes"]) + "\n"
        atomic_write(self._events / name, text, mode=0o600)
