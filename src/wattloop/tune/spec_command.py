"""What W&B writes differently: the command with its macros, and fields of other names."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["ARGUMENTS", "FOREIGN", "our_words", "said_twice", "words_of"]

FOREIGN = ("project", "entity", "controller", "job", "image_uri", "kind")
"""Fields of W&B sweeps that say where to show them."""
WHOLE = ["${env}", "${interpreter}", "${program}", "${args}"]
"""W&B's command where only a program is given."""
FIXED = {"${env}": "/usr/bin/env", "${interpreter}": "python"}
ARGUMENTS = ("args", "args_no_boolean_flags", "args_no_hyphens", "args_json", "args_json_file")
"""Macros that are replaced for each trial."""
MACRO = re.compile(r"\$\{([a-z_]+)\}")


def said_twice(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Fields that say the same under two names, and what to do."""
    if "strategy" in data and "method" in data:
        yield ("method",), "it is the same as strategy; keep one"
    limits = data.get("limits")
    if "run_cap" in data and isinstance(limits, Mapping) and "trials" in limits:
        yield ("run_cap",), "it is the same as limits.trials; keep one"


def our_words(written: Mapping[str, Any]) -> dict[str, Any]:
    """The same specification without the fields that only W&B has; what is not used is noted."""
    data = dict(written)
    notes = [f"{field}: not used here" for field in FOREIGN if data.pop(field, None) is not None]
    if "run_cap" in data:
        data["limits"] = {**(data.get("limits") or {}), "trials": data.pop("run_cap")}
    program = data.pop("program", None)
    if program is not None:
        command = data.get("command")
        data["command"] = _with_program(WHOLE if command is None else command, str(program))
    return {**data, "notes": [*data.get("notes", []), *notes]}


def words_of(command: Any) -> Any:
    """The words to run, with the macros left that differ from trial to trial.

    Raises:
        ValueError: not a command line, or a macro that nobody knows.
    """
    words = _split(command)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return words  # left to be refused
    for macro, text in FIXED.items():
        words = [word.replace(macro, text) for word in words]
    for name in (name for word in words for name in MACRO.findall(word)):
        if name == "program":
            raise ValueError("${program} is not said; give program: train.py")
        if name not in ARGUMENTS:
            known = ", ".join(f"${{{argument}}}" for argument in ARGUMENTS)
            raise ValueError(f"unknown ${{{name}}}; known are {known}")
    return words


def _with_program(command: Any, program: str) -> Any:
    if isinstance(command, str):
        return command.replace("${program}", shlex.quote(program))
    if isinstance(command, list | tuple):
        return [w.replace("${program}", program) if isinstance(w, str) else w for w in command]
    return command


def _split(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise ValueError(f"not a command line: {error}") from None
    if isinstance(value, list | tuple):
        return [str(word) if isinstance(word, int | float) else word for word in value]
    return value
