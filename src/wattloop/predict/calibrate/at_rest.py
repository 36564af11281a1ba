"""Whether the GPU is free to be measured: what others do there would be in every figure."""

import time

from wattloop.core.errors import ConfigError
from wattloop.core.units import format_bytes
from wattloop.predict.calibrate.bench import Bench
from wattloop.predict.calibrate.sensor import Sensor

__all__ = ["check_at_rest", "refusal"]

FREE_SHARE = 0.5
"""Of the memory. Pools and the larger cases take a third; a desktop holds less than the rest."""
BUSY_SHARE = 0.2
"""A desktop draws its windows with less."""
LOOKS = 4
PAUSE_S = 0.2
"""The driver's utilisation is of the past sixth of a second to second."""


def check_at_rest(bench: Bench, sensor: Sensor) -> None:
    """Refuse a GPU that others use; nothing has been put on it by then but a context.

    Raises:
        ConfigError: its memory is short, it is at work, or it cannot be used at all.
    """
    if not bench.on_gpu:
        return
    try:
        free_bytes, total_bytes = bench.torch.cuda.mem_get_info(bench.device)
    except RuntimeError as error:  # reserved for one process, or not a byte left for a context
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"--gpu {bench.device.index}: cannot be used ({reason}); see what runs on it with "
            "'nvidia-smi' or 'rocm-smi'"
        ) from None
    shares = []
    for look in range(LOOKS):
        if look:
            time.sleep(PAUSE_S)
        shares.append(sensor.busy_share())
    reason = refusal(free_bytes, total_bytes, shares)
    if reason:
        raise ConfigError(
            f"--gpu {bench.device.index}: {reason}; see what runs on it with 'nvidia-smi' or "
            "'rocm-smi', and wait for it to end or take another GPU"
        )


def refusal(free_bytes: float, total_bytes: float, busy_shares: list[float | None]) -> str:
    """Why not to measure; empty when nothing is in the way.

    Busy is who is so at every look: starting a program is a moment's work for a GPU as well.
    """
    if free_bytes < FREE_SHARE * total_bytes:
        return (
            f"only {format_bytes(free_bytes)} of its {format_bytes(total_bytes)} of memory are "
            "free, and half are needed"
        )
    known = [share for share in busy_shares if share is not None]
    if known and min(known) > BUSY_SHARE:
        return f"it is busy {min(known):.0%} of the time with the work of others"
    return ""
