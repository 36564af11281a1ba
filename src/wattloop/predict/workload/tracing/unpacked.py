"""Models of Transformers look for several samples packed into one; a trace has none."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["samples_unpacked"]

NAME = "find_packed_sequence_indices"


@contextmanager
def samples_unpacked() -> Iterator[None]:
    """Positions count as those of whole samples in here.

    Transformers leaves the causal mask to the attention kernel (flash attention) when it sees from
    the positions that nothing is packed. On fake tensors it cannot see, and would make a mask,
    which another, slower kernel serves.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    original = getattr(masking, NAME, None)
    if original is None:
        yield
        return

    def none_found(position_ids: Any) -> None:
        original(position_ids)  # what looking costs is part of the step

    setattr(masking, NAME, none_found)
    try:
        yield
    finally:
        setattr(masking, NAME, original)
