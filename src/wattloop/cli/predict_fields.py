"""Errors of predictions name fields; on a command line those are options."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from wattloop.core.errors import ConfigError

__all__ = ["with_options_named"]

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
