"""Charts as Vega-Lite definitions: rows, marks, channels, layers, and the style of all figures.

A chart is a dictionary of Vega-Lite (https://vega.github.io/vega-lite/docs/). Its rows travel on
the name of their data until the chart is written, so that charts that show the same rows have them
in a page once.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from wattloop.analyze.table import RunTable, column_unit

Row = Mapping[str, Any]
Spec = dict[str, Any]
Rows = Sequence[Row] | Spec
"""Rows, or the data of `rows_data`, for rows that several charts show."""

PALETTE = ("#0067a5", "#d1500b", "#00875f", "#9b6bff", "#7a1f5c", "#17245f", "#1f4d3a", "#777f8c")
"""Told apart with any kind of colour blindness, and 3:1 against the background (a test checks)."""
GREY = "#6b7280"
BEST = "#111827"
INK, TICKS, GRID, BACKGROUND = "#374151", "#9ca3af", "#e5e7eb", "white"
_ON_DARK = (
    *("#56b4e9", "#ff8a3d", "#2fc79a", "#9d7bff", "#e0526f", "#d5f1ff", "#f7e463", "#8a94a3"),
)
DARK: dict[str, str] = {
    **dict(zip(PALETTE, _ON_DARK, strict=True)),
    **{GREY: "#a3adba", BEST: "#f3f4f6", INK: "#c6cdd6", TICKS: "#5c6675", GRID: "#2b333f"},
    BACKGROUND: "#171c24",
    "#f7f7f7": "#2b333f",
}
"""Colour of a light page -> the same on a dark one; pages replace them when they draw."""
WIDTH, HEIGHT = 460, 280
HINT = "hint"
"""Of a definition's `usermeta`."""
TYPES = {"Q": "quantitative", "N": "nominal", "O": "ordinal"}
CONFIG: Spec = {
    "font": "Helvetica, Arial, Liberation Sans, sans-serif",
    "background": BACKGROUND,
    "view": {"stroke": None},
    "title": {
        "fontSize": 14,
        "color": BEST,
        "subtitleFontSize": 11,
        "subtitleColor": GREY,
        "anchor": "start",
        "offset": 12,
        "fontWeight": 600,
    },
    "axis": {
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": 500,
        "titlePadding": 8,
        "labelSeparation": 8,
        "gridColor": GRID,
        "domainColor": TICKS,
        "tickColor": TICKS,
        "labelColor": INK,
        "titleColor": INK,
    },
    "legend": {
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": 500,
        "labelColor": INK,
        "titleColor": INK,
    },
    "header": {
        "labelFontSize": 12,
        "labelFontWeight": 600,
        "titleFontSize": 12,
        "labelColor": BEST,
        "titleColor": INK,
    },
    "text": {"color": INK},
    "range": {"category": list(PALETTE)},
    "line": {"strokeWidth": 2},
    "point": {"size": 45, "filled": True},
}


def channel(name: str, title: str | EllipsisType | None = ..., **more: Any) -> Spec:
    """Return an encoding of `field:Q` (or N, O); a title of None leaves the axis without one."""
    field, _, kind = name.rpartition(":")
    own = {} if title is ... else {"title": title}
    return {"field": field, "type": TYPES[kind], **own, **more}


def colour(field: str, order: Sequence[str], *, several: bool = True) -> Spec:
    """Return one colour per curve, with a legend where there are several."""
    if not several:
        return {"value": PALETTE[0]}
    legend = {"symbolOpacity": 1, "symbolType": "circle"}
    return channel(f"{field}:N", None, sort=list(order), legend=legend)


def in_turn(order: Sequence[str], values: Sequence[Any] = PALETTE, each: int = 1) -> Spec:
    """Return a scale with a value for each name in turn, each of them used `each` times."""
    domain = list(order)
    return {"domain": domain, "range": [values[n // each % len(values)] for n in range(len(order))]}


def mark(
    kind: str,
    style: Row | None = None,
    *,
    rows: Rows | None = None,
    where: str = "",
    **channels: Any,
) -> Spec:
    """Return a chart of one mark.

    Args:
        kind: `point`, `line`, `bar`, ...
        style: its properties.
        rows: its data, unless it shares those of its layers.
        where: an expression that a row must fulfil, such as `datum.best`.
        channels: encodings; a text is the `field:Q` of `channel`.
    """
    spec: Spec = {} if rows is None else {"data": rows_data(rows)}
    if where:
        spec["transform"] = [{"filter": where}]
    return {**spec, "mark": {"type": kind, **(style or {})}, **_encoding(channels)}


def layers(
    *parts: Spec, rows: Rows | None = None, size: tuple[float, float] | None = None, **channels: Any
) -> Spec:
    """Return marks above each other, with the data and channels that they share."""
    data = {} if rows is None else {"data": rows_data(rows)}
    sized = {} if size is None else {"width": size[0], "height": size[1]}
    return {**data, **sized, "layer": list(parts), **_encoding(channels)}


def ringed(where: str, name: str, size: int = 190, **channels: Any) -> tuple[Spec, Spec]:
    """Return a ring around the rows that fulfil a condition, and their name above it."""
    ring = {"size": size, "filled": False, "stroke": BEST, "strokeWidth": 1.6}
    text = {"dy": -16, "fontSize": 11, "color": BEST}
    return (
        mark("point", ring, where=where, **channels),
        mark("text", text, where=where, text=name, **channels),
    )


def _encoding(channels: Row) -> Spec:
    def encoded(given: Any) -> Any:
        if isinstance(given, list):
            return [encoded(each) for each in given]
        return channel(given) if isinstance(given, str) else given

    return (
        {"encoding": {name: encoded(each) for name, each in channels.items()}} if channels else {}
    )


def styled(chart: Spec, title: Any, subtitle: str, *, hint: str = "") -> Spec:
    """Return a whole chart with its title; the subtitle gives scope and provenance.

    `hint` is what a reader may do in a page: images are drawn without it (`with_hint`).
    """
    is_single = "layer" in chart or "mark" in chart
    return {
        **({"width": WIDTH, "height": HEIGHT} if is_single else {}),
        **chart,
        "title": {"text": title, "subtitle": subtitle},
        "config": CONFIG,
        **({"usermeta": {HINT: hint}} if hint else {}),
    }


def with_hint(spec: Spec) -> Spec:
    """Add what a reader can do on the page to the subtitle."""
    hint = (spec.get("usermeta") or {}).get(HINT)
    return _with_subtitle(spec, f"{spec['title']['subtitle']}; {hint}") if hint else spec


def with_source(chart: Spec, source: str) -> Spec:
    """Add the source to the subtitle, unless it is there already."""
    said = str(chart["title"]["subtitle"])
    if source in said:
        return chart
    return _with_subtitle(chart, f"{source}; {said}" if said else source)


def _with_subtitle(chart: Spec, subtitle: str) -> Spec:
    return {**chart, "title": {**chart["title"], "subtitle": subtitle}}


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


def rows_data(rows: Rows) -> Spec:
    return rows if isinstance(rows, dict) else {"name": RowsName(rows)}


def spec_of(chart: Spec) -> Spec:
    """Return the whole definition with its rows."""
    found: Spec = _filled(chart)
    return found


def chart_parts(chart: Spec) -> tuple[Spec, list[RowsName]]:
    """Return the definition without its data sets, and the data sets."""
    names = list(dict.fromkeys(_names_in(chart)))
    return {**chart, **({"datasets": dict.fromkeys(map(str, names))} if names else {})}, names


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
    if type(value) is not float:
        if type(value) is str or type(value) is int or value is None:
            return value
        if hasattr(value, "item"):  # a number of NumPy's
            value = value.item()
        if not isinstance(value, float):
            return value
    # JSON has no NaN: one of them would blank the page; eight figures are more than a pixel shows
    return float(f"{value:.8g}") if math.isfinite(value) else None


MOST_POINTS = 2_000
"""More points than this only cover each other."""
UNIT_NAMES = {"j": "J", "kj": "kJ", "wh": "Wh", "kwh": "kWh", "w": "W", "kw": "kW", "pct": "%"}


def drawn_rows(
    table: RunTable, always: Sequence[bool] | None = None, most: int = MOST_POINTS
) -> tuple[list[int], str]:
    """Return the rows to draw and a note: all, or those in `always` and a sample (fixed seed)."""
    if len(table) <= most:
        return list(range(len(table))), ""
    kept = np.zeros(len(table), dtype=bool) if always is None else np.array(always)
    rng = np.random.default_rng(0)
    kept[rng.choice(len(table), most, replace=False)] = True
    return [int(n) for n in np.flatnonzero(kept)], f"{int(kept.sum())} of {len(table)} runs drawn"


def with_tooltips(table: RunTable, number: int, columns: Sequence[str]) -> dict[str, Any]:
    """Return the values of a row under names that no chart can misread (`a.b`, `x[0]`)."""
    values = {f"t{place}": table.column(name)[number] for place, name in enumerate(columns)}
    return {"run": table.names[number], **values}


def tooltips(columns: Sequence[str]) -> list[Any]:
    """Return the tooltips of rows made by `with_tooltips`."""
    return ["run:N", *(channel(f"t{n}:N", name) for n, name in enumerate(columns))]


def titled(column: str) -> str:
    """Format `energy_wh` as `energy (Wh)`."""
    stem, _, unit = column.rpartition("_")
    if stem and column_unit(column) is not None:
        return f"{stem.replace('_', ' ')} ({UNIT_NAMES.get(unit.lower(), unit)})"
    return column.replace("_", " ")


def spread_over(values: Sequence[float]) -> str:
    """Return a logarithmic scale for positive numbers over two decades, else a linear one."""
    low, high = min(values), max(values)
    return "log" if low > 0 and high / low > 100 else "linear"


def fitted(values: Sequence[float]) -> Spec:
    """Return a scale around the values, with space for a label at its edge."""
    return {"type": spread_over(values), "zero": False, "nice": False, "padding": 26}
