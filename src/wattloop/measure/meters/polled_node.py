"""What the meters of a whole node have in common: a controller that is asked in the background."""

from collections.abc import Callable, Sequence

from wattloop.core.clock import Clock
from wattloop.core.records import Domain, DomainKind, Gap, Scope
from wattloop.measure.meter import Meter, Reading
from wattloop.measure.meters.polling import Poller

__all__ = ["STALE_S", "UPDATE_PERIOD_S", "PolledNode"]

UPDATE_PERIOD_S = 1.0
STALE_S = 15.0


class PolledNode(Meter):
    """One domain, the node as its power supplies see it; `read` gives the latest answer.

    Args:
        poll_w: asks the controller; called in a thread, so it may take its time.
        source: where the watts come from, for people.
    """

    def __init__(
        self,
        poll_w: Callable[[], float | Gap],
        clock: Clock,
        *,
        source: str,
        period_s: float = UPDATE_PERIOD_S,
        stale_s: float = STALE_S,
    ) -> None:
        self._poller: Poller[float] = Poller(poll_w, clock, period_s=period_s, stale_s=stale_s)
        self._domain = Domain(
            name="node",
            kind=DomainKind.GAUGE,
            scope=Scope.NODE,
            source=source,
            resolution=1.0,
            update_period_s=UPDATE_PERIOD_S,
            averaging_s=1.0,
            known_error=0.05,
            read_cost_s=2e-6,
        )

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The whole node."""
        return (self._domain,)

    def read(self) -> Sequence[Reading]:
        """Watts of the node."""
        return [self._poller.latest()]

    def wait(self, timeout_s: float) -> bool:
        """Wait for the controller's first answer."""
        return self._poller.wait(timeout_s)

    def close(self) -> None:
        """End the thread."""
        self._poller.close()

    def after_fork_in_child(self) -> None:
        """Threads do not survive a fork."""
        self._poller.forget()
