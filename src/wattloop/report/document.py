"""A report as data: sections, paragraphs, tables and charts, for HTML, PDF and dashboard."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattloop.core.table import Table
from wattloop.version import __version__

Tone = str
"""How a remark is meant: `plain`, `good`, `info` or `warning`."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Some sentences."""

    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """A highlighted remark: an insight, a warning, an advice.

    Attributes:
        text: what it says.
        tone: how it is meant.
        title: a few words before it; empty for none.
        command: what to type, if there is something to do.
        source: where it comes from, in words.
    """

    text: str
    tone: Tone = "plain"
    title: str = ""
    command: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure: `Energy`, `1.60 kJ ± 7%`, `simulated; dram is missing`."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Figures side by side, the most important first."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class DocumentBadge:
    """A mark with its meaning, e.g. the efficiency label of a device."""

    label: str
    value: str
    tone: Tone
    meaning: str


@dataclass(frozen=True, slots=True)
class Badges:
    """Marks side by side."""

    badges: tuple[DocumentBadge, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A Vega-Lite definition with an alternative text."""

    name: str
    chart: Any
    alternative: str


Block = Paragraph | Note | Facts | Badges | Table | Chart


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its content."""

    heading: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report.

    Attributes:
        title: of what it is.
        subtitle: the one sentence that says most.
        sections: in order.
        made_wall_s: when it was made, seconds since 1970 UTC.
        version: of Wattloop.
        about: plain data on what it is of, for readers of the file's metadata.
    """

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    made_wall_s: float = field(default_factory=time.time)
    version: str = __version__
    about: Mapping[str, str] = field(default_factory=dict)

    def charts(self) -> dict[str, Any]:
        blocks: Sequence[Block] = [block for each in self.sections for block in each.blocks]
        return {block.name: block.chart for block in blocks if isinstance(block, Chart)}
