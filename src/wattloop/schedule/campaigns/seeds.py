"""Seeds as people write them."""

import re

from wattloop.core.errors import ConfigError

__all__ = ["seeds_from", "seeds_text"]

MOST = 1_000_000


def seeds_from(text: str) -> tuple[int, ...]:
    """`10` is the first ten, `0..99` a stretch with both ends, `3,5,7` those.

    Raises:
        ConfigError: not of these forms, none, or one of them twice.
    """
    found: list[int] = []
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        stretch = re.fullmatch(r"(\d+)\s*\.\.\s*(\d+)", part)
        if stretch is not None:
            first, last = int(stretch[1]), int(stretch[2])
            if last < first:
                raise ConfigError(f"--seeds {text}: {part} is empty; write {last}..{first}")
            _few_enough(text, last - first + 1)
            found += range(first, last + 1)
        elif not part.isascii() or not part.isdecimal():
            raise ConfigError(f"--seeds {text}: write how many (10), 0..99, or a list (3,5,7)")
        elif len(parts) == 1:
            _few_enough(text, int(part))
            found = list(range(int(part)))
        else:
            found.append(int(part))
    if not found:
        raise ConfigError(f"--seeds {text}: none; one is the least")
    if len(set(found)) < len(found):
        twice = next(seed for seed in found if found.count(seed) > 1)
        raise ConfigError(f"--seeds {text}: {twice} is given twice; it would count twice")
    return tuple(found)


def seeds_text(seeds: tuple[int, ...]) -> str:
    """The shortest that `seeds_from` reads back: `0..9`, or `3,5,7`."""
    if len(seeds) > 1 and seeds == tuple(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}..{seeds[-1]}"
    if len(seeds) == 1:
        return f"{seeds[0]}..{seeds[0]}"
    return ",".join(map(str, seeds))


def _few_enough(text: str, count: int) -> None:
    if count > MOST:
        raise ConfigError(f"--seeds {text}: {count} seeds are more than anybody waits for")
