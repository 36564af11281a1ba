"""Promises of the notation of seeds."""

import pytest

from wattloop.core.errors import ConfigError
from wattloop.schedule.campaigns.campaign import seeds_from, seeds_text


def test_a_number_a_range_and_a_list_are_understood() -> None:
    """`3` is a count, `5..7` includes both ends, and `9,2` is a list."""
    assert seeds_from("3") == (0, 1, 2)
    assert seeds_from("5..7") == (5, 6, 7)
    assert seeds_from(" 9, 2 ") == (9, 2)
    assert seeds_from("1,4..6") == (1, 4, 5, 6)


@pytest.mark.parametrize("seeds", [(0, 1, 2), (7,), (3, 9, 4)])
def test_seeds_are_read_back_as_they_were_written(seeds: tuple[int, ...]) -> None:
    """One seed that is not 0 is not mistaken for a count."""
    assert seeds_from(seeds_text(seeds)) == seeds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ten", "write how many"),
        ("-3", "write how many"),
        ("0", "at least one seed"),
        ("", "write how many"),
        ("7..3", "write 3..7"),
        ("1,2,1", "1 is given twice"),
        ("0..9999999", "too many"),
        ("1.5", "write how many"),
    ],
)
def test_malformed_seeds_are_refused_with_the_remedy(text: str, said: str) -> None:
    """The error says what is wrong and what to write instead."""
    with pytest.raises(ConfigError, match=said):
        seeds_from(text)
