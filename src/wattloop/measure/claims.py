"""One process per job and node counts the devices; the others look on.

The claim is an exclusive `flock` on a small file named after the job. The kernel frees it when
its holder dies, and another process of the job takes over.
"""

import fcntl
import json
import os
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["Claim", "claim_directory"]

KEPT_S = 86_400.0
"""A claim nobody holds is removed a day after its job's last process took it."""
TIDY_EVERY_S = 3600.0
"""Looking at thousands of claims takes a tenth of a second: not at the end of every run."""


def claim_directory() -> Path:
    """A folder of this user on this node (never a shared file system)."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "wattloop"
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"wattloop-{os.getuid()}"


class Claim:
    """The right to count this node's devices for one job."""

    def __init__(self, job_id: str, directory: Path | None = None) -> None:
        self._path = (directory or claim_directory()) / f"{_file_name(job_id)}.claim"
        self._fd = -1
        self.before: dict[str, Any] | None = None
        """Who held it before us, as they left it; known once it was taken."""

    @property
    def held(self) -> bool:
        """Whether this process holds it."""
        return self._fd >= 0

    def take(self, owner: dict[str, Any]) -> bool:
        """Try to become the one who counts; `owner` is what the others will read."""
        if self.held:
            return True
        try:
            fd = self._opened()
        except OSError:
            return True  # nowhere to agree with others: count, rather than lose the energy
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_ino != self._path.stat().st_ino:
                raise FileNotFoundError(self._path)  # somebody tidied it away: try again later
        except OSError:
            os.close(fd)
            return False
        self.before = self.owner()
        with suppress(OSError):  # a full disk: we count, but cannot say who we are
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(owner).encode(), 0)
        self._fd = fd
        return True

    def owner(self) -> dict[str, Any] | None:
        """Who holds it, as they described themselves."""
        try:
            data: dict[str, Any] = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return None
        return data

    def release(self, until_s: float | None = None) -> None:
        """Let another process count from now on; `until_s` is the time up to which we did."""
        if self._fd < 0:
            return
        owner = self.owner()
        if until_s is not None and owner is not None:
            with suppress(OSError):  # a full disk: the next one looks into our journal instead
                os.pwrite(self._fd, json.dumps({**owner, "until_s": until_s}).encode(), 0)
        self.forget()
        _tidy(self._path.parent)

    def forget(self) -> None:
        """Close our copy of the file; in a forked child this leaves the parent's claim alone."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _opened(self) -> int:
        """The file, in a folder that nobody else can write to."""
        folder = self._path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to somebody else")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._path, flags, 0o600)


def _tidy(directory: Path) -> None:
    """Remove the claims of jobs that ended long ago, now and then."""
    now_s = time.time()
    last, oldest_s = directory / "tidied", now_s - KEPT_S
    with suppress(FileNotFoundError):
        if 0 <= now_s - last.stat().st_mtime < TIDY_EVERY_S:
            return
    with suppress(OSError):
        last.touch(mode=0o600)
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(".claim") and entry.stat().st_mtime < oldest_s:
                _remove_unless_held(entry.path)


def _remove_unless_held(path: str) -> None:
    with suppress(OSError), Path(path).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Path(path).unlink()


def _file_name(job_id: str) -> str:
    """A name that differs for different jobs and is valid everywhere."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in job_id)[:120]
    return f"{safe}-{zlib.crc32(job_id.encode()):08x}"
