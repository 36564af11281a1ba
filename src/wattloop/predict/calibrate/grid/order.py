"""The order of cases: being cut off at any point leaves an even sample of the whole grid."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from wattloop.predict.calibrate.case import Case

__all__ = ["cases_of", "interleaved", "shuffled"]


def cases_of(section: str, family: str, rows: Iterable[Mapping[str, object]]) -> list[Case]:
    """Cases without repeats, in a random but repeatable order."""
    unique = {case.key: case for case in (Case(section, family, row) for row in rows)}
    return shuffled(unique.values())


def shuffled(cases: Iterable[Case]) -> list[Case]:
    """The same order for the same cases, always."""
    ordered = sorted(cases, key=lambda case: case.key)
    random.Random(len(ordered)).shuffle(ordered)
    return ordered


def interleaved(families: Sequence[Sequence[Case]]) -> Iterator[Case]:
    """All families advance at the same share of their length; a case of two comes once."""
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
