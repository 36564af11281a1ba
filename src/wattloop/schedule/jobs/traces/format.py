"""How a trace is written: which of its columns means what, in which unit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import nearest

__all__ = ["FIELDS", "UNITS", "TraceFormat", "with_columns"]

TIMES = ("s", "ms", "us", "min", "h", "d")
UNITS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("arrival", "start", "end", "deadline"), (*TIMES, "date")),
    "duration": (*TIMES, "clock"),
    "gpus": ("count", "percent", "tres"),
    "gpu_type": ("text", "tres"),
    "batch": ("per_gpu", "global"),
    "steps": ("global", "per_worker"),
}
"""Field -> units it may have, the usual one first. `date` is ISO 8601, `clock` is [D-]HH:MM:SS,
`tres` is Slurm's `cpu=8,gres/gpu=2`; `per_worker` steps are those of all GPUs added up."""
FIELDS = (
    *("arrival", "start", "end", "duration", "gpus", "instances", "user", "name", "state"),
    *("model", "gpu_type", "batch", "steps", "deadline", "priority"),
)
"""What a column can mean."""
EITHER = (("duration",), ("start", "end"), ("model", "steps"))
"""One of these says how much there was to do."""


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A column mapping.

    Attributes:
        name: of the format.
        columns: field -> names that a column with this meaning may have, the best first.
        units: field -> unit, where it is not the usual one.
        separator: between the values of a row.
        layouts: names of the columns, for files that do not begin with them; by their number.
        leave_out: field -> patterns (`*` is anything) of rows that are no finished jobs.
        empty: field -> what an empty value stands for.
        unusable: what happens to rows with wrong values: `refuse` or `leave_out`.
        marks: names that a file must have to be taken for this format unasked.
        model_batch: pattern that parts a model's name from its batch, when both are in one value.
        about, source: for people.
    """

    name: str
    columns: Mapping[str, tuple[str, ...]]
    units: Mapping[str, str] = field(default_factory=dict)
    separator: str = ","
    layouts: tuple[tuple[str, ...], ...] = ()
    leave_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    empty: Mapping[str, float] = field(default_factory=dict)
    unusable: str = "refuse"
    marks: tuple[str, ...] = ()
    model_batch: str = ""
    about: str = ""
    source: str = ""

    def unit(self, name: str) -> str:
        """Of a field."""
        return self.units.get(name) or UNITS.get(name, ("",))[0]

    def positions(self, header: Sequence[str]) -> dict[str, int]:
        """Field -> column of a file with these names; fields it does not have are left out."""
        places = {name.strip().lower(): place for place, name in reversed([*enumerate(header)])}
        found = {}
        for name, choices in self.columns.items():
            known = [places[choice.lower()] for choice in choices if choice.lower() in places]
            if known:
                found[name] = known[0]
        return found

    def missing(self, found: Mapping[str, int]) -> list[str]:
        """Fields without which the file is of no use, in words."""
        lacking = [name for name in ("arrival", "gpus") if name not in found]
        if not any(all(name in found for name in way) for way in EITHER):
            lacking.append("duration")
        return [self._said(name) for name in lacking]

    def _said(self, name: str) -> str:
        choices = self.columns.get(name, ())
        return f"{name} (expected as {' or '.join(choices)})" if choices else name


def with_columns(base: TraceFormat, given: Mapping[str, str]) -> TraceFormat:
    """The format with some columns named otherwise: `{"arrival": "t0:ms"}`.

    Raises:
        ConfigError: a field or a unit that does not exist.
    """
    columns, units = dict(base.columns), dict(base.units)
    for name, column in given.items():
        if name not in FIELDS:
            raise ConfigError(f"column {name}={column}: unknown field; {nearest(name, FIELDS)}")
        before, _, unit = column.rpartition(":")
        if before and unit in UNITS.get(name, ()):
            column, units[name] = before, unit  # noqa: PLW2901 - the name without its unit
        elif name in units and name in base.columns and column not in base.columns[name]:
            del units[name]  # that unit was said of another column
        columns[name] = (column,)
    return replace(base, columns=columns, units=units)
