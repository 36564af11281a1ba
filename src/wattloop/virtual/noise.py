"""Noise that repeats: the same tick of the same sensor always reads the same."""

import math

__all__ = ["normal"]


def normal(stream: int, tick: int) -> float:
    """A number of the standard normal distribution per (stream, tick)."""
    u = (_mixed(2 * tick + 1, stream) + 1) / 2**64
    v = _mixed(2 * tick + 2, stream) / 2**64
    return math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)


def _mixed(value: int, stream: int) -> int:
    """A well-spread 64-bit number per (value, stream), by splitmix64."""
    mask = 2**64 - 1
    x = (value * 0x9E3779B97F4A7C15 + (stream + 1) * 0xD1B54A32D192ED03) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)
