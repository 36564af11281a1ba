"""Batches of any size from data that was put on the device once (document 003, 5.1).

batches = FlexibleBatches((images, labels), unit=32, device="cuda")
for images, labels in batches.epoch(batch_size=256, seed=0, number=3):
    ...

The data is cut into units, batches of the smallest size that will be asked for. A larger batch is
a concatenation of units, made on the device as it is needed, so that trainings with different batch
sizes share one copy. The order is a function of (seed, number of the epoch) alone: a training
that is paused at the end of an epoch goes on with the data it would have had. In the loop nothing
waits for the device.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, Literal

from wattloop.core.errors import ConfigError
from wattloop.tune.torch.chunk_queue import ChunkQueue
from wattloop.tune.torch.tensor_tree import Tree, leaves, mapped, nbytes, sample_count

__all__ = ["FlexibleBatches", "windows_of"]

Shuffle = Literal["samples", "units", "none"]


class FlexibleBatches:
    """Data on the device, handed out in batches of any size.

    Args:
        data: tensors with samples along the first dimension, or tuples, lists, dicts of them.
        unit: the smallest batch size.
        device: where batches are made.
        shuffle: `samples` draws every sample anew in each epoch; `units` keeps the samples of a
            unit together, as the document does, and takes batch sizes that are multiples of it;
            `none` keeps the order.
        last: the last batch of an epoch, where the samples do not suffice: `keep` hands it out
            smaller, so that an epoch is all of the data; `drop` leaves it out, so that all
            batches are of one size.
        budget_bytes: device memory for the data; None for no limit. What does not fit goes
            through a queue, first in, first out: see `chunk_queue`. Samples are then shuffled
            within their chunk and chunks among each other.

    Raises:
        ConfigError: no samples, or too little memory for two units.
    """

    def __init__(
        self,
        data: Tree,
        *,
        unit: int,
        device: Any = "cpu",
        shuffle: Shuffle = "samples",
        last: Literal["keep", "drop"] = "keep",
        budget_bytes: int | None = None,
    ) -> None:
        import torch

        self.samples = sample_count(data)
        if not 1 <= unit <= self.samples:
            raise ConfigError(f"unit {unit}: use 1 to {self.samples}, the number of samples")
        self.unit, self.shuffle, self.last = unit, shuffle, last
        self.device = torch.device(device)
        self._queue: ChunkQueue | None = None
        self._data: Tree = None
        if budget_bytes is not None and nbytes(data) > budget_bytes:
            self._queue = ChunkQueue(data, unit, self.device, budget_bytes)
        else:
            self._data = mapped(lambda leaf: leaf.to(self.device), data)

    @property
    def resident(self) -> bool:
        """Whether all of the data stays on the device."""
        return self._queue is None

    @property
    def device_bytes(self) -> int:
        """Memory of the data on the device; views of the same memory count once."""
        if self._queue is not None:
            return self._queue.device_bytes
        storages = {
            leaf.untyped_storage().data_ptr(): leaf.untyped_storage().nbytes()
            for leaf in leaves(self._data)
        }
        return sum(storages.values())

    def steps(self, batch_size: int) -> int:
        """Batches of an epoch.

        Raises:
            ConfigError: such a batch cannot be made.
        """
        self._check(batch_size)
        if self.last == "drop":
            return self.samples // batch_size
        return math.ceil(self.samples / batch_size)

    def epoch(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        number: int = 0,
        first: int = 0,
        most: int | None = None,
    ) -> Iterator[Tree]:
        """The batches of one epoch.

        Args:
            batch_size: samples in each.
            seed: of the training.
            number: of the epoch; each has an order of its own.
            first: begin with this batch; those before were had earlier.
            most: end after so many batches.

        Raises:
            ConfigError: such a batch cannot be made.
        """
        self._check(batch_size)
        mixed = order_seed(seed, number)
        if self._queue is None:
            return itertools.islice(self._from_device(batch_size, mixed, first), most)
        # What was had earlier comes through the queue again: an order is drawn chunk by chunk.
        batches = self._from_queue(batch_size, mixed)
        return itertools.islice(batches, first, None if most is None else first + most)

    # -- inside ----------------------------------------------------------------------------

    def _check(self, batch_size: int) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch size {batch_size}: use 1 or more")
        if self.shuffle == "units" and batch_size % self.unit:
            raise ConfigError(
                f"batch size {batch_size} is no multiple of {self.unit}, the smallest; "
                "use shuffle='samples' for any size"
            )
        if self.last == "drop" and batch_size > self.samples:
            raise ConfigError(
                f"batch size {batch_size}: there are {self.samples} samples, and incomplete "
                "batches are dropped"
            )

    def _from_device(self, batch_size: int, seed: int, first: int) -> Iterator[Tree]:
        end = self.samples - (self.samples % batch_size if self.last == "drop" else 0)
        order = self._order(self.samples, seed)
        for begin in range(first * batch_size, end, batch_size):
            yield _picked(self._data, order, begin, min(begin + batch_size, end))

    def _from_queue(self, batch_size: int, seed: int) -> Iterator[Tree]:
        """Batches that begin in one chunk and end in the next are joined of both parts."""
        import torch

        assert self._queue is not None
        left: list[Tree] = []
        missing = batch_size
        for position, (chunk, count) in enumerate(
            self._queue.chunks(seed, shuffled=self.shuffle != "none")
        ):
            order = self._order(count, order_seed(seed, position + 1))
            begin = 0
            while begin < count:
                end = min(begin + missing, count)
                part = _picked(chunk, order, begin, end)
                # In order, a part is a view of a place that is soon filled again.
                left.append(part if order is not None else mapped(torch.clone, part))
                missing -= end - begin
                begin = end
                if not missing:
                    yield _joined(left)
                    left, missing = [], batch_size
        if left and self.last == "keep":
            yield _joined(left)

    def _order(self, count: int, seed: int) -> Any:
        """Where each sample comes from; drawn on the device, None for as it is."""
        import torch

        if self.shuffle == "none":
            return None
        random = torch.Generator(device=self.device)
        random.manual_seed(seed)
        if self.shuffle == "samples":
            return torch.randperm(count, generator=random, device=self.device)
        units = torch.randperm(math.ceil(count / self.unit), generator=random, device=self.device)
        inside = torch.arange(self.unit, device=self.device)
        order = (units[:, None] * self.unit + inside).flatten()
        # The last unit may be incomplete: what it lacks is drawn to the end and left out.
        return order[torch.argsort((order >= count).to(torch.int8), stable=True)][:count]


def windows_of(series: Any, length: int, *, stride: int = 1, device: Any = "cpu") -> Any:
    """Every window of `length` steps of a series as a sample: (windows, length, ...).

    Windows overlap in memory: on the device they take no more than the series itself.
    """
    steps = int(series.shape[0])
    if not 1 <= length <= steps:
        raise ConfigError(f"length {length}: use 1 to {steps}, the length of the series")
    windows = series.to(device).unfold(0, length, stride)
    return windows.movedim(-1, 1)


def order_seed(seed: int, number: int) -> int:
    """One number for both, far from those of neighbours (splitmix64)."""
    mixed = (seed * 0x9E3779B97F4A7C15 + (number + 1) * 0xBF58476D1CE4E5B9) % 2**64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
    return (mixed ^ (mixed >> 31)) >> 1  # generators take 63 bits


def _picked(data: Tree, order: Any, begin: int, end: int) -> Tree:
    if order is None:
        return mapped(lambda leaf: leaf[begin:end], data)
    chosen = order[begin:end]
    return mapped(lambda leaf: leaf.index_select(0, chosen), data)


def _joined(parts: list[Tree]) -> Tree:
    import torch

    if len(parts) == 1:
        return parts[0]
    return mapped(lambda *tensors: torch.cat(tensors), parts[0], *parts[1:])
