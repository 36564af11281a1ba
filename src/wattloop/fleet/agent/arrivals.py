"""Events on their way: fetched from the folder, in the order of their times, handed out once."""

import logging
from collections.abc import Callable, Iterable, Iterator

from wattloop.fleet.agent.events import EventFolder, Instant, JobEvent
from wattloop.fleet.agent.site import Site

__all__ = ["Arrivals"]

_log = logging.getLogger("wattloop.agent")


class Arrivals:
    """Files stay until the agent's state knows of them; a file seen twice counts once."""

    def __init__(self, site: Site, fault: Callable[[str], None]) -> None:
        self._site = site
        self._folder = EventFolder(site.folder / "events")
        self._fault = fault
        self._coming: list[tuple[float, JobEvent]] = []
        self._handled: dict[str, None] = {}
        self._to_remove: list[str] = []

    def prepare(self) -> None:
        """Create the folder."""
        self._folder.prepare()

    def remember(self, handled: Iterable[str]) -> None:
        """What an earlier agent dealt with."""
        self._handled = dict.fromkeys(handled)

    @property
    def handled(self) -> list[str]:
        """Names of events that are dealt with, though their files may still be there."""
        return list(self._handled)

    @property
    def waiting(self) -> bool:
        """Whether events are known that are not due yet."""
        return bool(self._coming)

    def changed(self) -> bool:
        """Whether something came since the last look, and is new."""
        return self._folder.changed() and self.fetch()

    def fetch(self) -> bool:
        """New events from the folder; whether there are any."""
        found, strange = self._folder.waiting()
        for name in strange:
            self._fault(f"{self._folder.path / name}: makes no sense; set aside")
            self._folder.set_aside(name)
        known = {event.name for _, event in self._coming}
        fresh = [e for e in found if e.name not in known and e.name not in self._handled]
        self._to_remove += [e.name for e in found if e.name in self._handled]
        if fresh:
            instant = Instant(self._site.clock, self._site.uptime_s())
            self._coming += [(instant.time_of(event), event) for event in fresh]
            self._coming.sort(key=lambda pair: (pair[0], pair[1].kind == "start"))
        return bool(fresh)

    def due(self, until_s: float) -> Iterator[tuple[float, JobEvent]]:
        """Events up to an instant, with their times; each is then dealt with."""
        while self._coming and self._coming[0][0] <= until_s:
            said_s, event = self._coming.pop(0)
            self._handled[event.name] = None
            self._to_remove.append(event.name)
            if event.boot and event.boot != self._site.host.boot_id:
                _log.warning("job %s: its %s was before the node's boot", event.job, event.kind)
                continue
            yield said_s, event

    def clean(self) -> None:
        """The state knows of what was handed out: its files are of no use any more."""
        left = []
        for name in self._to_remove:
            try:
                self._folder.remove(name)
                self._handled.pop(name, None)
            except OSError as error:
                self._fault(f"{self._folder.path / name}: {error.strerror or error}")
                left.append(name)
        self._to_remove = left
