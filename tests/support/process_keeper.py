"""Clean-up of test servers when the process that started them ends."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

MARKER = "WATTLOOP_LAB"

_SCRIPT = r"""
cat >/dev/null          # until the pipe closes: its other end is the lab's process, dead or done
round=0
while [ $round -lt 100 ]; do
    found=$(grep -l -z -a -x -F "$@" /proc/[0-9]*/environ 2>/dev/null)
    [ -z "$found" ] && break
    for file in $found; do
        pid=${file#/proc/}
        kill -9 "${pid%/environ}" 2>/dev/null
    done
    sleep 0.02
    round=$((round + 1))
done
rm -rf "$KEEPER_FOLDER"
"""


class ProcessKeeper:
    """A folder for a lab, whose processes never outlive the lab's own process.

    A line of their environment (`environment`, or one of `also`) identifies processes. Their
    children inherit it, so daemons that left their session are found too. A shell waits at the end
    of a pipe; when the lab's process ends, even by SIGKILL, it kills them and removes the folder.
    """

    def __init__(self, name: str, also: tuple[str, ...] = ()) -> None:
        # Short (a socket's path has 108 bytes), and open to the jobs of other users.
        self.folder = Path(tempfile.mkdtemp(prefix=f"wl-{name}-", dir="/tmp"))
        self.folder.chmod(0o755)
        lines = [process_marker(self.folder), *also]
        patterns = [argument for line in lines for argument in ("-e", line)]
        shell = shutil.which("sh") or "/bin/sh"
        environment = {k: v for k, v in os.environ.items() if k != MARKER}
        self._shell = subprocess.Popen(
            [shell, "-c", _SCRIPT, "keeper", *patterns],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**environment, "KEEPER_FOLDER": str(self.folder)},
            start_new_session=True,  # Ctrl-C is for the tests, not for who cleans up after them
        )

    @property
    def environment(self) -> dict[str, str]:
        """Return the line that identifies a process as the lab's."""
        return {MARKER: str(self.folder)}

    def close(self) -> None:
        """End every process of the lab and remove its folder."""
        if self._shell.stdin is not None:
            self._shell.stdin.close()
        self._shell.wait()


def process_marker(folder: Path) -> str:
    """Return the line in the environment of the processes of the lab in `folder`."""
    return f"{MARKER}={folder}"
