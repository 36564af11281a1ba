"""Promises of records: they survive JSON, and data of another shape are reported by field."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import pytest

from wattloop.core.records import from_plain, shape_fault, to_plain
from wattloop.core.results import DomainEnergy, WindowResult

ENERGY = {"name": "gpu:0", "scope": "gpu", "energy_j": 1, "uncertainty_j": 0.1}
ENERGY |= {"provenance": "measured", "source": "NVML", "of_a_later_version": []}
WINDOW = {"name": "w", "window_id": 1, "parent_id": None, "begin_s": 0, "end_s": 1.5}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        ({"metrics": {"loss": 0.5}}, ""),
        ({"name": 7}, "name: not text"),
        ({"window_id": True}, "window_id: not a whole number"),
        ({"end_s": 10**400}, "end_s: not a number"),
        ({"domains": [{**ENERGY, "scope": "x"}]}, "domains.0.scope: not one of"),
        ({"domains": "x"}, "domains: not a list"),
        ({"metrics": []}, "metrics: not an object"),
        ({"missing": [{"name": "dram"}]}, "missing.0.reason: missing"),
    ],
)
def test_an_error_names_its_field(change: dict[str, Any], fault: str) -> None:
    """Fields of later versions are not an error."""
    found = shape_fault({**WINDOW, "domains": [ENERGY], **change}, WindowResult)
    assert found.startswith(fault) and bool(found) == bool(fault)


def test_a_written_record_has_the_shape_of_its_class() -> None:
    """A stored result is never refused."""
    whole = WindowResult("w", 1, None, 0.0, 1.0).to_dict()
    assert shape_fault(whole, WindowResult) == ""
    assert shape_fault(None, DomainEnergy) == "it: not an object"


class Colour(Enum):
    RED = "red"


class Point(NamedTuple):
    x: float
    y: float | None = None


@dataclass(frozen=True)
class Drawing:
    colour: Colour
    points: tuple[Point, ...] = ()
    pairs: tuple[tuple[float, float], ...] = ()
    named: Mapping[str, Point] = field(default_factory=dict)
    last: Point | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    texts: Sequence[str] = ()


def test_a_record_comes_back_from_its_json() -> None:
    """Enums, tuples and records within records are restored with their types."""
    whole = Drawing(
        Colour.RED,
        points=(Point(1.0), Point(2.0, 3.0)),
        pairs=((0.0, 1.0),),
        named={"a": Point(4.0)},
        last=Point(5.0),
        facts={"free": [1, None]},
        texts=["a"],
    )
    plain = json.loads(json.dumps(to_plain(whole)))
    assert plain["points"] == [{"x": 1.0, "y": None}, {"x": 2.0, "y": 3.0}]
    assert from_plain(Drawing, plain) == whole
    assert from_plain(Drawing, {"colour": "red"}) == Drawing(Colour.RED)


def test_fields_of_a_later_version_are_left_out() -> None:
    """An older version reads the records of a newer one, on every level."""
    later = {"x": 1.0, "y": None, "z": 2.0}
    assert from_plain(Drawing, {"colour": "red", "last": later, "style": 1}).last == Point(1.0)


@pytest.mark.parametrize(
    "data", [{}, {"colour": "blue"}, {"colour": "red", "last": [1]}, {"colour": "red", "named": 1}]
)
def test_other_data_are_refused(data: dict[str, Any]) -> None:
    """Callers translate these errors into a message that names the file or trial."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_plain(Drawing, data)
