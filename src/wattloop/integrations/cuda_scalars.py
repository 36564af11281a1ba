"""Losses on their way from the GPU, without waiting for them.

`loss.item()` waits for everything queued before it. Here the value is copied into page-locked
memory by the stream itself, in order, and read when the event behind it has completed.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CudaScalars"]

SLOTS = 2_048
"""More than a GPU's queue holds; a value that finds no slot is left out, never waited for."""


class CudaScalars:
    """Slots of page-locked memory, one per value under way."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._slots: list[Any] = []
        self._free: list[int] = []

    def send(self, value: Any) -> int | None:
        """Queue a copy of a one-element tensor; the slot it goes to, None when it cannot."""
        if value.numel() != 1:
            return None
        if not self._slots:
            self._allocate()
        if not self._free:
            return None
        slot = self._free.pop()
        self._slots[slot].copy_(value.detach().reshape(()), non_blocking=True)
        return slot

    def arrived(self, scalars: list[tuple[dict[str, float], str, int]]) -> None:
        """The event behind these has completed: put them where they belong."""
        for target, name, slot in scalars:
            target[name] = float(self._slots[slot])
            self._free.append(slot)

    def _allocate(self) -> None:
        memory = self._torch.empty(SLOTS, dtype=self._torch.float32, pin_memory=True)
        self._slots = list(memory.unbind())
        self._free = list(range(SLOTS))
