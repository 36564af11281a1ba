"""Style of all figures: colour-blind safe colours, axis titles, subtitles with the source."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from wattloop.sweep.result import SweepResult

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555", "#7a5195")
"""Okabe and Ito's, which people with any kind of colour blindness can tell apart."""
GREY = "#6b7280"
BEST = "#111827"
WIDTH, HEIGHT = 460, 280
HINT = "hint"
"""Of a definition's `usermeta`."""
FONT = "Helvetica, Arial, Liberation Sans, sans-serif"

CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": "white",
    "view": {"stroke": None},
    "title": {
        "fontSize": 14,
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
        "gridColor": "#e5e7eb",
        "domainColor": "#9ca3af",
        "tickColor": "#9ca3af",
        "labelColor": "#374151",
        "titleColor": "#374151",
    },
    "legend": {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": 500},
    "header": {"labelFontSize": 12, "labelFontWeight": 600, "titleFontSize": 12},
    "range": {"category": list(PALETTE)},
    "line": {"strokeWidth": 2},
    "point": {"size": 45, "filled": True},
}


def lever_title(axis: Mapping[str, Any]) -> str:
    """Format `gpu:0/power_limit` as `GPU 0 power limit (W)`."""
    device, _, leaf = axis["name"].partition("/")
    family, _, number = device.partition(":")
    words = filter(None, (family.upper(), number.replace(",", ", "), leaf.replace("_", " ")))
    unit = f" ({axis['unit']})" if axis["unit"] not in ("", "name") else ""
    return " ".join(words) + unit


def plain_name(text: str) -> str:
    """Format `gpu:0/power_limit` as `gpu-0-power_limit`, for names of files."""
    return re.sub(r"[^\w.-]+", "-", text)


def lever_x(axis: Mapping[str, Any], *, numeric: bool, field: str = "x") -> Any:
    """Return the horizontal axis of one lever: a scale for numbers, places for choices."""
    import altair as alt

    if numeric:
        scale = alt.Scale(zero=False, nice=False, padding=14)
        return alt.X(f"{field}:Q", title=lever_title(axis), scale=scale)
    order = [level["label"] for level in axis["levels"]]
    place = alt.Axis(labelAngle=0)
    return alt.X(f"{field}:O", title=lever_title(axis), sort=order, axis=place)


def colour(field: str, order: Sequence[str], *, several: bool = True) -> Any:
    """Return one colour per curve, with a legend where there are several."""
    import altair as alt

    if not several:
        return alt.value(PALETTE[0])
    legend = alt.Legend(symbolOpacity=1, symbolType="circle")
    return alt.Color(f"{field}:N", title=None, sort=list(order), legend=legend)


def energy_source(*results: SweepResult) -> str:
    """Return scope and provenance of energy, and the window it covers."""
    kinds = []
    for result in results:
        window = result.experiment.spec.get("window")
        part = f", window '{window}'" if window else ""
        kinds.append(f"energy of {result.scope}, {result.provenance}{part}")
    return "; ".join(dict.fromkeys(kinds))


def styled(chart: Any, title: str, subtitle: str, *, hint: str = "") -> Any:
    """Return a chart with its title; the subtitle gives scope and provenance.

    `hint` is what a reader may do in a page: images are drawn without it (`with_hint`).
    """
    import altair

    # as `properties` and `configure` do, which copy and check the whole chart each time
    found = chart.copy(deep=False)
    found.title = altair.TitleParams(text=title, subtitle=subtitle)
    found.config = _config()
    if hint:
        found.usermeta = {HINT: hint}
    return found


def with_hint(spec: dict[str, Any]) -> dict[str, Any]:
    """Add what a reader can do on the page to the subtitle."""
    hint = (spec.get("usermeta") or {}).get(HINT)
    if not hint:
        return spec
    title = spec["title"]
    return {**spec, "title": {**title, "subtitle": f"{title['subtitle']}; {hint}"}}


@cache
def _config() -> Any:
    import altair

    return altair.Config(**CONFIG)


def with_source(chart: Any, source: str) -> Any:
    """Add the source to the subtitle, unless it is there already."""
    import altair

    said = str(chart.title.subtitle)
    if source in said:
        return chart
    subtitle = f"{source}; {said}" if said else source
    return chart.properties(title=altair.TitleParams(text=chart.title.text, subtitle=subtitle))
