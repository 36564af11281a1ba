"""Rendering of charts: one offline HTML page, and an SVG and a PNG each."""

import errno
import html
import json
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.report.figures.chart import (
    CONFIG,
    DARK,
    PALETTE,
    Spec,
    chart_parts,
    spec_of,
    with_hint,
)

PNG_SCALE = 2.0
COLUMN_PX = 700
"""Charts that are wider take both columns of the page."""
FORMATS = (".svg", ".png", ".html")
REMEDY = "pip install 'wattloop[figures]'"


def needs_libraries() -> None:
    """Raise ConfigError with the command that installs what is missing."""
    if find_spec("vl_convert") is None:  # loading it takes 40 MB
        raise ConfigError(f"figures need vl_convert, which is not installed: {REMEDY}")


def writable_folder(folder: Path) -> None:
    """Create the folder or raise ConfigError, before hours of measuring."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(
            f"{folder}: figures cannot be written there: {error.strerror or error}"
        ) from None


def check_drawable(folder: str) -> None:
    """Raise ConfigError when figures cannot be drawn into a folder that the user named."""
    needs_libraries()
    writable_folder(user_path(folder))


def save(
    charts: Mapping[str, Spec], folder: Path, *, title: str, notes: Sequence[str] = ()
) -> list[Path]:
    """Write `NAME.svg` and `NAME.png` of each chart, and `index.html` with all of them.

    Raises:
        ConfigError: a library is missing, or the folder cannot be written.
    """
    needs_libraries()
    writable_folder(folder)
    written = []
    try:
        for name, chart in charts.items():
            for kind in (".svg", ".png"):
                written.append(folder / f"{name}{kind}")
                written[-1].write_bytes(image_of(chart, kind))
        page = folder / "index.html"
        page.write_text(page_of(charts, title=title, notes=notes), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{folder}: figures cannot be written there: {error.strerror or error}"
        ) from None
    return [*written, page]


def save_one(
    charts: Mapping[str, Spec], path: Path, *, title: str, notes: Sequence[str] = ()
) -> None:
    """Write one file: a page with all charts (.html), or the first of them (.svg, .png).

    Raises:
        ConfigError: a library is missing, or the file is of another kind.
    """
    needs_libraries()
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise ConfigError(f"{path}: unknown kind of figure; end it with {', '.join(FORMATS)}")
    if kind == ".html":
        data = page_of(charts, title=title, notes=notes).encode()
    else:
        data = image_of(next(iter(charts.values())), kind)
    from wattloop.store.formats.table_files import Target

    with Target(str(path)).path() as place:
        place.write_bytes(data)


def image_of(chart: Spec, kind: str) -> bytes:
    import vl_convert

    spec, version = spec_of(chart), _version()
    if kind == ".svg":
        return str(vl_convert.vegalite_to_svg(spec, vl_version=version)).encode()
    return bytes(vl_convert.vegalite_to_png(spec, vl_version=version, scale=PNG_SCALE))


def page_of(charts: Mapping[str, Spec], *, title: str, notes: Sequence[str] = ()) -> str:
    """Return a page that contains everything it needs."""
    figures = "\n".join(
        f'<figure{is_wide(chart)}><div class=chart id="chart-{name}"></div></figure>'
        for name, chart in charts.items()
    )
    said = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return PAGE.format(
        style=style_sheet(),
        title=html.escape(title),
        notes=said,
        figures=figures,
        scripts=drawing_scripts(charts),
    )


def style_sheet() -> str:
    return resources.files("wattloop.report").joinpath("report.css").read_text("utf-8")


def drawing_scripts(charts: Mapping[str, Spec], renderer: str = "canvas") -> str:
    """Return scripts that draw each chart into the element `chart-NAME` of a page.

    Raises:
        ConfigError: a library is missing.
    """
    needs_libraries()
    parts = {name: chart_parts(chart) for name, chart in charts.items()}
    specs = {name: with_hint(spec) for name, (spec, _) in parts.items()}
    tables = {str(table): table.text for _, tables in parts.values() for table in tables}
    data = ",".join(f"{json.dumps(name)}:{text}" for name, text in tables.items())
    settings = {
        "actions": {"export": True, "source": False, "compiled": False, "editor": False},
        "renderer": renderer,
        "mode": "vega-lite",  # a `concat` alone is taken for Vega, and nothing is drawn
    }
    return SCRIPTS.format(
        bundle=vega_bundle(),
        theme=theme_script(),
        specs=_in_script(json.dumps(specs)),
        tables=_in_script("{" + data + "}"),
        settings=json.dumps(settings),
    )


def theme_script() -> str:
    """Return the script that gives charts the colours and the width of their page."""
    theme = json.dumps({"palette": PALETTE, "config": CONFIG, "dark": DARK})
    shared = resources.files("wattloop.report").joinpath("charts.js").read_text("utf-8")
    return f"const THEME = {theme};\n{shared}"


def _in_script(text: str) -> str:
    """Escape JSON so that no text in it ends the script, or hides its end (`<!--<script>`)."""
    return text.replace("<", "\\u003c")


def is_wide(chart: Spec) -> str:
    """Return the class of a figure that takes the whole width: several parts, or a wide one."""
    is_single = "layer" in chart or "mark" in chart
    return "" if is_single and chart.get("width", 0) <= COLUMN_PX else ' class="wide"'


@lru_cache(maxsize=1)
def vega_bundle() -> str:
    """Return the scripts that draw charts, for a page."""
    import vl_convert

    bundle = vl_convert.javascript_bundle(
        None,  # type: ignore[arg-type]  # its stub demands a snippet; None is the documented default
        vl_version=_version(),
    )
    return str(bundle).replace("</script", "<\\/script")


def _version() -> str:
    """Return the newest version of Vega-Lite that can be drawn."""
    import vl_convert

    return str(vl_convert.get_vegalite_versions()[-1])


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}
main {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(38rem, 100%), 1fr));
  gap: 1rem; margin-top: 1.5rem; }}
.wide {{ grid-column: 1 / -1; }}
</style>
</head>
<body>
<h1>{title}</h1>
{notes}
<main>
{figures}
</main>
{scripts}
</body>
</html>
"""

SCRIPTS = """<script>{bundle}</script>
<script>
{theme}
const specs = {specs};
const tables = {tables};
const rowsOf = ({{columns, rows}}) =>
  rows.map((row) => Object.fromEntries(columns.map((name, n) => [name, row[n]])));
for (const [name, spec] of Object.entries(specs)) {{
  for (const key in spec.datasets) {{ spec.datasets[key] ??= rowsOf(tables[key]); }}
}}
function draw() {{
  for (const [name, spec] of Object.entries(specs)) {{
    vegaEmbed(document.getElementById("chart-" + name), themed(fitted(spec)), {settings});
  }}
}}
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
</script>"""
