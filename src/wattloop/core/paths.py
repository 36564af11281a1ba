"""Folders of this user (XDG base directories), and paths that the user names."""

import os
from collections.abc import Mapping
from pathlib import Path


def data_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return `$XDG_DATA_HOME/wattloop`: the store and its journals."""
    return _folder("XDG_DATA_HOME", ".local/share", environment)


def config_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return `$XDG_CONFIG_HOME/wattloop`: settings, GPU files, calibrations."""
    return _folder("XDG_CONFIG_HOME", ".config", environment)


def state_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return `$XDG_STATE_HOME/wattloop`: what a service remembers between two starts."""
    return _folder("XDG_STATE_HOME", ".local/state", environment)


def cache_folder(name: str) -> Path:
    """Return `$XDG_CACHE_HOME/wattloop/NAME`: files that can be made again."""
    return _folder("XDG_CACHE_HOME", ".cache", None) / name


def runtime_folder() -> Path:
    """Return a folder of this user on this machine, never on a shared file system."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "wattloop"
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"wattloop-{os.getuid()}"


def home_folder(environment: Mapping[str, str] | None = None) -> Path:
    return Path((os.environ if environment is None else environment).get("HOME") or Path.home())


def user_path(text: str) -> Path:
    """Expand `~/runs.db` to a path. An unknown user (`~someone/x`) stays as written, so that
    opening the file reports it as missing.
    """
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises for unknown users


def _folder(variable: str, usual: str, environment: Mapping[str, str] | None) -> Path:
    named = (os.environ if environment is None else environment).get(variable)
    return (Path(named) if named else home_folder(environment) / usual) / "wattloop"
