"""Which GPUs belong together when several trainings run at once."""

import os

from wattloop.core.errors import ConfigError

__all__ = ["device_groups"]

VISIBLE = "CUDA_VISIBLE_DEVICES"


def device_groups(asked: int | str) -> list[tuple[str, ...]]:
    """`2` is two GPUs with one training each; `0,1;2,3` is two pairs, `gpu:0` one GPU.

    Raises:
        ConfigError: not numbers, a GPU that is named twice, or more than CUDA_VISIBLE_DEVICES has.
    """
    text = str(asked).strip()
    seen = os.environ.get(VISIBLE)
    if text.isdigit() and ";" not in text:
        count = int(text)
        numbers = [str(n) for n in range(count)] if seen is None else seen.split(",")
        if not 1 <= count <= len(numbers):
            raise ConfigError(f"parallel {asked}: {VISIBLE} is '{seen}'; ask for fewer")
        return [(number.strip(),) for number in numbers[:count]]
    groups = [
        tuple(word.strip().removeprefix("gpu:") for word in group.split(",") if word.strip())
        for group in text.split(";")
    ]
    named = [number for group in groups for number in group]
    if not all(groups) or not all(number.isdigit() for number in named):
        raise ConfigError(
            f"parallel {asked}: write how many GPUs, or groups such as 0;1 or 0,1;2,3"
        )
    if len(set(named)) < len(named):
        raise ConfigError(f"parallel {asked}: a GPU is named twice; trainings must not share one")
    return groups
