"""Promises of paths: folders follow XDG, and no path that a user writes raises."""

from pathlib import Path

import pytest

from wattloop.core.files import cache_folder, config_folder, data_folder, state_folder, user_path


def test_home_is_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the user's home."""
    monkeypatch.setenv("HOME", "/home/user")
    assert user_path("~/runs.db") == Path("/home/user/runs.db")


def test_an_unknown_user_stays_as_written() -> None:
    """The file is reported as missing under the name that was written."""
    assert user_path("~nobody-of-this-name/x.csv") == Path("~nobody-of-this-name/x.csv")


def test_folders_follow_xdg_and_else_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind has its own variable; an empty or relative value is ignored."""
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert data_folder() == Path("/data/wattloop")
    assert cache_folder("pages") == Path("/home/user/.cache/wattloop/pages")
    assert state_folder() == Path("/home/user/.local/state/wattloop")
    assert config_folder({"HOME": "/home/other", "XDG_CONFIG_HOME": "conf"}) == Path(
        "/home/other/.config/wattloop"
    )
    assert config_folder({"HOME": "/home/other"}) == Path("/home/other/.config/wattloop")
