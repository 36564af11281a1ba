"""Errors of predictions name fields; on a command line those are options."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from wattloop.core.errors import ConfigError

__all__ = ["with_axes_named", "with_options_named"]

FIELDS = (
    "model|gpus|gpu|batch|seq|image|precision|optimizer|style|accumulate|cap|clock|head|input|"
    "samples-per-second|network|host-speed|estimator|calibration|sweep|compare|inference|steps|"
    "epochs|samples|plot|save-workload"
)
BEGINS_WITH_FIELD = re.compile(rf"({FIELDS})( .*)?: ", re.DOTALL)


@contextmanager
def with_options_named() -> Iterator[None]:
    """`batch 0: must be ...` as `--batch 0: must be ...`."""
    try:
        yield
    except ConfigError as error:
        text = str(error)
        raise ConfigError(f"--{text}" if BEGINS_WITH_FIELD.match(text) else text) from None


@contextmanager
def with_axes_named(names: Iterable[str]) -> Iterator[None]:
    """`cap 100: ...` as `sweep cap=100: ...`, and `gpu x: ...` as `compare x: ...`.

    Whoever varies a field has not given the option of its name.
    """
    try:
        yield
    except ConfigError as error:
        text = str(error)
        field, _, rest = text.partition(" ")
        if field not in names:
            raise
        asked = f"compare {rest}" if field == "gpu" else f"sweep {field}={rest}"
        raise ConfigError(asked) from None
