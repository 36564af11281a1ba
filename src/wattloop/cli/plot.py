"""Figures on a terminal: Vega-Lite definitions drawn with braille dots, or with plain characters.

The figures are those of reports (`report.figures`), so that a terminal, a file and a page show the
same rows. Points, lines, areas, rules, labels and bars are drawn; others are named as not drawable.
"""

import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from wattloop.cli.output import PLAIN_TERMINALS, is_terminal, say, shown_width, terminal_room
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.text import escaped
from wattloop.core.units import format_number

if TYPE_CHECKING:
    from wattloop.cli.app import StoreOptions
    from wattloop.report.document import Document

Row = Mapping[str, Any]
ROOM = 80
"""Columns where no terminal tells its own."""
HEIGHT = 15
LEAST_ROOM = 30
MARKERS = "*+ox#@%&"
"""One per curve where colours cannot tell curves apart."""
COLOURS = (34, 33, 32, 35, 36, 31, 90, 37)
"""ANSI codes near the palette of the figures."""
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character by row and column of its dots."""
FILTER = re.compile(r"(!?)datum\.(\w+)")
CURVES = ("line", "point", "area", "circle", "square", "tick")


class NotDrawable(Exception):
    """A figure of a kind that a terminal cannot show, such as a heat map."""


def plot(
    given: "StoreOptions",
    which: str,
    noun: str,
    *,
    figure: str | None,
    output: str | None,
    first: Sequence[str],
) -> None:
    """Draw figures of a subject's report here, or into a file.

    Args:
        given: the store, and where JSON goes.
        which: identifier, its beginning, name, or "last".
        noun: of the subject, such as RUN.
        figure: its name, or "all"; None for the first that exists of `first`.
        output: the file.
        first: how names of figures begin.
    """
    charts, title = _charts(given, which, noun)
    chosen = _chosen(charts, figure, first)
    if output is not None:
        from wattloop.report.figures.render import save_one

        save_one(charts if output.endswith(".html") else chosen, user_path(output), title=title)
        say(f"wattloop: {output} written")
    data = {"figures": list(charts), "shown": list(chosen), "file": output}
    given.present(lambda: data, lambda: None if output else _print_charts(chosen, list(charts)))


def _charts(given: "StoreOptions", which: str, noun: str) -> tuple[dict[str, Any], str]:
    """Return the figures of the report on the subject by name, and its title."""
    from wattloop.report.document import Chart

    document = _report(given, which, noun)
    blocks = (block for section in document.sections for block in section.blocks)
    charts = {block.name: block.chart for block in blocks if isinstance(block, Chart)}
    if not charts:
        raise ConfigError(
            f"{document.title}: there is nothing to draw; no sample or trial is stored"
        )
    return charts, document.title


def _report(given: "StoreOptions", which: str, noun: str) -> "Document":
    from wattloop.report.run import report_of_run
    from wattloop.report.subject import EXPERIMENTS
    from wattloop.store.experiments import find_experiment
    from wattloop.store.runs import find_run

    with given.open_store() as store:
        if noun == "RUN":
            return report_of_run(store, find_run(store, which, by_name=True))
        kind = noun.lower()
        return EXPERIMENTS[kind](store, find_experiment(store, which, kind))


def _chosen(charts: Mapping[str, Any], figure: str | None, first: Sequence[str]) -> dict[str, Any]:
    if figure == "all":
        return dict(charts)
    if figure is None:
        begin = next((text for text in first if any(n.startswith(text) for n in charts)), "")
        figure = next(name for name in charts if name.startswith(begin))
    if figure not in charts:
        raise ConfigError(f"--figure {figure}: choose one of {', '.join(charts)}, or all")
    return {figure: charts[figure]}


def _print_charts(chosen: Mapping[str, Any], names: Sequence[str]) -> None:
    for name, chart in chosen.items():
        try:
            sys.stdout.write("\n".join(render_chart(chart)) + "\n")
        except NotDrawable as reason:
            say(f"{name}: {reason}; write it into a file with --figure {name} -o {name}.svg")
    others = [name for name in names if name not in chosen]
    if others:
        say(f"other figures, by --figure: {', '.join(others)}")


def render_chart(chart: Any, room: int | None = None, height: int = HEIGHT) -> list[str]:
    """Return the lines of a figure that fit into `room` columns (default: the terminal's).

    Raises:
        NotDrawable: with the reason.
    """
    from wattloop.report.figures.chart import spec_of

    spec = spec_of(chart)
    room = max(LEAST_ROOM, room or terminal_room(sys.stdout) or ROOM)
    title = spec.get("title") or {}
    texts = title if isinstance(title, Mapping) else {"text": title}
    lines = [_short(str(text), room) for text in (texts.get("text"), texts.get("subtitle")) if text]
    for panel in _panels(spec):
        lines += panel.lines(room, height)
    return lines


@dataclass(slots=True)
class Layer:
    """Rows of one mark, with the channels that place and colour them."""

    mark: str
    rows: list[Row]
    encoding: Mapping[str, Any]

    def field(self, channel: str) -> str | None:
        found = self.encoding.get(channel)
        return found.get("field") if isinstance(found, Mapping) else None

    def is_quantity(self, channel: str) -> bool:
        found = self.encoding.get(channel)
        return isinstance(found, Mapping) and found.get("type") == "quantitative"


@dataclass(slots=True)
class Panel:
    """Layers on the same axes."""

    title: str
    layers: list[Layer] = field(default_factory=list)

    def lines(self, room: int, height: int) -> list[str]:
        head = [_short(self.title, room)] if self.title else []
        bars = [layer for layer in self.layers if layer.mark == "bar"]
        if bars:
            return [*head, *_bar_lines(bars[0], room)]
        return [*head, *_Axes(self, room, height).lines()]


def _panels(spec: Mapping[str, Any], parent: Row | None = None) -> Iterator[Panel]:
    """Yield the panels of a definition: of rows and columns of charts, and of facets."""
    inherited = {**(parent or {}), **{k: spec[k] for k in ("data",) if k in spec}}
    inherited["encoding"] = {**(parent or {}).get("encoding", {}), **spec.get("encoding", {})}
    inherited["transform"] = [*(parent or {}).get("transform", []), *spec.get("transform", [])]
    for key in ("hconcat", "vconcat", "concat"):
        for part in spec.get(key, ()):
            yield from _panels(part, inherited)
        if key in spec:
            return
    if "facet" in spec or "repeat" in spec:
        raise NotDrawable("it has a panel per value, which a terminal does not show")
    title = spec.get("title") if parent is not None else ""
    text = title.get("text", "") if isinstance(title, Mapping) else title
    yield Panel(str(text or ""), list(_layers(spec, parent or {})))


def _layers(spec: Mapping[str, Any], parent: Row) -> Iterator[Layer]:
    data = spec.get("data", parent.get("data"))
    encoding = {**parent.get("encoding", {}), **spec.get("encoding", {})}
    transform = [*parent.get("transform", []), *spec.get("transform", [])]
    if "layer" in spec:
        inherited = {"data": data, "encoding": encoding, "transform": transform}
        for part in spec["layer"]:
            yield from _layers(part, inherited)
        return
    mark = spec.get("mark")
    kind = str(mark.get("type") if isinstance(mark, Mapping) else mark)
    rows = list((data or {}).get("values") or [])
    for step in transform:
        rows = _filtered(rows, step)
    yield Layer(kind, rows, encoding)


def _filtered(rows: list[Row], step: Mapping[str, Any]) -> list[Row]:
    found = FILTER.fullmatch(str(step.get("filter", "")).strip())
    if found is None:
        raise NotDrawable(f"it is computed as it is drawn ({', '.join(step)})")
    return [row for row in rows if bool(row.get(found[2])) is not bool(found[1])]


def _bar_lines(layer: Layer, room: int) -> list[str]:
    """Draw a line per bar, with its value."""
    value, name = ("x", "y") if layer.is_quantity("x") else ("y", "x")
    number, label = layer.field(value), layer.field(name)
    if number is None or label is None or layer.field(f"{value}2"):
        raise NotDrawable("its bars have a beginning and an end")
    split = layer.field(f"{name}Offset") or layer.field("color")
    rows = [row for row in layer.rows if isinstance(row.get(number), int | float)]
    if not rows:
        raise NotDrawable("it has no values")
    if len({row.get(label) for row in rows}) == len(rows):
        split = None
    names = [_bar_name(row, label, split) for row in rows]
    texts = [format_number(float(row[number]), 3) for row in rows]
    left, right = min(room // 3, max(map(shown_width, names))), max(map(len, texts))
    most = max(abs(float(row[number])) for row in rows) or 1.0
    wide = max(4, room - left - right - 3)
    lines = []
    for row, name_, text in zip(rows, names, texts, strict=True):
        bar = ("#" if _is_plain() else "█") * max(1, round(wide * abs(float(row[number])) / most))
        cut = _short(name_, left)
        lines.append(f"{cut}{' ' * (left - shown_width(cut))} {bar} {text}")
    title = layer.encoding[value].get("title")
    return [*([f"{title}"] if title else []), *lines]


def _bar_name(row: Row, label: str, split: str | None) -> str:
    parts = [row.get(label), row.get(split) if split and split != label else None]
    return escaped(" ".join(str(part) for part in parts if part is not None))


@dataclass(slots=True)
class _Scale:
    """Values between two ends as a share from 0 to 1."""

    low: float
    high: float
    is_log: bool

    def share(self, value: float) -> float:
        if self.is_log:
            low, high, value = (math.log10(max(v, 1e-300)) for v in (self.low, self.high, value))
        else:
            low, high = self.low, self.high
        return (value - low) / (high - low) if high > low else 0.5

    def at(self, share: float) -> float:
        if self.is_log:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + share * (self.high - self.low)


class _Axes:
    """A canvas of dots with its axes, labels and legend."""

    def __init__(self, panel: Panel, room: int, height: int) -> None:
        self._layers = [layer for layer in panel.layers if layer.rows]
        curves = [layer for layer in self._layers if layer.mark in CURVES]
        if not curves:
            kinds = {layer.mark for layer in panel.layers}
            raise NotDrawable(f"it is of {', '.join(sorted(kinds)) or 'nothing'}")
        self._main = curves[0]
        names = (self._main.field("x"), self._main.field("y"))
        if None in names or not self._main.is_quantity("y"):
            raise NotDrawable("it has no axis of numbers")
        self._categories = [] if self._main.is_quantity("x") else self._values_of("x")
        self._x, self._y = self._scale("x"), self._scale("y")
        self._series = list(dict.fromkeys(s for layer in curves for s in self._curve_names(layer)))
        self._plain, self._coloured = _is_plain(), _is_coloured()
        ticks = [format_number(self._y.at(share), 3) for share in (1.0, 0.5, 0.0)]
        self._left = max(map(len, ticks))
        self._ticks = ticks
        self._wide, self._high = max(10, room - self._left - 2), height
        self._room = room
        self._cells: dict[tuple[int, int], tuple[int, int]] = {}
        self._texts: dict[tuple[int, int], str] = {}

    def lines(self) -> list[str]:
        for layer in self._layers:
            self._draw(layer)
        lines = []
        title = self._main.encoding["y"].get("title")
        if title:
            lines.append(_short(str(title), self._room))
        at = {0: self._ticks[0], self._high // 2: self._ticks[1], self._high - 1: self._ticks[2]}
        bar = "|" if self._plain else "│"
        for row in range(self._high):
            lines.append(f"{at.get(row, ''):>{self._left}} {bar}{self._row(row)}".rstrip())
        corner = "+" + "-" * self._wide if self._plain else "└" + "─" * self._wide
        lines.append(f"{'':>{self._left}} {corner}")
        lines.append(f"{'':>{self._left}}  {self._x_labels()}".rstrip())
        return [*lines, *self._legend()]

    def _row(self, row: int) -> str:
        text = ""
        column = 0
        while column < self._wide:
            label = self._texts.get((row, column))
            if label is not None:
                text, column = text + label, column + shown_width(label)
                continue
            bits, series = self._cells.get((row, column), (0, 0))
            text += " " if not bits else self._styled(self._glyph(bits, series), series)
            column += 1
        return text

    def _glyph(self, bits: int, series: int) -> str:
        if self._plain or (len(self._series) > 1 and not self._coloured):
            return MARKERS[series % len(MARKERS)]
        return chr(0x2800 + bits)

    def _styled(self, text: str, series: int) -> str:
        if not self._coloured:
            return text
        return f"\x1b[{COLOURS[series % len(COLOURS)]}m{text}\x1b[0m"

    def _x_labels(self) -> str:
        """Format the ends and the middle of the axis, and its title between them."""
        if self._categories:
            count = len(self._categories)
            middle_one = self._categories[count // 2] if count > 2 else ""
            shown = (self._categories[0], middle_one, self._categories[-1] if count > 1 else "")
            first, middle, last = (_short(text, max(3, self._wide // 4)) for text in shown)
        else:
            first, middle, last = (format_number(self._x.at(s), 3) for s in (0.0, 0.5, 1.0))
        title = str(self._main.encoding["x"].get("title") or "")
        space = self._wide - shown_width(first) - shown_width(last)
        between = title if title and shown_width(title) <= space - 4 else middle
        return f"{first}{between:^{max(0, space)}}{last}"

    def _legend(self) -> list[str]:
        if len(self._series) < 2:
            return []
        glyphs = [
            self._styled("━", n) if self._coloured else MARKERS[n % len(MARKERS)]
            for n in range(len(self._series))
        ]
        lines, used = [""], 0
        names = (_short(name, self._room - 4) for name in self._series)
        for glyph, name in zip(glyphs, names, strict=True):
            if used and used + shown_width(name) + 4 > self._room:
                lines, used = [*lines, ""], 0
            lines[-1] += ("  " if used else "") + f"{glyph} {name}"
            used += shown_width(name) + 4
        return lines

    def _draw(self, layer: Layer) -> None:
        if layer.mark == "text":
            self._write(layer)
        elif layer.mark in ("rule", "errorbar"):
            self._rules(layer)
        elif layer.mark in CURVES:
            for name, points in self._points(layer).items():
                series = self._series.index(name)
                if layer.mark == "line":
                    for start, end in pairwise(points):
                        self._segment(start, end, series)
                for point in points:
                    self._dot(point, series)

    def _points(self, layer: Layer) -> dict[str, list[tuple[float, float]]]:
        found: dict[str, list[tuple[float, float]]] = {}
        for name, row in zip(self._curve_names(layer), layer.rows, strict=True):
            place = self._place(layer, row)
            if place is not None:
                found.setdefault(name, []).append(place)
        return {name: sorted(points) for name, points in found.items()}

    def _place(self, layer: Layer, row: Row, y: str = "y") -> tuple[float, float] | None:
        """Return the place of a row in shares of both axes; None where a value is missing."""
        x_field, y_field = layer.field("x"), layer.field(y)
        across: float | None
        if x_field is None:
            across = 0.0
        elif self._categories:
            known = str(row.get(x_field))
            if known not in self._categories:
                return None
            across = self._categories.index(known) / max(1, len(self._categories) - 1)
        else:
            value = row.get(x_field)
            across = self._x.share(float(value)) if isinstance(value, int | float) else None
        up = row.get(y_field) if y_field else None
        if across is None or not isinstance(up, int | float):
            return None
        return across, self._y.share(float(up))

    def _rules(self, layer: Layer) -> None:
        series = 0
        for name, row in zip(self._curve_names(layer), layer.rows, strict=True):
            series = self._series.index(name) if name in self._series else 0
            start = self._place(layer, row)
            if start is None:
                continue
            if layer.field("x") is None:
                self._segment((0.0, start[1]), (1.0, start[1]), series, every=4)
            elif layer.field("y2"):
                end = self._place(layer, row, "y2")
                if end is not None:
                    self._segment(start, end, series)

    def _write(self, layer: Layer) -> None:
        """Write labels next to their points, where they fit."""
        name = layer.field("text")
        for row in layer.rows:
            place = self._place(layer, row)
            text = escaped(str(row.get(name) or "")) if name else ""
            if place is None or not text:
                continue
            column, row_number = self._cell(place)
            column = min(column + 1, self._wide - shown_width(text))
            taken = any(
                (row_number, c) in self._texts for c in range(column - 12, column + len(text))
            )
            if column >= 0 and not taken:
                self._texts[row_number, column] = text

    def _cell(self, place: tuple[float, float]) -> tuple[int, int]:
        x, y = self._dots(place)
        return x // 2, y // 4

    def _dots(self, place: tuple[float, float]) -> tuple[int, int]:
        across, up = (min(1.0, max(0.0, share)) for share in place)
        return round(across * (2 * self._wide - 1)), round((1 - up) * (4 * self._high - 1))

    def _dot(self, place: tuple[float, float], series: int) -> None:
        self._set(*self._dots(place), series)

    def _set(self, x: int, y: int, series: int) -> None:
        cell = (y // 4, x // 2)
        bits, _ = self._cells.get(cell, (0, series))
        self._cells[cell] = (bits | DOTS[y % 4][x % 2], series)

    def _segment(
        self, start: tuple[float, float], end: tuple[float, float], series: int, every: int = 1
    ) -> None:
        (x0, y0), (x1, y1) = self._dots(start), self._dots(end)
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for n in range(0, steps + 1, every):
            share = n / steps
            self._set(round(x0 + share * (x1 - x0)), round(y0 + share * (y1 - y0)), series)

    def _curve_names(self, layer: Layer) -> list[str]:
        name = layer.field("color") or layer.field("detail") or ""
        nominal = bool(name) and not layer.is_quantity("color")
        return [escaped(str(row.get(name))) if nominal else "" for row in layer.rows]

    def _values_of(self, channel: str) -> list[str]:
        name = self._main.field(channel) or ""
        values = [str(row.get(name)) for row in self._main.rows]
        order = self._main.encoding[channel].get("sort")
        wanted = [str(v) for v in order] if isinstance(order, list) else []
        return list(dict.fromkeys([*(v for v in wanted if v in values), *values]))

    def _scale(self, channel: str) -> _Scale:
        asked: dict[str, Any] = {}
        values: list[float] = []
        for layer in self._layers:
            asked |= (layer.encoding.get(channel) or {}).get("scale") or {}
            for each in (channel, f"{channel}2"):
                name = layer.field(each) or ""
                found = [row.get(name) for row in layer.rows]
                values += [float(v) for v in found if isinstance(v, int | float)]
        known = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
        low, high = asked.get("domain") or (asked.get("domainMin", min(known)), max(known))
        if any(layer.mark == "area" for layer in self._layers) and channel == "y":
            low = min(0.0, low)
        is_log = asked.get("type") == "log" and low > 0
        return _Scale(float(low), float(high if high > low else low + 1.0), is_log)


def _short(text: str, room: int) -> str:
    text = escaped(text)
    return text if shown_width(text) <= room else f"{text[: room - 1]}…"


def _is_plain() -> bool:
    """Return True where only characters of ASCII are safe."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    return os.environ.get("TERM", "").lower() in PLAIN_TERMINALS or not encoding.startswith("utf")


def _is_coloured() -> bool:
    return is_terminal(sys.stdout) and not os.environ.get("NO_COLOR") and not _is_plain()
