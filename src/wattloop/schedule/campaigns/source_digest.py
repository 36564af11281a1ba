"""What the code is that a figure comes from."""

import hashlib
from functools import cache
from pathlib import Path

import wattloop

__all__ = ["source_digest"]

PARTS = ("schedule", "predict", "hardware")
"""Packages that a simulation's figures depend on."""
SUFFIXES = (".py", ".yaml", ".json", ".csv", ".gz", ".npz")


@cache
def source_digest(packages: tuple[str, ...] = PARTS) -> str:
    """A hash of all code and data of packages: what another version computed is not ours.

    A version number would have to be raised by hand with every change of a policy or a constant;
    this cannot be forgotten. It takes some 20 ms.
    """
    root = Path(wattloop.__file__).parent
    found = hashlib.sha256()
    for part in packages:
        for path in sorted((root / part).rglob("*")):
            if path.suffix in SUFFIXES:
                found.update(str(path.relative_to(root)).encode() + b"\0")
                found.update(path.read_bytes())
    return found.hexdigest()
