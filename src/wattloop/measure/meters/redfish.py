"""Node power from a Redfish service (the HTTPS interface of baseboard controllers)."""

from collections.abc import Sequence
from typing import ClassVar

from wattloop.core.clock import Clock
from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Scope
from wattloop.measure.meter import Context, Meter, Reading
from wattloop.measure.meters.polling import Poller

__all__ = ["Redfish", "detect"]

UPDATE_PERIOD_S = 1.0
STALE_S = 15.0
TIMEOUT_S = 5.0


def detect(context: Context) -> Sequence["Redfish"]:
    """Only where `redfish_url` names a controller; nothing is asked of it yet."""
    url = context.settings.redfish_url
    if not url:
        raise MeterUnavailable(
            "redfish", "no controller named", "set WATTLOOP_REDFISH_URL=https://user:pass@bmc"
        )
    return [Redfish(url, context.clock)]


class Redfish(Meter):
    """Asks the controller in a background thread; `read` gives the sum over its chassis."""

    name: ClassVar[str] = "redfish"

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        period_s: float = UPDATE_PERIOD_S,
        stale_s: float = STALE_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        # HTTP and TLS take 30 ms to import, which only those pay who name a controller.
        from wattloop.measure.meters.redfish_client import Client, Endpoint

        endpoint = Endpoint.parse(url)
        self._domain = Domain(
            name="node",
            kind=DomainKind.GAUGE,
            scope=Scope.NODE,
            source=f"Redfish {endpoint.origin}",
            resolution=1.0,
            update_period_s=UPDATE_PERIOD_S,
            averaging_s=1.0,
            known_error=0.05,
            read_cost_s=2e-6,
        )
        self._poller: Poller[float] = Poller(
            Client(endpoint, timeout_s).power_w, clock, period_s=period_s, stale_s=stale_s
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
