"""The other tools, installed by name into a virtual environment of their own."""

import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["PEERS", "install", "missing", "python_of", "versions"]

PEERS: Mapping[str, tuple[str, ...]] = {
    "codecarbon": ("codecarbon",),
    "zeus": ("zeus",),
    "carbontracker": ("carbontracker",),
    # EA2P imports mpi4py without declaring it, and mpi4py needs an MPI library.
    "ea2p": ("EA2P", "mpi4py", "mpich"),
    "perun": ("perun",),
}
"""Tool -> what pip is asked for; the first one is the tool itself."""


def install(folder: Path, say: Callable[[str], None]) -> dict[str, str]:
    """Make the environment where it is missing; return tool -> reason of a failed installation."""
    if not python_of(folder).exists():
        say(f"making {folder.name}")
        venv.create(folder, with_pip=True)
    failures: dict[str, str] = {}
    for tool, packages in PEERS.items():
        wanted = [package for package in packages if not _version(folder, package)]
        if not wanted:
            continue
        say(f"installing {', '.join(wanted)}")
        done = subprocess.run(
            [python_of(folder), "-m", "pip", "install", "--quiet", *wanted],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
            failures[tool] = f"not installed: {(lines or ['pip failed'])[-1].strip()[:80]}"
    return failures


def missing(folder: Path) -> dict[str, str]:
    """Return the tools that a ready environment lacks."""
    absent = (tool for tool, packages in PEERS.items() if not _version(folder, packages[0]))
    return dict.fromkeys(absent, "not installed there")


def versions(folder: Path) -> dict[str, str]:
    """Return the installed version of each tool."""
    found = {tool: _version(folder, packages[0]) for tool, packages in PEERS.items()}
    return {tool: version for tool, version in found.items() if version}


def python_of(folder: Path) -> Path:
    """Return the interpreter of an environment."""
    return folder / "bin" / "python"


def _version(folder: Path, package: str) -> str:
    """Read from the folder's name: starting the interpreter for each would take seconds."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    wanted = package.lower().replace("-", "_")
    for libraries in folder.glob("lib/python3*/site-packages"):
        if libraries.parent.name != version:
            continue
        for info in libraries.glob("*.dist-info"):
            name, _, number = info.name.removesuffix(".dist-info").partition("-")
            if name.lower() == wanted:
                return number
    return ""
