"""Where the names of points go in a scatter chart, so that none lies on another."""

from collections.abc import Sequence

__all__ = ["label_places"]

LETTER_PX = 6.2
LINE_PX = 13.0
ASIDE_PX = 10.0

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels from the upper left corner."""


def label_places(
    points_px: Sequence[tuple[float, float]], names: Sequence[str], size_px: tuple[float, float]
) -> list[tuple[float, float]]:
    """Left end and middle line of each name: right of its point, or the nearest place that is free.

    Args:
        points_px: x and y of each point from the upper left corner.
        names: what is to be written beside each.
        size_px: width and height of the chart; names stay inside.
    """
    places = []
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in points_px]
    for point, name in zip(points_px, names, strict=True):
        place = _free(point, LETTER_PX * len(name), taken, size_px)
        places.append(place)
        taken.append(_box(place, LETTER_PX * len(name)))
    return places


def _free(
    point: tuple[float, float], wide: float, taken: Sequence[Box], size_px: tuple[float, float]
) -> tuple[float, float]:
    x, y = point
    width, height = size_px
    sides = [each for each in (x + ASIDE_PX, x - ASIDE_PX - wide) if 0 <= each <= width - wide]
    rows = int(height // LINE_PX)
    for away in sorted(range(-rows, rows + 1), key=abs):
        for left in sides:
            place = (left, y + away * LINE_PX)
            if 0 <= place[1] <= height and not _overlaps(_box(place, wide), taken):
                return place
    return x + ASIDE_PX, y


def _box(place: tuple[float, float], wide: float) -> Box:
    return place[0], place[1] - LINE_PX / 2, place[0] + wide, place[1] + LINE_PX / 2


def _overlaps(box: Box, taken: Sequence[Box]) -> bool:
    left, top, right, bottom = box
    return any(
        left < other[2] and right > other[0] and top < other[3] and bottom > other[1]
        for other in taken
    )
