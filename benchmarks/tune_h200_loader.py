"""Ways to make batches: an epoch of a DataLoader and of flexible batches, without training."""

from collections.abc import Callable
from typing import Any

from wattloop.tune.executors.torch.epochs import SessionEnergy

__all__ = ["loader_rows"]


def loader_rows(device: Any, *, quick: bool = False) -> list[dict[str, Any]]:
    """Measure an epoch of batches alone: a DataLoader and flexible batches."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from wattloop.tune.executors.torch.batches import FlexibleBatches

    count = 1_000 if quick else 50_000
    cuda = device.type == "cuda"
    pictures = torch.randn(count, 3, 32, 32).to(torch.float16)
    labels = torch.randint(10, (count,))
    bytes_all = pictures.numel() * 2
    resident = FlexibleBatches((pictures, labels), unit=32, device=device)
    queued = FlexibleBatches(
        (pictures, labels), unit=32, device=device, budget_bytes=bytes_all // 4
    )

    def loaded(size: int, workers: int) -> Any:
        loader = DataLoader(
            TensorDataset(pictures, labels), size, shuffle=True, num_workers=workers,
            pin_memory=cuda, persistent_workers=False,
        )  # fmt: skip
        return ([part.to(device, non_blocking=True) for part in batch] for batch in loader)

    ways: list[tuple[str, Callable[[int], Any]]] = [
        ("DataLoader", lambda size: loaded(size, 0)),
        ("flexible batches", resident.epoch),
        ("flexible batches, queue of a quarter", queued.epoch),
    ]
    if not quick:
        ways.insert(1, ("DataLoader, 8 workers", lambda size: loaded(size, 8)))
    energy = SessionEnergy("gpu" if cuda else None, name="tune_h200 loader")
    rows = []
    try:
        for size in (128, 1024):
            for name, batches in ways:
                rows.append(_timed(name, size, batches, energy, device, count, quick=quick))
    finally:
        energy.close()
    return rows


def _timed(
    name: str, size: int, batches: Any, energy: Any, device: Any, count: int, *, quick: bool
) -> dict[str, Any]:
    """Time whole epochs for two seconds or more; each batch is used for one small operation."""
    import torch

    def epoch() -> Any:
        total = torch.zeros((), device=device)
        for pictures, _ in batches(size):
            total += pictures[:, :, 0, 0].float().sum()
        return total.item()

    if not quick:
        epoch()
    begin_s, epochs = energy.now_s(), 0
    while energy.now_s() - begin_s < (0.0 if quick else 2.0) or not epochs:
        epoch()
        epochs += 1
    end_s = energy.now_s()
    energy.settle(end_s)
    used_j = energy.between(begin_s, end_s).energy_j
    waits = None
    if device.type == "cuda" and "flexible" in name:
        waits = _waits(batches, size)
    return {
        "way": name,
        "batch_size": size,
        "epoch_s": (end_s - begin_s) / epochs,
        "epoch_j": None if used_j is None else used_j / epochs,
        "samples": count,
        "waits_for_device": waits,
    }


def _waits(batches: Any, size: int) -> bool:
    """Return true if an epoch makes the host wait for the device."""
    import torch

    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in batches(size):
            pass
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False
