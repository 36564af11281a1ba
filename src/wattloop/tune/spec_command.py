"""The command of a search, with what W&B calls macros."""

import re
import shlex
from typing import Any

__all__ = ["ARGUMENTS", "FOREIGN", "command_of"]

FOREIGN = ("project", "entity", "controller", "job", "image_uri", "kind")
"""Fields of W&B sweeps that say where to show them."""
WHOLE = ["${env}", "${interpreter}", "${program}", "${args}"]
"""W&B's command where only a program is given."""
ARGUMENTS = ("args", "args_no_boolean_flags", "args_no_hyphens", "args_json", "args_json_file")
"""Macros that are replaced for each trial."""
MACRO = re.compile(r"\$\{([a-z_]+)\}")


def command_of(program: Any, command: Any) -> Any:
    """The words to run, with the macros left that differ from trial to trial.

    Raises:
        ValueError: not a command line, or a macro that nobody knows.
    """
    if command is None:
        if program is None:
            return None
        command = WHOLE
    words = _words(command)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return words  # left to be refused
    fixed = {"${env}": "/usr/bin/env", "${interpreter}": "python"}
    if program is not None:
        fixed["${program}"] = str(program)
    found = [_replaced(word, fixed) for word in words]
    for word in found:
        for name in MACRO.findall(word):
            if name == "program":
                raise ValueError("command: ${program} is not said; give program: train.py")
            if name not in ARGUMENTS:
                known = ", ".join(f"${{{a}}}" for a in ARGUMENTS)
                raise ValueError(f"command: unknown ${{{name}}}; known are {known}")
    return found


def _replaced(word: str, fixed: dict[str, str]) -> str:
    for macro, text in fixed.items():
        word = word.replace(macro, text)
    return word


def _words(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise ValueError(f"command: not a command line: {error}") from None
    if isinstance(value, list | tuple):
        return [str(word) if isinstance(word, int | float) else word for word in value]
    return value
