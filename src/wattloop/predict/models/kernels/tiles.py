"""Matrix products as tiles over the GPU's multiprocessors.

    time = waves x (K-loop of one tile + prologue and epilogue),  waves = ceil(tiles / SMs)

The library picks a tile shape (and a split of K when there are too few tiles); we take the
quickest of a few, which is what its heuristics aim at.
"""

from dataclasses import dataclass

import numpy as np

from wattloop.predict.models.kernels.table import Floats

__all__ = ["TILES", "ProductUnits", "filled_share", "product_seconds"]

TILES = np.array(
    [(256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64),
     (32, 64), (64, 32), (32, 32)],
    dtype=np.float64,
)  # fmt: skip
"""Rows and columns of the result that one multiprocessor makes at a time."""

SPLITS = np.array([1, 2, 4, 8, 16, 32], dtype=np.float64)
"""Into how many parts the K-loop may be cut, each by another multiprocessor."""

SMALLEST_K = 64.0
"""A K-loop is not cut into parts shorter than this."""

SMALLEST_FILLING, SMALLEST_FILLING_K = 64.0, 256.0
"""Libraries do not take smaller tiles or shorter sums only to keep more multiprocessors busy."""


@dataclass(frozen=True, slots=True)
class ProductUnits:
    """What a product runs on, one value per row.

    Attributes:
        flops_s: peak times efficiency of the whole GPU.
        l2_bytes_s: L2 to the multiprocessors, all together.
        memory_bytes_s: achieved bandwidth of memory.
        tile_s: prologue and epilogue of a tile.
        splits: into how many parts K may be cut at most.
        sms: multiprocessors.
    """

    flops_s: Floats
    l2_bytes_s: Floats
    memory_bytes_s: float
    tile_s: Floats
    splits: Floats
    sms: int


def product_seconds(dims: Floats, element_bytes: Floats, units: ProductUnits) -> Floats:
    """Seconds of each product of `dims` (B, M, N, K), without the minimum of a kernel."""
    if not len(dims):
        return np.zeros(0)
    b, m, n, k = (dims[:, i, None, None] for i in range(4))
    tile_m, tile_n = TILES[None, :, 0, None], TILES[None, :, 1, None]
    split = SPLITS[None, None, :]
    k_part = np.ceil(k / split)
    tiles = b * np.ceil(m / tile_m) * np.ceil(n / tile_n) * split
    sms = float(units.sms)
    waves = np.ceil(tiles / sms)
    size = element_bytes[:, None, None]
    arithmetic = 2 * tile_m * tile_n * k_part / (units.flops_s[:, None, None] / sms)
    # Fewer tiles than multiprocessors share the whole of L2's bandwidth.
    active = np.minimum(tiles, sms)
    loading = (tile_m + tile_n) * k_part * size / (units.l2_bytes_s[:, None, None] / active)
    partial_sums = np.where(split > 1, 2 * 4 * b * m * n * split, 0.0) / units.memory_bytes_s
    seconds = waves * (np.maximum(arithmetic, loading) + units.tile_s[:, None, None]) + partial_sums
    forbidden = (k_part < SMALLEST_K) | (split > units.splits[:, None, None])
    seconds = np.where((split > 1) & forbidden, np.inf, seconds)
    quickest: Floats = seconds.min(axis=(1, 2))
    return quickest


def filled_share(dims: Floats, sms: int) -> Floats:
    """Largest share of the multiprocessors that a tile and a split keep busy, for (B, M, N, K)."""
    b, m, n, k = (dims[:, i, None, None] for i in range(4))
    large = TILES[TILES.min(axis=1) >= SMALLEST_FILLING]
    split = SPLITS[None, None, :]
    tiles = b * np.ceil(m / large[None, :, 0, None]) * np.ceil(n / large[None, :, 1, None]) * split
    shares = tiles / (np.ceil(tiles / sms) * sms)
    shares = np.where((split > 1) & (k / split < SMALLEST_FILLING_K), 0.0, shares)
    best: Floats = shares.max(axis=(1, 2))
    return best
