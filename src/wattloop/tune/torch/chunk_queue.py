"""Data that does not fit on the device goes through it in chunks, first in, first out.

A ring of places of one size is kept on the device. While batches are made of the chunk in one
place, the next chunks are copied into the others: on CUDA from pinned memory on a stream of its
own. The streams wait for each other on the device; the host waits for neither.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.tune.torch.tensor_tree import Tree, leaves, mapped, nbytes, sample_count

__all__ = ["ChunkQueue"]

PLACES = 3
"""One in use, one that is filled, one that waits: copying may run ahead by a chunk."""


class ChunkQueue:
    """Chunks of host data on the device.

    Args:
        data: on the host.
        unit: samples in the smallest batch; a chunk holds whole units.
        device: where they go.
        budget_bytes: memory for all places together.

    Raises:
        ConfigError: the budget does not hold a unit in each place.
    """

    def __init__(self, data: Tree, unit: int, device: Any, budget_bytes: int) -> None:
        self._samples = sample_count(data)
        unit_bytes = max(1, nbytes(data) * unit // self._samples)
        units = budget_bytes // (PLACES * unit_bytes)
        if units < 1:
            raise ConfigError(
                f"{budget_bytes:,} bytes are too few for {PLACES} batches of {unit} samples "
                f"({unit_bytes:,} bytes each); give more memory or a smaller unit"
            )
        self.chunk_samples = min(units * unit, self._samples)
        self._device = device
        self._cuda = device.type == "cuda"
        self._host = mapped(self._pinned, data)
        self._places = [mapped(self._place, data) for _ in range(PLACES)]
        self._stream: Any = None

    @property
    def device_bytes(self) -> int:
        """Memory of all places."""
        return PLACES * nbytes(self._places[0])

    def chunks(self, seed: int, *, shuffled: bool = True) -> Iterator[tuple[Tree, int]]:
        """Every chunk once, with its number of samples.

        What is handed out holds until the next one is asked for.
        """
        import torch

        begins = torch.arange(0, self._samples, self.chunk_samples)
        if shuffled:
            random = torch.Generator().manual_seed(seed)
            begins = begins[torch.randperm(len(begins), generator=random)]
        waiting = deque(begins.tolist())
        filled: deque[tuple[Tree, int, Any]] = deque()
        free = deque((place, None) for place in self._places)
        if self._cuda:
            # An epoch that was left before its end may still read from a place.
            self._copies().wait_stream(torch.cuda.current_stream(self._device))
        while waiting or filled:
            while waiting and free:
                place, released = free.popleft()
                filled.append(self._fill(place, waiting.popleft(), released))
            place, count, ready = filled.popleft()
            if ready is not None:
                torch.cuda.current_stream(self._device).wait_event(ready)
            yield mapped(lambda leaf, count=count: leaf[:count], place), count
            free.append((place, self._released()))

    # -- inside ----------------------------------------------------------------------------

    def _fill(self, place: Tree, begin: int, released: Any) -> tuple[Tree, int, Any]:
        import torch

        count = min(self.chunk_samples, self._samples - begin)
        pairs = zip(leaves(place), leaves(self._host), strict=True)
        if not self._cuda:
            for to, source in pairs:
                to[:count].copy_(source[begin : begin + count])
            return place, count, None
        stream = self._copies()
        if released is not None:
            stream.wait_event(released)
        with torch.cuda.stream(stream):
            for to, source in pairs:
                to[:count].copy_(source[begin : begin + count], non_blocking=True)
            ready = torch.cuda.Event()
            ready.record(stream)
        return place, count, ready

    def _released(self) -> Any:
        """When what was queued until now has read its place."""
        if not self._cuda:
            return None
        import torch

        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _copies(self) -> Any:
        import torch

        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        return self._stream

    def _place(self, leaf: Any) -> Any:
        import torch

        shape = (self.chunk_samples, *leaf.shape[1:])
        return torch.empty(shape, dtype=leaf.dtype, device=self._device)

    def _pinned(self, leaf: Any) -> Any:
        """Copies from other memory than pinned would make the host wait."""
        leaf = leaf.cpu()
        return leaf.pin_memory() if self._cuda and not leaf.is_pinned() else leaf
