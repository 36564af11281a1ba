"""Layout of a table on a terminal that may be too narrow for it.

Texts are folded between words first. What still does not fit continues in a further block below,
under the first column again, so that a number is never cut in two.
"""

import unicodedata
from collections.abc import Callable, Iterator, Sequence

__all__ = ["column_widths", "fits_folded", "folded_blocks", "padded_line", "shown_width"]

GAP = 2
"""Between two columns."""
COMFORTABLE = 12
"""A text is folded to this width before another column is left out."""
LONGEST_WORD = 24
"""What is longer is cut rather than that it takes the place of others; identifiers are shorter."""

Line = Sequence[str]


def shown_width(text: str) -> int:
    """Columns of a terminal that a text takes: two for a CJK character, none for an accent."""
    if text.isascii():
        return len(text)
    return sum(map(_letter_width, text))


def column_widths(lines: Sequence[Line]) -> list[int]:
    """The widest cell of each column."""
    return [max(map(shown_width, column)) for column in zip(*lines, strict=True)]


def padded_line(cells: Line, widths: Sequence[int]) -> str:
    """The cells of one line below those of others."""
    pairs = zip(cells, widths, strict=True)
    padded = (cell + " " * (width - shown_width(cell)) for cell, width in pairs)
    return (" " * GAP).join(padded).rstrip()


def fits_folded(lines: Sequence[Line], room: int) -> bool:
    """Whether it is enough to fold texts that are much longer than their column's words."""
    pairs = zip(column_widths(lines), _longest(lines, _quantities_and_words), strict=True)
    return _fits([min(width, max(least, COMFORTABLE)) for width, least in pairs], room)


def folded_blocks(lines: Sequence[Line], room: int) -> Iterator[list[list[str]]]:
    """The table in blocks that fit into `room`, each as the printed lines of every row.

    Every block begins with the first column, which is what people copy and never cut.
    """
    for columns in _blocks(lines, room):
        part = [[line[n] for n in columns] for line in lines]
        widths = _fitted_widths(part, room)
        yield [_folded_row(row, widths) for row in part]


def _blocks(lines: Sequence[Line], room: int) -> list[list[int]]:
    """The columns of each block, by their number."""
    first = column_widths(lines)[0]
    least = [min(width, max(1, room - first - GAP)) for width in _longest(lines, str.split)]
    blocks, used = [[0]], first
    for number in range(1, len(least)):
        if used + GAP + least[number] > room and len(blocks[-1]) > 1:
            blocks.append([0])
            used = first
        blocks[-1].append(number)
        used += GAP + least[number]
    return blocks


def _fitted_widths(lines: Sequence[Line], room: int) -> list[int]:
    """Widths that fit into `room`: the widest columns give first, numbers and their units last."""
    widths = column_widths(lines)
    whole, words = _longest(lines, _quantities_and_words), _longest(lines, str.split)
    for floor in (whole, words, [1] * len(widths)):
        while not _fits(widths, room):
            wide = [n for n in range(1, len(widths)) if widths[n] > floor[n]]
            if not wide:
                break
            widths[max(wide, key=lambda n: widths[n])] -= 1
    return widths


def _folded_row(row: Line, widths: Sequence[int]) -> list[str]:
    cells = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
    height = max(map(len, cells))
    filled = [cell + [""] * (height - len(cell)) for cell in cells]
    return [padded_line(line, widths) for line in zip(*filled, strict=True)]


def _folded(cell: str, width: int) -> list[str]:
    """Lines of at most `width`, broken between words where that is possible."""
    lines = [""]
    for word in cell.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if shown_width(joined) <= width:
            lines[-1] = joined
            continue
        pieces = list(_pieces(word, width))
        lines[-1:] = [lines[-1], *pieces] if lines[-1] else pieces
    return lines


def _pieces(word: str, width: int) -> Iterator[str]:
    piece, used = "", 0
    for letter in word:
        size = _letter_width(letter)
        if piece and used + size > width:
            yield piece
            piece, used = "", 0
        piece, used = piece + letter, used + size
    yield piece


def _fits(widths: Sequence[int], room: int) -> bool:
    return sum(widths) + GAP * (len(widths) - 1) <= room


def _longest(lines: Sequence[Line], split: Callable[[str], list[str]]) -> list[int]:
    """The longest part of each column that `split` leaves whole."""
    return [
        min(LONGEST_WORD, max(shown_width(part) for cell in column for part in ("", *split(cell))))
        for column in zip(*lines, strict=True)
    ]


def _quantities_and_words(cell: str) -> list[str]:
    """Words; a number and its unit are one."""
    quantity = cell[:1].isdigit() or cell[:1] in ("+", "-", "±")
    return [cell] if quantity else cell.split()


def _letter_width(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
