"""Why a training failed: out of memory, numbers that are none, or anything else."""

import re
import traceback
from pathlib import Path

from wattloop.tune.progress import Status

OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|\bMemoryError\b|CUDNN_STATUS_ALLOC_FAILED|"
    r"CUBLAS_STATUS_ALLOC_FAILED|std::bad_alloc|RESOURCE_EXHAUSTED|cannot allocate memory",
    re.IGNORECASE,
)


NOT_A_NUMBER = re.compile(
    r"\b(?:loss|gradients?|input|output)\b[^.\n]{0,60}\b(?:nan|inf|infinite|non-?finite)\b",
    re.IGNORECASE,
)


def classified(error: BaseException) -> tuple[Status, str]:
    """What an exception of a training means, and what to say of it."""
    kind = type(error).__name__
    text = f"{kind}: {error}" if str(error) else kind
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        text += f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
    if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(f"{kind} {error}"):
        return Status.OUT_OF_MEMORY, text
    if isinstance(error, FloatingPointError) or NOT_A_NUMBER.search(str(error)):
        return Status.DIVERGED, text
    return Status.FAILED, text


def classified_text(output: str) -> Status:
    """What the last lines of a program that failed mean."""
    if OUT_OF_MEMORY.search(output):
        return Status.OUT_OF_MEMORY
    return Status.DIVERGED if NOT_A_NUMBER.search(output) else Status.FAILED
