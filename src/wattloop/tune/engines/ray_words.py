"""How people ask for slots of a Ray cluster; apart, so that other searches load none of it."""

import re

from wattloop.core.errors import ConfigError

__all__ = ["slots_asked"]


def slots_asked(text: str) -> tuple[int | None, int] | None:
    """How many slots, and how many GPUs each: `ray`, `ray:4`, `ray:4x2`; None for other words.

    Raises:
        ConfigError: it begins with `ray` and goes on otherwise.
    """
    if not text.startswith("ray"):
        return None
    found = re.fullmatch(r"ray(?::([1-9]\d*)(?:x([1-9]\d*))?)?", text)
    if found is None:
        raise ConfigError(
            f"parallel {text}: write 'ray' for every GPU of the cluster, 'ray:4' for four of them, "
            "or 'ray:4x2' for four trainings on two GPUs each"
        )
    count, gpus = found.groups()
    return None if count is None else int(count), int(gpus or 1)
