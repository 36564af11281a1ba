"""Which GPUs a job may use, as CUDA is told."""

import os
from collections.abc import Sequence

from wattloop.control.lever import Lever

__all__ = ["job_gpus"]


def job_gpus(levers: Sequence[Lever]) -> str | None:
    """Numbers of the GPUs in CUDA_VISIBLE_DEVICES, such as `0,3`; None for all of them.

    Numbers there are taken as NVML's, which they are with CUDA_DEVICE_ORDER=PCI_BUS_ID and on
    machines with one kind of card.
    """
    words = [w.strip() for w in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if w.strip()]
    numbers = []
    for word in words:
        if word.isdigit():
            numbers.append(word)
            continue
        match = [x for x in levers if x.device.startswith(f"nvidia:{word}")]
        if not match:
            return None
        numbers.append(match[0].name.partition("/")[0].removeprefix("gpu:"))
    return ",".join(numbers) or None
