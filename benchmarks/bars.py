"""Common frame of all benchmarks: bars, the printed table, `--json FILE`, the page in docs/.

    parser = arguments("what it costs to measure")
    args = parser.parse_args()
    page = Page("measure_overhead", "What measuring costs", bars, tables, text="...")
    publish(page, args)

`publish` prints the table, writes `{"bars": [...]}` to the file of `--json`, and, unless `--quick`
was given, the page `docs/benchmarks/NAME.md`.
"""

import argparse
import json
import math
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

__all__ = ["Bar", "Page", "Table", "arguments", "machine", "markdown", "publish", "shown"]

SOURCES = {
    r"\b[Tt]hesis\b": (
        "The thesis is Roblex Nana Tchakouté, *Energy-Aware High Performance Artificial "
        "Intelligence: From Measurement and Modeling to Multi-Objective Scheduling*, PhD thesis, "
        "Université PSL, 2025 ([sources](../sources.md#nana-tchakouté))."
    ),
    r"Geißler et al\.": (
        "Geißler et al. is Daniel Geißler, Bo Zhou, Sungho Suh and Paul Lukowicz, *Spend More to "
        "Save More (SM²): An Energy-Aware Implementation of Successive Halving for Sustainable "
        "Hyperparameter Optimization* ([sources](../sources.md#geißler-et-al))."
    ),
}
"""Words of a page that stand for a source document -> the line that names it."""
DOCS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"

Number = float | None
Baseline = float | str | None
"""What a peer scored, or the words why it has no score."""


@dataclass(frozen=True)
class Bar:
    """One figure and its limit.

    Attributes:
        name: the row's name, which other programs look for.
        value: Wattloop's figure; None where it could not be measured (the note says why).
        unit: of value, bar and baselines.
        bar: the limit; None for a row that only informs.
        baselines: the same figure of others, or the reason why there is none.
        at_least: True for a lower limit, False for an upper one.
        note: an explanation of the row.
    """

    name: str
    value: Number
    unit: str
    bar: Number = None
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    at_least: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Return true if the bar is reached; None without a bar."""
        if self.bar is None:
            return None
        if self.value is None or math.isnan(self.value):
            return False
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def to_dict(self) -> dict[str, object]:
        """Return the bar in the form of `--json`."""
        return {
            "name": self.name,
            "value": _plain(self.value),
            "unit": self.unit,
            "bar": _plain(self.bar),
            "baselines": {name: _plain(value) for name, value in self.baselines.items()},
        }


@dataclass(frozen=True)
class Table:
    """A table of the page that accompanies the bars."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    text: str = ""


@dataclass(frozen=True)
class Page:
    """Results of one benchmark."""

    name: str
    title: str
    bars: Sequence[Bar]
    tables: Sequence[Table] = ()
    text: str = ""
    packages: Sequence[str] = ("wattloop",)
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of what is installed elsewhere; `packages` are looked up here."""
    machine: str = ""
    """Where it ran, when that is not here."""
    command: str = ""
    """What makes it, when that is not the program of its name: `fleet_ingest.py --kubernetes`."""
    made: str = ""
    """The day it ran, when that is not today."""
    details: Mapping[str, object] = field(default_factory=dict)
    """Origin of the page, next to the bars in the JSON file."""


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a few seconds; no page is written")
    parser.add_argument("--json", metavar="FILE", help="write the bars there; - is standard output")
    parser.add_argument(
        "--docs", metavar="DIR", type=Path, default=DOCS, help="where the page is written"
    )
    return parser


def publish(page: Page, args: argparse.Namespace) -> None:
    """Print the table, write the JSON file and the page."""
    out = sys.stderr if args.json == "-" else sys.stdout
    print(page.title, file=out)
    print(_aligned(_bar_header(page.bars), _bar_rows(page.bars)), file=out)
    for table in page.tables:
        print(f"\n{table.title}", file=out)
        print(_aligned(table.header, _texts(table.rows)), file=out)
    if args.json:
        text = json.dumps(_report(page), indent=2, default=str) + "\n"
        if args.json == "-":
            sys.stdout.write(text)
        else:
            Path(args.json).write_text(text)
    if not args.quick:
        args.docs.mkdir(parents=True, exist_ok=True)
        (args.docs / f"{page.name}.md").write_text(markdown(page))


def _report(page: Page) -> dict[str, object]:
    return {"bars": [bar.to_dict() for bar in page.bars], **page.details}


def markdown(page: Page) -> str:
    """Return the page as written to docs/benchmarks."""
    made = page.made or f"{datetime.now(UTC):%Y-%m-%d}"
    versions = {**{name: _version(name) for name in page.packages}, **page.versions}
    parts = [
        f"# {page.title}",
        f"Made by `python benchmarks/{page.command or page.name + '.py'}` on {made}.",
        f"Machine: {page.machine or machine()}. Versions: "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ".",
    ]
    if page.text:
        parts.append(page.text.strip())
    parts.append(_pipes(_bar_header(page.bars), _bar_rows(page.bars)))
    parts.extend(f"- `{bar.name}`: {bar.note}" for bar in page.bars if bar.note)
    for table in page.tables:
        parts.append(f"## {table.title}")
        if table.text:
            parts.append(table.text.strip())
        parts.append(_pipes(table.header, _texts(table.rows)))
    parts += [said for word, said in SOURCES.items() if re.search(word, "\n".join(parts))]
    return "\n\n".join(parts) + "\n"


def machine() -> str:
    """Describe processor, cores, memory, kernel and Python, without the host's name."""
    cores = len(os.sched_getaffinity(0))
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    # A busy machine makes every time longer, so pages state its load for comparisons.
    return (
        f"{_processor()}, {cores} cores (load {os.getloadavg()[1]:.1f} during the run), "
        f"{memory_gib:.0f} GiB, "
        f"Linux {'.'.join(platform.release().split('.')[:2])}, Python {platform.python_version()}"
    )


def shown(value: object) -> str:
    """Format a number with three or four figures, and anything else unchanged."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or not math.isfinite(value):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.2g}"
    figures = 3 if abs(value) < 1 else 2 if abs(value) < 100 else 0
    return f"{value:,.{figures}f}"


def _bar_header(bars: Sequence[Bar]) -> list[str]:
    return ["", "unit", "wattloop", "bar", "met", *_peers(bars)]


def _bar_rows(bars: Sequence[Bar]) -> list[list[str]]:
    peers = _peers(bars)
    rows = []
    for bar in bars:
        limit = "" if bar.bar is None else f"{'>=' if bar.at_least else '<='} {bar.bar:g}"
        met = {None: "", True: "yes", False: "**no**"}[bar.met]
        cells = [_format_peer(bar, bar.baselines.get(peer)) for peer in peers]
        rows.append([bar.name, bar.unit, shown(bar.value), limit, met, *cells])
    return rows


def _format_peer(bar: Bar, baseline: Baseline) -> str:
    """Format a peer's score with its ratio to Wattloop's."""
    if not isinstance(baseline, int | float) or not bar.value:
        return shown(baseline)
    if bar.value < 0 or baseline < 0:
        return shown(baseline)
    if bar.unit == "points":  # a difference of shares has no meaningful ratio
        return shown(baseline)
    return f"{shown(baseline)} ({shown(float(f'{baseline / bar.value:.2g}'))}x)"


def _peers(bars: Sequence[Bar]) -> list[str]:
    return list(dict.fromkeys(name for bar in bars for name in bar.baselines))


def _texts(rows: Iterable[Sequence[object]]) -> list[list[str]]:
    return [[shown(cell) for cell in row] for row in rows]


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _pipes(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines
    )


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        if package == "wattloop":  # run from a checkout
            from wattloop import __version__

            return __version__
        return "not installed"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
