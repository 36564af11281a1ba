"""Meters that are being read now: energy between two instants, power, signals."""

from __future__ import annotations

from collections.abc import Sequence

from wattloop.core.clock import Clock
from wattloop.core.results import Missing, WindowResult
from wattloop.measure.channels import selected
from wattloop.measure.node_reader import NodeReader
from wattloop.measure.process_share import ProcessShares
from wattloop.measure.registry import Inventory
from wattloop.measure.resolve import resolve_window

__all__ = ["LiveReadings"]

SETTLE_S = 3.0
EDGE_SLACK_S = 0.01


class LiveReadings:
    """What can be asked of a reader while it reads, and after it has ended.

    Args:
        reader: that reads the meters of this node.
        inventory: of what it found, and of what is missing.
        devices: that the user asked for; all unless given.
        clock: of the readings.
    """

    def __init__(
        self, reader: NodeReader, inventory: Inventory, devices: Sequence[str], clock: Clock
    ) -> None:
        self.reader = reader
        self.inventory = inventory
        self.clock = clock
        self.role = reader.role
        self.feeds = reader.feeds
        self.channels = reader.channels
        self.missing: list[Missing] = [
            part for part in inventory.missing() if selected(part.name, devices)
        ]
        self._abandoned = False
        self.shares: ProcessShares | None = None
        """Divides the energy of the devices between this run and others, where asked for."""

    def between(
        self,
        begin_s: float,
        end_s: float,
        *,
        name: str = "",
        window_id: int = -1,
        parent_id: int | None = None,
        warnings: Sequence[str] = (),
    ) -> WindowResult:
        """Energy between two instants of the machine's monotonic clock."""
        self.reader.refresh()
        result = resolve_window(
            () if self._abandoned else self.channels,
            self.missing,
            name=name,
            window_id=window_id,
            parent_id=parent_id,
            begin_s=begin_s,
            end_s=end_s,
            warnings=warnings,
        )
        if self.shares is None or self._abandoned:
            return result
        return self.shares.applied(result, self.channels)

    def read_since(self, end_s: float) -> bool:
        """Whether every sensor has been read since `end_s`, so that it lies between two points."""
        # A sensor that fell silent will not sharpen anything any more.
        if self.clock.now_s() > end_s + SETTLE_S:
            return True
        self.reader.refresh()
        lasts_s = (channel.track.last_read_s for channel in self.channels)
        return all(last_s > end_s + EDGE_SLACK_S for last_s in lasts_s)

    def power_w(self) -> dict[str, float]:
        """Power of every domain now."""
        self.reader.refresh()
        powers = ((c.domain.name, c.power_w()) for c in self.channels)
        return {name: power for name, power in powers if power is not None}

    def signals(self) -> dict[str, float]:
        """Utilisation, clocks, temperatures as last read."""
        self.reader.refresh()
        return {k: v for feed in self.feeds for k, v in feed.signal_values.items()}
