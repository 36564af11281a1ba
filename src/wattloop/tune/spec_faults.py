"""Faults of the specification of a search in words: file, line, field, what is allowed."""

from collections.abc import Iterable

from pydantic import BaseModel, ValidationError

from wattloop.hardware import yaml_faults
from wattloop.hardware.lined_yaml import LinedData
from wattloop.hardware.yaml_faults import Fault, faults_of

__all__ = ["said", "said_of"]


def said(faults: Iterable[Fault], source: LinedData | None) -> str:
    """One line per fault, in the order of the file."""
    written = [(_as_written(place, source), message) for place, message in faults]
    return yaml_faults.said(written, source, otherwise="search")


def said_of(error: ValidationError, model: type[BaseModel], source: LinedData | None) -> str:
    """The same for what pydantic found."""
    return said(faults_of(error, model), source)


def _as_written(place: tuple[str | int, ...], source: LinedData | None) -> tuple[str | int, ...]:
    """`strategy` is `method` where the file says so."""
    if place[:1] == ("strategy",) and source is not None and ("method",) in source.lines:
        return ("method", *place[1:])
    return place
