"""Promises of cuDNN's workspaces: they exist where tensor cores need copies, and only there."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from wattloop.predict import trace  # noqa: E402 - needs torch
from wattloop.predict.workload.workload import Workload  # noqa: E402 - needs torch

BATCH, CHANNELS, SIDE = 16, 64, 32


def traced(
    precision: str, *, kernel: int = 3, training: bool = False, **options: object
) -> Workload:
    """Trace one convolution that keeps the size of its picture."""
    channels = int(options.pop("channels", CHANNELS))  # type: ignore[call-overload]  # a number
    last = options.pop("channels_last", False)
    layer = torch.nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False, **options)
    x = torch.empty(BATCH, channels, SIDE, SIDE)
    if last:
        layer, x = (
            layer.to(memory_format=torch.channels_last),
            x.to(memory_format=torch.channels_last),
        )
    return trace(layer, x, precision=precision, training=training)


def copies_bytes(kernel: int = 3, size: int = 4) -> int:
    """Return the bytes of a copy of picture, result and weight."""
    return size * (2 * BATCH * CHANNELS * SIDE**2 + CHANNELS**2 * kernel**2)


def test_tensor_cores_convolve_copies() -> None:
    """In tf32 a 3x3 convolution needs its three tensors once more; in fp32 it does not."""
    extra = traced("tf32").peak_bytes - traced("fp32").peak_bytes
    assert extra == copies_bytes()


def test_a_backward_pass_needs_them_too() -> None:
    """A workspace lives as long as its call, so calls do not add up."""
    plain = traced("tf32", training=True, groups=2).peak_bytes
    extra = traced("tf32", training=True).peak_bytes - plain
    assert 0 < extra <= 2 * copies_bytes()


def test_winograds_tiles_in_fp32() -> None:
    """A gradient takes 36 numbers for each 4 x 4 tile; that of a 5x5 weight takes none."""
    tiles_bytes = 4 * 36 * (BATCH * (SIDE // 4) ** 2 * 2 * CHANNELS + CHANNELS**2)
    three, five = (traced("fp32", training=True, kernel=kernel) for kernel in (3, 5))
    assert three.peak_bytes - five.peak_bytes == pytest.approx(tiles_bytes, rel=0.1)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": 1},
        {"groups": CHANNELS},
        {"channels": 12},
        {"channels_last": True},
    ],
    ids=["one pixel", "depthwise", "odd channels", "channels last"],
)
def test_no_workspace_without_copies(options: dict[str, object]) -> None:
    """A product, a kernel without tensor cores, or tensors in the right layout."""
    with_tensor_cores = traced("tf32", **options)  # type: ignore[arg-type]  # by name
    without = traced("fp32", **options)  # type: ignore[arg-type]  # by name
    assert with_tensor_cores.peak_bytes == without.peak_bytes
