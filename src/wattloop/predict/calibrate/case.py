"""One thing the suite measures, as plain data."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["SECTIONS", "Case"]

SECTIONS = ("host", "kernels", "power", "steps", "waiting", "profile")


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel, host call, power run, training step or profile to take.

    Attributes:
        section: which part of the suite it belongs to, one of `SECTIONS`.
        family: who builds it, such as `gemm` or `conv`.
        params: plain values that decide what runs; nothing else does.
        key: names the case in files; equal cases have equal keys.
    """

    section: str
    family: str
    params: Mapping[str, object]
    key: str = field(init=False)

    def __post_init__(self) -> None:
        params = json.dumps(self.params, sort_keys=True)
        object.__setattr__(self, "key", f"{self.section}/{self.family}/{params}")
