"""A command for one configuration: placeholders, W&B's macros, variables."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from wattloop.tune.segment import Value

__all__ = ["command_words", "parameter_variables"]

MACRO = re.compile(r"\$\{(args\w*)\}")
PREFIX = "WATTLOOP_PARAM_"
WHOLE_VARIABLE = "WATTLOOP_PARAMS"


def command_words(
    command: Sequence[str],
    parameters: Mapping[str, Value],
    *,
    inactive: Iterable[str] = (),
    folder: Path,
) -> list[str]:
    """Program and arguments.

    `{name}` becomes the parameter's value; a word with one that this configuration does not have is
    left out. `${args}` becomes `--name=value` words, and its variants what they are in W&B.

    Args:
        command: as it was written.
        parameters: of this configuration, and other names that may be used.
        inactive: parameters that this configuration does not have.
        folder: for the file of `${args_json_file}`.
    """
    given = {name: value for name, value in parameters.items() if not name.startswith("wattloop.")}
    absent = [f"{{{name}}}" for name in inactive]
    words: list[str] = []
    for word in command:
        if any(placeholder in word for placeholder in absent):
            continue
        macro = MACRO.fullmatch(word)
        if macro is not None:
            words += _macro(macro.group(1), given, folder)
            continue
        filled = _filled(word, parameters)
        words.append(MACRO.sub(lambda m: " ".join(_macro(m.group(1), given, folder)), filled))
    return words


def parameter_variables(parameters: Mapping[str, Value]) -> dict[str, str]:
    """`WATTLOOP_PARAM_BATCH_SIZE` and all of them as JSON in `WATTLOOP_PARAMS`."""
    variables = {
        PREFIX + re.sub(r"\W", "_", name).upper(): _text(value)
        for name, value in parameters.items()
    }
    return {**variables, WHOLE_VARIABLE: json.dumps(dict(parameters))}


def _filled(word: str, parameters: Mapping[str, Value]) -> str:
    for name, value in parameters.items():
        word = word.replace(f"{{{name.removeprefix('wattloop.')}}}", _text(value))
    return word


def _macro(name: str, parameters: Mapping[str, Value], folder: Path) -> list[str]:
    if name == "args_no_hyphens":
        return [f"{key}={_text(value)}" for key, value in parameters.items()]
    if name == "args_json":
        return [json.dumps(dict(parameters))]
    if name == "args_json_file":
        path = folder / "parameters.json"
        path.write_text(json.dumps(dict(parameters)))
        return [str(path)]
    if name == "args_no_boolean_flags":
        flags = [f"--{key}" for key, value in parameters.items() if value is True]
        others = {k: v for k, v in parameters.items() if not isinstance(v, bool)}
        return [*(f"--{key}={_text(value)}" for key, value in others.items()), *flags]
    return [f"--{key}={_text(value)}" for key, value in parameters.items()]


def _text(value: Value) -> str:
    return repr(value) if isinstance(value, float) else str(value)
