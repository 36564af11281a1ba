"""Free ports for test servers, also when several tests run at once."""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

FIRST, LAST = 14_000, 32_000
"""Below what Linux gives to outgoing connections: a port that is free now stays free."""
SIZE = 100


class PortBlock:
    """A hundred consecutive ports that no other lab takes while this process runs.

    Each block has a file whose lock the kernel releases when its owner ends.
    """

    def __init__(self) -> None:
        folder = Path(tempfile.gettempdir()) / f"wattloop-ports-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        starts = list(range(FIRST, LAST, SIZE))
        random.shuffle(starts)
        for start in starts:
            fd = os.open(folder / str(start), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if _locked(fd) and all(_free(port) for port in range(start, start + SIZE)):
                self._fd, self._next, self._end = fd, start, start + SIZE
                return
            os.close(fd)
        raise OSError(f"no {SIZE} free ports in a row between {FIRST} and {LAST}")

    def take(self) -> int:
        """Return the next port of the block."""
        if self._next >= self._end:
            raise OSError(f"a lab uses no more than {SIZE} ports")
        self._next += 1
        return self._next - 1

    def close(self) -> None:
        """Free the block for others."""
        os.close(self._fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
