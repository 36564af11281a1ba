"""Promises of step files: other files in the folder of steps do no harm."""

import os
from pathlib import Path

from wattloop.integrations.step_hook.step_file import StepFile


def test_other_files_are_closed_again(tmp_path: Path) -> None:
    """Promise: a program cannot use up the descriptors of the process that reads its steps."""
    (tmp_path / "folder.steps").mkdir()
    os.mkfifo(tmp_path / "pipe.steps")
    (tmp_path / "text.steps").write_text("no header")
    (tmp_path / "list.steps").write_text("[]\n")
    before = descriptors()
    for _ in range(20):
        for path in tmp_path.iterdir():
            assert StepFile.open(str(path)) is None
    assert descriptors() <= before


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
