"""Rows of a chart, outside its definition until the chart is written.

Altair copies, walks and checks all that a chart holds at every step of making it: thirty
columns of
two thousand runs took ten seconds. A name it leaves alone, so the rows travel on the name of
their
data. Charts that show the same rows have them in a page once.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


class RowsName(str):
    """The name of a data set that carries its rows; equal rows have one name.

    Attributes:
        columns, values: names of columns, and the values of each row in their order.
        text: the same as JSON, names of columns once: `{"columns": [...], "rows": [[...], ...]}`.
    """

    columns: Sequence[str]
    values: Sequence[Sequence[Any]]
    text: str

    def __new__(cls, rows: Sequence[Row]) -> "RowsName":
        """Name the data set by its content; values that are not finite become null."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        values = [[_plain(row.get(key)) for key in columns] for row in rows]
        text = json.dumps({"columns": columns, "rows": values}, separators=(",", ":"))
        found = super().__new__(cls, f"rows-{hashlib.blake2s(text.encode()).hexdigest()[:12]}")
        found.columns, found.values = columns, values
        found.text = text
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as Vega-Lite needs them; a page uses `text` alone."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.values]


def rows_data(rows: Sequence[Row]) -> Any:
    """Return the data of a chart for many rows."""
    import altair as alt

    return alt.NamedData(name=RowsName(rows))


def spec_of(chart: Any) -> dict[str, Any]:
    """Return the whole Vega-Lite definition with its rows."""
    spec: dict[str, Any] = _filled(_definition(chart))
    return spec


def chart_parts(chart: Any) -> tuple[dict[str, Any], list[RowsName]]:
    """Return the definition without its data sets, and the data sets."""
    spec = _definition(chart)
    names = list(dict.fromkeys(_names_in(spec)))
    if names:
        spec["datasets"] = dict.fromkeys(map(str, names))
    return spec, names


def _definition(chart: Any) -> dict[str, Any]:
    spec: dict[str, Any] = chart.to_dict(validate=False)  # Altair checked each part as it was made
    return spec


def _filled(part: Any) -> Any:
    if isinstance(part, Mapping):
        name = part.get("name")
        if isinstance(name, RowsName):
            return {"values": name.rows}
        return {key: _filled(value) for key, value in part.items()}
    return [_filled(each) for each in part] if isinstance(part, list) else part


def _names_in(part: Any) -> list[RowsName]:
    if isinstance(part, RowsName):
        return [part]
    if isinstance(part, Mapping):
        return [name for value in part.values() for name in _names_in(value)]
    if isinstance(part, list):
        return [name for value in part for name in _names_in(value)]
    return []


def _plain(value: Any) -> Any:
    if type(value) is str or type(value) is int or value is None:
        return value
    if hasattr(value, "item"):  # a number of NumPy's
        value = value.item()
    if not isinstance(value, float):
        return value
    # JSON has no NaN: one of them would blank the page; eight figures are more than a pixel shows
    return float(f"{value:.8g}") if math.isfinite(value) else None
