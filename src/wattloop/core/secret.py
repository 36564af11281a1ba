"""Secrets from a file or from standard input, never from a command line."""

import stat
import sys

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import user_path


def read_secret(name: str, option: str) -> str:
    """Return the first line of a file; of standard input for `-`.

    Raises:
        ConfigError: it cannot be read, is empty, or other users may read or write it.
    """
    try:
        if name == "-":
            text = sys.stdin.readline()
        else:
            path = user_path(name)
            if path.stat().st_mode & (stat.S_IWGRP | stat.S_IRWXO):
                raise ConfigError(
                    f"{option} {name}: others may read or write it; run 'chmod 600 {path}'"
                )
            text = path.read_text("utf-8").partition("\n")[0]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{option} {name}: cannot be read: {reason}") from None
    if not text.strip():
        raise ConfigError(f"{option} {name}: is empty; write a secret of 20 characters or more")
    return text.strip()
