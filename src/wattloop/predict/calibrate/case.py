"""Case of the calibration suite as plain data, its typed parameters, and the order of cases."""

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SECTIONS = ("host", "kernels", "power", "steps", "waiting", "profile")


@dataclass(frozen=True, slots=True)
class CalibrationCase:
    """Kernel, host call, power run, training step or profile to measure.

    Attributes:
        section: which part of the suite it belongs to, one of `SECTIONS`.
        family: that builds it, such as `gemm` or `conv`.
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


def cases_of(
    section: str, family: str, rows: Iterable[Mapping[str, object]]
) -> list[CalibrationCase]:
    """Return cases without repeats, in a random but repeatable order."""
    unique = {case.key: case for case in (CalibrationCase(section, family, row) for row in rows)}
    return shuffled(unique.values())


def shuffled(cases: Iterable[CalibrationCase]) -> list[CalibrationCase]:
    """Shuffle with a fixed seed."""
    ordered = sorted(cases, key=lambda case: case.key)
    random.Random(len(ordered)).shuffle(ordered)
    return ordered


def interleaved(families: Sequence[Sequence[CalibrationCase]]) -> Iterator[CalibrationCase]:
    """Interleave families at the same share of their length; a case of two families comes once."""
    ranked = (
        ((position + 0.5) / len(family), number, case)
        for number, family in enumerate(families)
        for position, case in enumerate(family)
    )
    seen: set[str] = set()
    for _, _, case in sorted(ranked, key=lambda item: item[:2]):
        if case.key not in seen:
            seen.add(case.key)
            yield case


class Params:
    """Typed access to a case's plain values."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values: Mapping[str, Any] = values

    def number(self, name: str, default: int | None = None) -> int:
        return int(self._values[name] if default is None else self._values.get(name, default))

    def text(self, name: str, default: str | None = None) -> str:
        return str(self._values[name] if default is None else self._values.get(name, default))

    def flag(self, name: str) -> bool:
        """Return True or False; absent is False."""
        return bool(self._values.get(name, False))

    def numbers(self, name: str) -> list[int]:
        return [int(value) for value in self._values[name]]
