"""Promises of packed arrays: they return exactly the values that were stored."""

import math
import random
from array import array

import pytest

from wattloop.core.errors import StoreError
from wattloop.store.samples import pack, unpack

NAN = math.nan
SERIES = {
    "empty": [],
    "one": [1.5],
    "microjoules as RAPL gives them": [n * 1e-6 for n in range(0, 10**7, 61_035)],
    "milliwatts": [n / 1_000 for n in range(250_000, 251_000, 7)],
    "no decimals at all": [math.sqrt(n) for n in range(500)],
    "gaps": [NAN, 1.0, NAN, NAN, 2.0, NAN],
    "only gaps": [NAN] * 5,
    "infinite": [1.0, math.inf, -math.inf, NAN],
    "negative zero": [-0.0, 0.0, 1.0],
    "huge and tiny": [1e300, 5e-324, -1e18, 2.0**53, 2.0**63],
    "wrapping counter": [262_143.3, 0.1, 55.5] * 20,
    "constant": [0.97] * 1_000,
}


@pytest.mark.parametrize("values", SERIES.values(), ids=SERIES)
def test_every_double_comes_back_bit_for_bit(values: list[float]) -> None:
    """Packing any sensor value is lossless, and a gap stays a gap."""
    back = unpack(pack(values))
    for before, after in zip(values, back, strict=True):
        assert array("d", [before]).tobytes() == array("d", [after]).tobytes() or (
            math.isnan(before) and math.isnan(after)
        )


def test_a_day_of_a_counter_stays_small() -> None:
    """A noisy RAPL counter takes less than half of its eight bytes."""
    noise = random.Random(1)
    total, values = 0, []
    for _ in range(20_000):
        total += 61 * noise.randrange(60_000, 100_000)
        values.append(total * 1e-6)
    assert len(pack(values)) / len(values) < 4.0


@pytest.mark.parametrize("damage", [b"", b"\x02\x01\x06", b"\xff" * 60])
def test_damaged_chunks_are_a_store_error(damage: bytes) -> None:
    """A chunk that was changed on the disk gives that error, not a crash."""
    with pytest.raises(StoreError, match="damaged"):
        unpack(damage)
