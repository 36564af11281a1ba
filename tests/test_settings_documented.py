"""Promises of docs/cli.md: every setting, variable and key is in its table."""

from pathlib import Path

from wattloop.core.settings import ENVIRONMENT, FIELDS

PAGE = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()


def test_every_variable_is_documented() -> None:
    """Variables of one family may share a prefix: `WATTLOOP_CARBON_G_PER_KWH`, `_URL`."""
    prefix = "WATTLOOP_CARBON"
    for variable in ENVIRONMENT:
        short = variable.removeprefix(prefix)
        assert f"`{variable}`" in PAGE or (short != variable and f"`{short}`" in PAGE), variable


def test_every_key_of_the_file_is_documented() -> None:
    """`tariff.per_kwh` is written as `tariff: {per_kwh, ...}`."""
    for key in FIELDS:
        section, _, leaf = key.partition(".")
        assert f"`{section}" in PAGE, key
        assert leaf in PAGE, key
