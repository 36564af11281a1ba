"""How wide the columns of a table are on a terminal that may be too narrow for it."""

import unicodedata
from collections.abc import Sequence

__all__ = ["column_widths", "fits_folded", "fitted_widths", "shown_width"]

GAP = 2
"""Between two columns."""
COMFORTABLE = 12
"""A text is folded to this width before another column is left out."""
LONGEST_WORD = 24
"""What is longer is cut rather than that it takes the place of others; identifiers are shorter."""


def shown_width(text: str) -> int:
    """Columns of a terminal that a text takes: two for a CJK character, none for an accent."""
    if text.isascii():
        return len(text)
    return sum(
        2 if unicodedata.east_asian_width(letter) in "WF" else not unicodedata.combining(letter)
        for letter in text
    )


def column_widths(lines: Sequence[Sequence[str]]) -> list[int]:
    """The widest cell of each column."""
    return [max(map(shown_width, column)) for column in zip(*lines, strict=True)]


def fitted_widths(lines: Sequence[Sequence[str]], room: int) -> list[int]:
    """Widths that fit into `room`: the widest columns give first, and words are cut last.

    The first column keeps its width: it is what people copy.
    """
    widths, least = column_widths(lines), _unbroken(lines)
    for floor in (least, [1] * len(widths)):
        while not _fits(widths, room):
            wide = [n for n in range(1, len(widths)) if widths[n] > floor[n]]
            if not wide:
                break
            widths[max(wide, key=lambda n: widths[n])] -= 1
    return widths


def fits_folded(lines: Sequence[Sequence[str]], room: int) -> bool:
    """Whether it is enough to fold texts that are much longer than their column's words."""
    pairs = zip(column_widths(lines), _unbroken(lines), strict=True)
    return _fits([min(width, max(least, COMFORTABLE)) for width, least in pairs], room)


def _fits(widths: Sequence[int], room: int) -> bool:
    return sum(widths) + GAP * (len(widths) - 1) <= room


def _unbroken(lines: Sequence[Sequence[str]]) -> list[int]:
    """The longest word of each column; a number and its unit are one."""
    return [
        min(LONGEST_WORD, max(shown_width(word) for cell in column for word in _words(cell)))
        for column in zip(*lines, strict=True)
    ]


def _words(cell: str) -> list[str]:
    quantity = cell[:1].isdigit() or cell[:1] in ("+", "-", "±")
    return [cell] if quantity else [*cell.split(), ""]
