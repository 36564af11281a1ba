"""Batches of any size from data on the device (Geißler et al., 5.1)."""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from wattloop.core.errors import ConfigError

Tree = Any
"""A tensor, or a tuple, list or dict of trees."""


def tensors(tree: Tree) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        for part in tree.values():
            yield from tensors(part)
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from tensors(part)
    else:
        yield tree


def map_tensors(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to each tensor of a tree (and its counterparts in `others`)."""
    if isinstance(tree, Mapping):
        return {k: map_tensors(function, part, *(o[k] for o in others)) for k, part in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [
            map_tensors(function, part, *(o[i] for o in others)) for i, part in enumerate(tree)
        ]
        if hasattr(tree, "_fields"):
            return type(tree)(*parts)
        return type(tree)(parts)
    return function(tree, *others)


def sample_count(tree: Tree) -> int:
    counts = []
    for leaf in tensors(tree):
        if not hasattr(leaf, "shape") or not hasattr(leaf, "index_select"):
            raise ConfigError(f"batches are made of tensors, not of {type(leaf).__name__}")
        if not leaf.shape:
            raise ConfigError("a tensor without dimensions holds no samples")
        counts.append(int(leaf.shape[0]))
    if not counts or not counts[0]:
        raise ConfigError("there are no samples to make batches of")
    if len(set(counts)) > 1:
        raise ConfigError(
            f"tensors with {', '.join(str(c) for c in counts)} samples do not belong together"
        )
    return counts[0]


def nbytes(tree: Tree) -> int:
    return sum(int(leaf.numel()) * int(leaf.element_size()) for leaf in tensors(tree))


# Data that does not fit on the device passes through it in chunks, first in, first out. A ring of
# buffers of one size stays on the device. While batches are made from one buffer, the next chunks
# are copied into the others: on CUDA from pinned memory on a separate stream. The streams wait for
# each other on the device; the host waits for neither.

PLACES = 3
"""One buffer in use, one being filled, one ready: copying may run ahead by a chunk."""


class ChunkQueue:
    """Chunks of host data on the device.

    Args:
        unit: samples in the smallest batch; a chunk holds whole units.
        budget_bytes: memory for all buffers together.

    Raises:
        ConfigError: the budget does not hold one unit per buffer.
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
        self._host = map_tensors(self._pinned, data)
        self._places = [map_tensors(self._place, data) for _ in range(PLACES)]
        self._stream: Any = None

    @property
    def device_bytes(self) -> int:
        return PLACES * nbytes(self._places[0])

    def chunks(self, seed: int, *, shuffled: bool = True) -> Iterator[tuple[Tree, int]]:
        """Yield every chunk once, with its number of samples.

        A chunk is valid until the next one is requested.
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
            # An epoch that ended early may still read from a buffer.
            self._copies().wait_stream(torch.cuda.current_stream(self._device))
        while waiting or filled:
            while waiting and free:
                place, released = free.popleft()
                filled.append(self._fill(place, waiting.popleft(), released))
            place, count, ready = filled.popleft()
            if ready is not None:
                torch.cuda.current_stream(self._device).wait_event(ready)
            yield map_tensors(lambda leaf, count=count: leaf[:count], place), count
            free.append((place, self._released()))

    def _fill(self, place: Tree, begin: int, released: Any) -> tuple[Tree, int, Any]:
        import torch

        count = min(self.chunk_samples, self._samples - begin)
        pairs = zip(tensors(place), tensors(self._host), strict=True)
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
        """Return an event after which queued work has read its buffer."""
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
        """Pin the memory: copies from other memory would make the host wait."""
        leaf = leaf.cpu()
        return leaf.pin_memory() if self._cuda and not leaf.is_pinned() else leaf


# batches = FlexibleBatches((images, labels), unit=32, device="cuda")
# for images, labels in batches.epoch(batch_size=256, seed=0, number=3): ...
# The data is divided into units, batches of the smallest size. A larger batch is a concatenation of
# units, made on the device, so trainings with different batch sizes share one copy. The order
# depends only on (seed, number of the epoch): a training that is paused after an epoch resumes with
# the same data. The loop never waits for the device.

Shuffle = Literal["samples", "units", "none"]


class FlexibleBatches:
    """Data on the device, handed out in batches of any size.

    Args:
        data: tensors with samples along the first dimension, or tuples, lists, dicts of them.
        unit: the smallest batch size.
        shuffle: `samples` draws every sample again in each epoch; `units` keeps the samples of a
            unit together, as the document does, and takes batch sizes that are multiples of it;
            `none` keeps the order.
        last: the last batch of an epoch, where the samples do not suffice: `keep` hands it out
            smaller, so that an epoch is all of the data; `drop` leaves it out, so that all
            batches are of one size.
        budget_bytes: device memory for the data; None for no limit. What does not fit goes
            through a queue, first in, first out: see `ChunkQueue`. Samples are then shuffled
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
            self._data = map_tensors(lambda leaf: leaf.to(self.device), data)

    @property
    def resident(self) -> bool:
        return self._queue is None

    @property
    def device_bytes(self) -> int:
        """Return the memory of the data on the device; views of the same memory count once."""
        if self._queue is not None:
            return self._queue.device_bytes
        storages = {
            leaf.untyped_storage().data_ptr(): leaf.untyped_storage().nbytes()
            for leaf in tensors(self._data)
        }
        return sum(storages.values())

    def steps(self, batch_size: int) -> int:
        """Return the number of batches of an epoch."""
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
        """Yield the batches of one epoch.

        `number`: of the epoch; each has an order of its own.
        """
        self._check(batch_size)
        mixed = order_seed(seed, number)
        if self._queue is None:
            return itertools.islice(self._from_device(batch_size, mixed, first), most)
        # Earlier batches pass through the queue again: the order is drawn chunk by chunk.
        batches = self._from_queue(batch_size, mixed)
        return itertools.islice(batches, first, None if most is None else first + most)

    def _check(self, batch_size: int) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch size {batch_size}: use 1 or more")
        if self.shuffle == "units" and batch_size % self.unit:
            raise ConfigError(
                f"batch size {batch_size} is not a multiple of {self.unit}, the smallest; "
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
        """Join batches that begin in one chunk and end in the next."""
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
                # Without shuffling a part is a view of a buffer that is soon filled again.
                left.append(part if order is not None else map_tensors(torch.clone, part))
                missing -= end - begin
                begin = end
                if not missing:
                    yield _joined(left)
                    left, missing = [], batch_size
        if left and self.last == "keep":
            yield _joined(left)

    def _order(self, count: int, seed: int) -> Any:
        """Draw the order of the samples on the device; None for the order of the data."""
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
        # The last unit may be incomplete: missing samples are drawn to the end and dropped.
        return order[torch.argsort((order >= count).to(torch.int8), stable=True)][:count]


def windows_of(series: Any, length: int, *, stride: int = 1, device: Any = "cpu") -> Any:
    """Return every window of `length` steps of a series as a sample: (windows, length, ...).

    Windows overlap in memory: on the device they take no more than the series itself.
    """
    steps = int(series.shape[0])
    if not 1 <= length <= steps:
        raise ConfigError(f"length {length}: use 1 to {steps}, the length of the series")
    windows = series.to(device).unfold(0, length, stride)
    return windows.movedim(-1, 1)


def order_seed(seed: int, number: int) -> int:
    """Mix seed and number into one seed, far from those of neighbours (splitmix64)."""
    mixed = (seed * 0x9E3779B97F4A7C15 + (number + 1) * 0xBF58476D1CE4E5B9) % 2**64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
    return (mixed ^ (mixed >> 31)) >> 1  # generators take 63 bits


def _picked(data: Tree, order: Any, begin: int, end: int) -> Tree:
    if order is None:
        return map_tensors(lambda leaf: leaf[begin:end], data)
    chosen = order[begin:end]
    return map_tensors(lambda leaf: leaf.index_select(0, chosen), data)


def _joined(parts: list[Tree]) -> Tree:
    import torch

    if len(parts) == 1:
        return parts[0]
    return map_tensors(lambda *tensors: torch.cat(tensors), parts[0], *parts[1:])
