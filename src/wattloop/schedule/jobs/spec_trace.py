"""What a scenario file says of a trace."""

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from wattloop.core.user_code import user_path
from wattloop.schedule.amounts import Count, PositiveSeconds, Seconds, Strict
from wattloop.schedule.jobs.scale import Scaling
from wattloop.schedule.jobs.traces.reading import read_trace
from wattloop.schedule.jobs.traces.trace import Trace

__all__ = ["TraceSpec"]

Positive = Annotated[float, Field(gt=0)]


class TraceSpec(Strict):
    """A trace, how it is written, and which part of it at which scale.

    `file` alone may be written as a text. `begin`, `end`, `head` and `sample` take a part;
    arrivals come `speed` times faster, jobs are `work` times longer on `gpus` times as many GPUs.
    """

    file: Annotated[str, Field(min_length=1)]
    format: str = ""
    columns: dict[str, str] = Field(default_factory=dict)
    unusable: Literal["", "refuse", "leave_out"] = ""
    reference: str = ""
    gpu_types: Literal["any", "match"] | dict[str, str] = "any"
    begin_s: Annotated[Seconds, Field(alias="begin")] = 0.0
    end_s: Annotated[PositiveSeconds | None, Field(alias="end")] = None
    head: Count | None = None
    sample: Count | None = None
    speed: Positive = 1.0
    work: Positive = 1.0
    gpus: Positive = 1.0

    @model_validator(mode="before")
    @classmethod
    def _plain_file(cls, value: Any) -> Any:
        if not isinstance(value, str | Mapping):
            raise ValueError("write the path of a trace, or file and what else there is to say")
        return {"file": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _in_order(self) -> "TraceSpec":
        if self.end_s is not None and self.end_s <= self.begin_s:
            raise ValueError(f"end is {self.end_s:g} s, not after begin, which is {self.begin_s:g}")
        return self

    @property
    def is_changed(self) -> bool:
        """Whether anything but the file is given."""
        return self != TraceSpec(file=self.file)

    def located(self, folder: Path) -> "TraceSpec":
        """With its files found from `folder`."""
        names = {"file": _located(self.file, folder)}
        if self.format.endswith((".yaml", ".yml")):
            names["format"] = _located(self.format, folder)
        return self.model_copy(update=names)

    def trace(self, seed: int) -> Trace:
        """The part of it that is asked for; `seed` is of the sample."""
        form = self.format
        stamps = (_stamp(self.file), _stamp(form) if form.endswith((".yaml", ".yml")) else None)
        whole = _read(self.file, form, tuple(self.columns.items()), self.unusable, stamps)
        end_s = math.inf if self.end_s is None else self.end_s
        scaling = Scaling(
            begin_s=self.begin_s,
            end_s=end_s,
            head=self.head,
            sample=self.sample,
            speed=self.speed,
            work=self.work,
            gpus=self.gpus,
        )
        return scaling.of(whole, seed)


@lru_cache(maxsize=1)
def _read(
    file: str,
    form: str,
    columns: tuple[tuple[str, str], ...],
    unusable: str,
    stamps: tuple[object, ...],
) -> Trace:
    """Kept, because every seed and policy of a campaign asks for it again."""
    del stamps  # a file that has changed since is read again
    trace = read_trace(file, form, dict(columns), unusable)
    for column in vars(trace).values():
        if isinstance(column, np.ndarray):
            column.flags.writeable = False
    return trace


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        found = user_path(file).stat()
    except OSError:
        return None  # whoever opens it says why
    return found.st_mtime_ns, found.st_size


def _located(file: str, folder: Path) -> str:
    return str(folder / user_path(file))
