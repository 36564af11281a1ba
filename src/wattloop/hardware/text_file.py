"""Small files of the kernel that are read once: a name, a label, a limit."""

from pathlib import Path

__all__ = ["read_text", "read_whole", "whole_number"]

LONGEST_NUMBER = 20
"""Digits of the largest 64-bit number; what is longer is no number of the kernel's."""


def read_text(path: Path) -> str:
    """Stripped content; empty when the file is not there or not readable."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def read_whole(path: Path) -> int | None:
    """The whole number in a file; None when it holds anything else or cannot be read."""
    return whole_number(read_text(path))


def whole_number(text: str | None) -> int | None:
    """`42` as a number; None for a sign, a fraction, words or nothing."""
    # `isdigit` alone also takes characters such as superscripts, which `int` refuses.
    good = text and len(text) <= LONGEST_NUMBER and text.isascii() and text.isdigit()
    return int(text) if text and good else None
