"""Compile the stub library."""

import os
import shutil
import subprocess
from pathlib import Path

from wattloop.core.errors import WattloopError

LIBRARY_NAME = "libnvidia-ml.so.1"
SOURCES = Path(__file__).parent


class NoCompiler(WattloopError):
    """The stub cannot be built on this machine; tests that need it skip with this reason."""


def build(folder: Path) -> Path:
    """Return the path of the library in `folder`, compiled unless it is newer than its sources."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise NoCompiler("no C compiler (cc, gcc, clang) on PATH; install one, such as 'gcc'")
    library = folder / LIBRARY_NAME
    sources = sorted(SOURCES.glob("*.c"))
    newest = max(source.stat().st_mtime for source in (*sources, *SOURCES.glob("*.h")))
    if library.exists() and library.stat().st_mtime >= newest:
        return library
    folder.mkdir(parents=True, exist_ok=True)
    # Processes may build at the same time; the rename makes each result whole.
    partial = folder / f"{LIBRARY_NAME}.{os.getpid()}"
    flags = ["-O2", "-std=gnu11", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY_NAME}"]
    command = [compiler, *flags, "-o", str(partial), *map(str, sources), "-lm"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise NoCompiler(f"{' '.join(command)} failed:\n{result.stderr}")
    partial.replace(library)
    return library
