"""A lever that the control daemon sets for us."""

from collections.abc import Mapping
from typing import Any

from wattloop.control.daemon.client import Client
from wattloop.control.lever import Lever, LeverState, Setting, shown
from wattloop.core.errors import ConfigError, LeverError, WattloopError

__all__ = ["RemoteLever"]


class RemoteLever(Lever):
    """One lever of the daemon, as `control.hold` takes it.

    The daemon locks, journals and restores, also when we are killed: there is no lock and no
    journal on our side. To put it back is to release it, so that it returns to the operator's
    default even where that is outside of what we may set.

    Args:
        client: shared by all levers of a daemon.
        offer: what `Client.levers` says of it.
        name: what it is called here, where cards have other numbers than in the daemon's list.
    """

    kept_elsewhere = True

    def __init__(self, client: Client, offer: Mapping[str, Any], name: str = "") -> None:
        self._client = client
        self._theirs = str(offer["name"])
        self._offer = dict(offer)
        self.name = name or self._theirs
        self.device = f"daemon:{client.path}:{offer['device']}"
        self.reads_back = bool(offer["reads_back"])
        self.tolerance = float(offer["tolerance"])

    @property
    def managed(self) -> bool:
        """Whether the daemon has the device in its hands already."""
        return bool(self._offer["managed"])

    def state(self) -> LeverState:
        """As the daemon gave it, with the present value; limits are what we may set."""
        offer = self._offer
        held_by = str(offer["held_by"])
        available, reason = bool(offer["available"]), str(offer["reason"])
        value: Setting = offer["value"]
        try:
            if self.reads_back:
                value = self.read()
        except WattloopError as error:
            available, reason = False, str(error)
        note = f"through the control daemon; {offer['note']}".rstrip("; ")
        return LeverState(
            name=self.name,
            available=available,
            reason=reason,
            remedy=str(offer["remedy"]),
            value=value,
            unit=str(offer["unit"]),
            low=offer["low"],
            high=offer["high"],
            default=offer["default"],
            choices=tuple(offer["choices"]),
            source=f"control daemon at {self._client.path}",
            note=f"{note}; held by {held_by}" if held_by else note,
        )

    def read(self) -> Setting:
        """Its present value."""
        return self._client.read(self._theirs)

    def accepted(self, value: Setting) -> Setting:
        """`value` as the device would take it, within what the operator allows us."""
        try:
            return self._client.check(self._theirs, value)
        except (ConfigError, LeverError) as error:
            text = str(error)
            named = text if self.name in text else f"{self.name}: {text}"
            raise ConfigError(named) from None

    def check_part(self, part: str, value: Setting) -> None:
        """The daemon puts back what was there, whatever we may set."""

    def write(self, value: Setting) -> None:
        """Have the daemon set it."""
        self._client.set(self._theirs, value)

    def write_part(self, part: str, value: Setting) -> None:
        """Have the daemon put it back."""
        self._client.release(self._theirs)

    def write_text(self, value: Setting) -> str:
        """The request."""
        unit = str(self._offer["unit"])
        return f"control daemon at {self._client.path}: {self._theirs} = {shown(value, unit)}"

    def write_part_text(self, part: str, value: Setting) -> str:
        """The request."""
        return f"control daemon at {self._client.path}: release {self._theirs}"
