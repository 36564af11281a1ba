"""Promises of `user_path`: a home directory is found, and nothing written in its place raises."""

from pathlib import Path

import pytest

from wattloop.core.user_code import user_path


def test_home_is_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the user's home."""
    monkeypatch.setenv("HOME", "/home/somebody")
    assert user_path("~/runs.db") == Path("/home/somebody/runs.db")


def test_an_unknown_user_stays_as_written() -> None:
    """No exception: the file will be found missing under the name that was written."""
    assert user_path("~nobody-of-this-name/x.csv") == Path("~nobody-of-this-name/x.csv")
