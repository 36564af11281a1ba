import pytest

torch = pytest.importorskip("torch", reason="trainings in PyTorch need torch")

from wattloop.core.errors import ConfigError  # noqa: E402 - after the check for torch
from wattloop.tune.executors.torch.batches import FlexibleBatches, windows_of  # noqa: E402 - after the skip


def numbers(count: int) -> "torch.Tensor":
    return torch.arange(count)


@pytest.mark.parametrize("budget_bytes", [None, 3 * 24 * 8])
@pytest.mark.parametrize("shuffle", ["samples", "units", "none"])
@pytest.mark.parametrize("batch_size", [8, 16, 48])
def test_an_epoch_is_every_sample_once(batch_size, shuffle, budget_bytes) -> None:
    """Promise: whatever the size, the order and the memory, an epoch is all of the data."""
    batches = FlexibleBatches(numbers(100), unit=8, shuffle=shuffle, budget_bytes=budget_bytes)
    found = list(batches.epoch(batch_size, seed=1))
    assert sorted(torch.cat(found).tolist()) == list(range(100))
    assert [len(b) for b in found[:-1]] == [batch_size] * (len(found) - 1)
    assert len(found) == batches.steps(batch_size)
    assert batches.resident is (budget_bytes is None)


@pytest.mark.parametrize("budget_bytes", [None, 3 * 24 * 8])
def test_incomplete_batches_can_be_dropped(budget_bytes) -> None:
    """Promise: with `last='drop'` all batches are of one size."""
    batches = FlexibleBatches(numbers(100), unit=8, last="drop", budget_bytes=budget_bytes)
    assert [len(b) for b in batches.epoch(16)] == [16] * 6 == [16] * batches.steps(16)


@pytest.mark.parametrize("budget_bytes", [None, 3 * 24 * 8])
def test_the_order_belongs_to_seed_and_epoch(budget_bytes) -> None:
    """Promise: a paused training continues with the same data."""
    batches = FlexibleBatches(numbers(100), unit=4, budget_bytes=budget_bytes)

    def order(**which) -> list[int]:
        return torch.cat(list(batches.epoch(10, **which))).tolist()

    first = order(seed=3, number=5)
    torch.manual_seed(99)
    assert order(seed=3, number=5) == first
    assert order(seed=3, number=6) != first
    assert order(seed=4, number=5) != first


def test_units_stay_together() -> None:
    """Promise: `shuffle='units'` makes larger batches of whole smallest ones."""
    batches = FlexibleBatches(numbers(64), unit=4, shuffle="units")
    for batch in batches.epoch(16, seed=2):
        for unit in batch.reshape(-1, 4).tolist():
            assert unit == list(range(unit[0], unit[0] + 4)) and unit[0] % 4 == 0


def test_parts_of_a_sample_stay_together() -> None:
    """Promise: tuples, lists and dicts keep their shape, and their tensors the same samples."""
    data = {"x": numbers(50), "more": (numbers(50) * 2, [numbers(50).reshape(50, 1) + 7])}
    for budget_bytes in (None, 500):
        for batch in FlexibleBatches(data, unit=5, budget_bytes=budget_bytes).epoch(15):
            assert torch.equal(batch["more"][0], 2 * batch["x"])
            assert torch.equal(batch["more"][1][0][:, 0], batch["x"] + 7)


def test_the_queue_keeps_to_its_memory() -> None:
    """Promise: data that does not fit takes no more memory on the device than allowed."""
    batches = FlexibleBatches(numbers(10_000), unit=10, budget_bytes=8_000)
    assert batches.device_bytes <= 8_000
    assert torch.cat(list(batches.epoch(1_000, seed=1))).sum().item() == 9_999 * 5_000


def test_windows_of_a_series_share_its_memory() -> None:
    """Promise: overlapping sequences take no more memory than the series."""
    series = torch.arange(1000.0).reshape(500, 2)
    windows = windows_of(series, 20, stride=5)
    assert windows.shape == (97, 20, 2)
    assert torch.equal(windows[3], series[15:35])
    batches = FlexibleBatches((windows, torch.arange(97)), unit=4)
    assert batches.device_bytes < 2 * 500 * 2 * 4
    for window, number in batches.epoch(8):
        assert torch.equal(window[0], series[5 * number[0] : 5 * number[0] + 20])


def test_only_as_many_as_asked_for() -> None:
    """Promise: a quarter of the data costs a quarter."""
    assert len(list(FlexibleBatches(numbers(100), unit=4).epoch(4, most=6))) == 6


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (torch.empty(0), {"unit": 1}, "no samples"),
        ((torch.zeros(3), torch.zeros(4)), {"unit": 1}, "3, 4 samples"),
        (torch.zeros(10), {"unit": 11}, "unit 11"),
        (torch.zeros(10), {"unit": 5, "budget_bytes": 30}, "30 bytes are too few"),
        ([1, 2], {"unit": 1}, "not of int"),
    ],
)
def test_what_cannot_be_batched_is_said(data, options, said) -> None:
    """Promise: bad data is an error that says what is wrong."""
    with pytest.raises(ConfigError, match=said):
        FlexibleBatches(data, **options)


def test_batches_that_cannot_be_made_are_said() -> None:
    """Promise: a batch size that does not fit the units or the data is an error."""
    with pytest.raises(ConfigError, match="not a multiple of 4"):
        FlexibleBatches(numbers(20), unit=4, shuffle="units").epoch(6)
    with pytest.raises(ConfigError, match="incomplete batches are dropped"):
        FlexibleBatches(numbers(20), unit=4, last="drop").epoch(40)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("budget_bytes", [None, 40_000])
def test_nothing_waits_for_the_gpu(budget_bytes) -> None:
    """Promise: in the loop the host never waits for the device."""
    data = (numbers(20_000), torch.randn(20_000, 3))
    batches = FlexibleBatches(data, unit=32, device="cuda", budget_bytes=budget_bytes)
    list(batches.epoch(64))
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = list(batches.epoch(64, seed=1))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sorted(torch.cat([b[0] for b in found]).tolist()) == list(range(20_000))
