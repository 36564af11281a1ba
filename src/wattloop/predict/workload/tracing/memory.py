"""What is alive when: storages are counted when they appear and when they go."""

import weakref
from collections.abc import Sequence
from typing import Any

__all__ = ["Memory"]


class Memory:
    """Bytes of storages alive, and the most of them at once.

    `resident` storages (parameters, buffers, inputs) are known from the start and not counted.
    """

    def __init__(self, resident: Sequence[Any]) -> None:
        self.live_bytes = 0
        self.peak_bytes = 0
        self._alive: dict[int, weakref.ref[Any]] = {}
        # Held, so that no storage made later is taken for one of them.
        self._resident = [each.untyped_storage() for each in resident]
        self._known = {each._cdata for each in self._resident}

    def saw(self, tensors: Sequence[Any]) -> None:
        """These tensors were made by an operation, or are views of what was."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._known:
                continue
            size = storage.nbytes()
            self._known.add(key)
            self.add(size)
            self._alive[key] = weakref.ref(storage, self._forget(key, size))

    def add(self, size: int) -> None:
        """So many bytes are in use."""
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def remove(self, size: int) -> None:
        """So many bytes are free again."""
        self.live_bytes -= size

    def _forget(self, key: int, size: int) -> Any:
        def gone(_: Any) -> None:
            self._known.discard(key)
            self._alive.pop(key, None)
            self.remove(size)

        return gone
