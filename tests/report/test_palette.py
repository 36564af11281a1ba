"""Promises of the colours: distinct for any colour vision, and visible on their background."""

import itertools
import math
import re
from importlib import resources

import pytest

from wattloop.report.figures.chart import BACKGROUND, BEST, DARK, GREY, INK, PALETTE

# G. Machado, M. Oliveira, L. Fernandes: A physiologically-based model for simulation of color
# vision deficiency, 2009; severity 1.0, on linear RGB.
VISIONS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
TOLD_APART = 10.0
"""Difference in CIELAB; 2.3 is just noticeable side by side."""
Colour = tuple[float, float, float]


def linear(colour: str) -> Colour:
    code = "#ffffff" if colour == "white" else colour
    parts = [int(code[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return r, g, b


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, contrast ratio."""
    light, dark = sorted((_luminance(colour) for colour in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    r, g, b = linear(colour)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def lab(colour: Colour) -> Colour:
    r, g, b = (min(1.0, max(0.0, c)) for c in colour)
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def seen(colour: str, vision: str) -> Colour:
    parts = linear(colour)
    r, g, b = (sum(m * c for m, c in zip(row, parts, strict=True)) for row in VISIONS[vision])
    return lab((r, g, b))


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_curves_are_distinct_with_any_colour_vision(vision: str, theme: str) -> None:
    """Every pair of the palette, on light and dark pages."""
    colours = PALETTE if theme == "light" else [DARK[colour] for colour in PALETTE]
    for one, other in itertools.combinations(colours, 2):
        assert math.dist(seen(one, vision), seen(other, vision)) > TOLD_APART, (one, other)


def test_curves_and_texts_stand_out_from_their_background() -> None:
    """WCAG AA: 3:1 for lines and bars, 4.5:1 for texts."""
    for colour, least in (*((c, 3.0) for c in PALETTE), *((c, 4.5) for c in (GREY, BEST, INK))):
        assert contrast(colour, BACKGROUND) >= least, colour
        assert contrast(DARK[colour], DARK[BACKGROUND]) >= least, DARK[colour]


def test_every_text_of_a_page_stands_out() -> None:
    """All colours of texts on all backgrounds of the style sheets, light and dark."""
    report = resources.files("wattloop.report").joinpath("report.css").read_text("utf-8")
    page = resources.files("wattloop.serve").joinpath("static", "style.css").read_text("utf-8")
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", report + page)
    themes = [dict(re.findall(r"--(\w+): (#\w{6});", block)) for block in blocks]
    themes = [theme for theme in themes if {"ink", "panel"} <= theme.keys()]
    assert len(themes) >= 4
    for theme in themes:
        for text, back in itertools.product(
            ("ink", "soft", "good", "info", "warning"), ("back", "panel", "fill")
        ):
            assert contrast(theme[text], theme[back]) >= 4.5, (text, back, theme)
