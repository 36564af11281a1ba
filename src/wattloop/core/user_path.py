"""Paths as people write them."""

import os.path
from pathlib import Path

__all__ = ["user_path"]


def user_path(text: str) -> Path:
    """`~/runs.db` as a path. An unknown user (`~nobody/x`) stays as written, so that whoever opens
    the file says that it is not there.
    """
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises for unknown users
