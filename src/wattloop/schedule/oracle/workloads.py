"""Workloads of job kinds: shipped ones first, so that the thesis's scenario needs no torch."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from wattloop.core.errors import ConfigError
from wattloop.schedule.jobs.kind import JobKind

if TYPE_CHECKING:
    from wattloop.predict.request import Question
    from wattloop.predict.workload.workload import Workload

__all__ = ["SHIPPED", "question_of", "shipped_workload", "workload_of"]

SHIPPED = Path(__file__).with_name("saved_workloads")
"""Made by scripts/make_workloads.py."""


def workload_of(kind: JobKind, batch: int) -> "Workload":
    """One training step of the kind with `batch` samples on a GPU: shipped, kept, or traced.

    Raises:
        ConfigError: it is none of ours, was never traced here, and cannot be traced now; the
            message says what is missing.
    """
    from wattloop.predict.request import asked_workload
    from wattloop.predict.workload.files import load_workload

    path = shipped_workload(kind, batch)
    if path.is_file():
        return load_workload(path)
    try:
        return asked_workload(question_of(kind, batch), cache=True)
    except ConfigError as error:
        raise ConfigError(f"job kind {kind.label}, batch {batch}: {error}") from None


def shipped_workload(kind: JobKind, batch: int) -> Path:
    """Where its workload would be, if it were shipped."""
    words = [kind.model.removeprefix("hf:").rpartition("/")[2], kind.precision, f"b{batch}"]
    if kind.sequence is not None:
        words.append(f"s{kind.sequence}")
    return SHIPPED / f"{re.sub(r'[^a-z0-9]+', '-', '-'.join(words).lower())}.json.gz"


def question_of(kind: JobKind, batch: int) -> "Question":
    """What `predict` would be asked."""
    from wattloop.predict.request import Question

    return Question(
        model=kind.model, batch=batch, seq=kind.sequence, precision=kind.precision or None
    )
