"""A program with copies of this process's open files, as a program has while it starts."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def program_with_copies_of(path: Path) -> Iterator[None]:
    """Run a program in the block that has copies of all descriptors of this file.

    Any program has them for a moment when another thread starts it, until it executes.
    """
    open_now = [int(link.name) for link in Path("/proc/self/fd").iterdir()]
    copies = [number for number in open_now if _is(number, path)]
    assert copies, f"{path} is not open"
    with subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=copies
    ) as program:
        yield
        assert program.poll() is None
        program.communicate()


def _is(number: int, path: Path) -> bool:
    with suppress(OSError):  # the listing's own descriptor is closed by now
        return os.path.samestat(os.fstat(number), path.stat())
    return False
