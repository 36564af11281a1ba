"""Promises of `--sweep`: ranges are understood as written."""

import pytest

from wattloop.core.errors import ConfigError
from wattloop.predict.comparison import parse_axis


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("batch=8..64", (8, 16, 32, 64)),
        ("batch=8..100", (8, 16, 32, 64, 100)),
        ("batch=5..5", (5,)),
        ("batch=8..32:8", (8, 16, 24, 32)),
        ("batch=8..30:8", (8, 16, 24, 30)),
        ("gpus=1,2,8", (1, 2, 8)),
        ("cap=300..700:200", (300.0, 500.0, 700.0)),
        ("cap=300..700", (300.0, 350.0, 400.0, 450.0, 500.0, 550.0, 600.0, 650.0, 700.0)),
        ("precision=fp32, bf16", ("fp32", "bf16")),
    ],
)
def test_ranges_double_step_or_are_listed(text: str, values: tuple[object, ...]) -> None:
    """Counts double, watts have even steps, a given step is used, and both ends are included."""
    axis = parse_axis(text)
    assert axis.name == text.partition("=")[0]
    assert axis.values == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batch", "write batch=8..256"),
        ("batch=", "write batch=8..256"),
        ("colour=1,2", "cannot vary colour; batch, seq"),
        ("batch=8..x", "x is not a whole number"),
        ("batch=64..8", "64 is above 8; write the lower one first"),
        ("batch=2.5", "2.5 is not a whole number"),
        ("batch=0..8", "0 is out of range"),
        ("cap=nan,3", "nan is out of range"),
        ("batch=8,8", "the same value twice"),
        ("batch=1..1000:1", "over 200 values"),
        ("precision=fp32,", "a value is missing"),
    ],
)
def test_what_cannot_be_read_is_an_error(text: str, said: str) -> None:
    """The message quotes the text and shows the right form."""
    with pytest.raises(ConfigError) as refused:
        parse_axis(text)
    assert said in str(refused.value)
    assert text in str(refused.value)
