"""Output target: a file that is written atomically, or standard output."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from wattloop.core.errors import ConfigError
from wattloop.core.files import atomic_path
from wattloop.core.paths import user_path


class Target:
    """A file to be written; `-` is standard output.

    Args:
        name: the file.
        option: what named it, such as `--json`, for messages.
    """

    def __init__(self, name: str, option: str = "") -> None:
        self.name = name
        self.label = f"{option} {name}".strip()
        self.is_stdout = name == "-"

    def write_text(self, text: str) -> None:
        with self.text() as file:
            file.write(text)

    @contextmanager
    def text(self) -> Iterator[TextIO]:
        """Open a text file in UTF-8."""
        if self.is_stdout:
            yield sys.stdout
            sys.stdout.flush()
            return
        with self.path() as path, path.open("w", encoding="utf-8", newline="") as file:
            yield file

    @contextmanager
    def path(self) -> Iterator[Path]:
        """Return a temporary path next to the target; it replaces the target on success."""
        goal = user_path(self.name)
        if goal.is_dir():
            raise ConfigError(f"{self.label}: is a directory; name a file in it")
        direct = goal.exists() and not goal.is_file()  # /dev/null, a pipe: nothing to replace
        goal = goal if direct else goal.resolve()  # a link keeps pointing to its file
        try:
            if direct:
                yield goal
            else:
                with atomic_path(goal, durable=True) as temporary:
                    yield temporary
        except OSError as error:
            raise ConfigError(
                f"{self.label}: cannot be written: {error.strerror or error}; choose another file"
            ) from error
