"""Which GPUs a job may use, as CUDA is told."""

import os
from collections.abc import Sequence

from wattloop.control.lever import Lever
from wattloop.core.errors import ConfigError

__all__ = ["job_gpus"]

VARIABLE = "CUDA_VISIBLE_DEVICES"


def job_gpus(levers: Sequence[Lever]) -> str | None:
    """Numbers of the GPUs in CUDA_VISIBLE_DEVICES, such as `0,3`; None for all where it is not set.

    Numbers there are taken as NVML's, which they are with CUDA_DEVICE_ORDER=PCI_BUS_ID and on
    machines with one kind of card. As for CUDA, what follows an entry that names no GPU is ignored.

    Raises:
        ConfigError: it hides every GPU, or names none that is known: the caps of other people's
            cards are not ours to set.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return None
    numbers: list[str] = []
    for word in text.split(","):
        number = _number(word.strip(), levers)
        if number is None:
            break
        numbers.append(number)
    if not numbers:
        raise ConfigError(
            f"{VARIABLE} is '{text}', which names no GPU with a power limit; say which GPUs "
            "are the job's (--gpus, or gpus= of a CapTuner)"
        )
    return ",".join(numbers)


def _number(word: str, levers: Sequence[Lever]) -> str | None:
    names = [x.name.partition("/")[0].removeprefix("gpu:") for x in levers]
    if word.isdigit():
        return word if word in names else None
    if not word:
        return None
    found = {n for n, x in zip(names, levers, strict=True) if x.device.startswith(f"nvidia:{word}")}
    return found.pop() if len(found) == 1 else None
