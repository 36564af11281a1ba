"""Promises of days and moments in a query: those of RFC 3339, and no guess."""

import pytest

pytest.importorskip("pydantic", reason="pydantic is not installed")

from wattloop.serve.api.jobs import moment_wall_s

NOON = 1_769_860_800.0


@pytest.mark.parametrize(
    ("text", "wall_s"),
    [
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31t12:00:00z", NOON),
        ("2026-01-31T13:30:00.25+01:30", NOON + 0.25),
        ("2016-12-31T23:59:60Z", 1_483_228_800.0),
        ("0001-01-01T00:00:00+14:00", -62_135_647_200.0),
        ("", None),
    ],
)
def test_a_moment_is_the_same_everywhere(text: str, wall_s: float | None) -> None:
    """With its offset, its fraction, its leap second; an empty value does not filter."""
    assert moment_wall_s(text) == wall_s


def test_a_day_begins_at_the_servers_midnight() -> None:
    """The first and the last day of the calendar are valid, too."""
    first, second = moment_wall_s("2026-01-31"), moment_wall_s("2026-02-01")
    assert first is not None
    assert second is not None
    assert second - first == 86_400
    assert moment_wall_s("0001-01-01") is not None
    assert moment_wall_s("9999-12-31") is not None


@pytest.mark.parametrize(
    "text",
    [
        *("yesterday", "2026-1-31", "2026-02-30", "20260131", "2026-W05", "2026-01-31T12:00:00"),
        *("2026-01-31T12:00Z", "2026-01-31 12:00:00Z", "2026-01-31T25:00:00Z", "٢٠٢٦-01-31"),
    ],
)
def test_what_means_different_things_is_refused(text: str) -> None:
    """A moment without its offset is an example."""
    with pytest.raises(ValueError, match=r"\w"):
        moment_wall_s(text)
