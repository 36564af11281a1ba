"""Node power from a Redfish service (the HTTPS interface of baseboard controllers)."""

from collections.abc import Sequence
from typing import ClassVar

from wattloop.core.clock import Clock
from wattloop.core.errors import MeterUnavailable
from wattloop.measure.meter import Context
from wattloop.measure.meters.polled_node import STALE_S, UPDATE_PERIOD_S, PolledNode

__all__ = ["Redfish", "detect"]

TIMEOUT_S = 5.0


def detect(context: Context) -> Sequence["Redfish"]:
    """Only where `redfish_url` names a controller; nothing is asked of it yet."""
    url = context.settings.redfish_url
    if not url:
        raise MeterUnavailable(
            "redfish", "no controller named", "set WATTLOOP_REDFISH_URL=https://user:pass@bmc"
        )
    return [Redfish(url, context.clock)]


class Redfish(PolledNode):
    """Asks the controller in a background thread for the sum over its chassis."""

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
        super().__init__(
            Client(endpoint, timeout_s).power_w,
            clock,
            source=f"Redfish {endpoint.origin}",
            period_s=period_s,
            stale_s=stale_s,
        )
