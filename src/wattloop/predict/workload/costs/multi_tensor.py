"""How many kernels a list operation of CUDA launches.

A kernel's arguments hold so many tensors and so many blocks (a block does a chunk of a tensor);
what does not fit goes into the next kernel (ATen/native/cuda/MultiTensorApply.cuh).
"""

from collections.abc import Sequence

__all__ = ["launches"]

_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
_BLOCKS = 320
_CHUNK = 65536


def launches(sizes: Sequence[int], lists: int) -> int:
    """Kernels for one operation over so many lists of tensors of these sizes (in elements)."""
    most = _TENSORS[min(max(lists, 1), 5)]
    kernels = tensors = blocks = 0
    for size in sizes:
        if size == 0:
            continue
        tensors += 1
        blocks += -(-size // _CHUNK)
        if blocks >= _BLOCKS:
            # A tensor cut in the middle goes on in the next kernel.
            kernels += blocks // _BLOCKS
            blocks %= _BLOCKS
            tensors = 1 if blocks else 0
        if tensors == most:
            kernels += 1
            tensors = blocks = 0
    return kernels + (1 if tensors else 0)
