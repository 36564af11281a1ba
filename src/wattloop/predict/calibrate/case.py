"""One thing the suite measures, as plain data."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["SECTIONS", "Case"]

SECTIONS = ("host", "kernels", "power", "steps", "profile")


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel, host call, power run, training step or profile to take.

    Attributes:
        section: which part of the suite it belongs to, one of `SECTIONS`.
        family: who builds it, such as `gemm` or `conv`.
        params: plain values that decide what runs; nothing else does.
    """

    section: str
    family: str
    params: Mapping[str, object]

    @property
    def key(self) -> str:
        """Names the case in files; equal cases have equal keys."""
        return f"{self.section}/{self.family}/{json.dumps(dict(self.params), sort_keys=True)}"
