"""Which precision a run computed in, where somebody recorded it."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from wattloop.store.runs import RunRecord

__all__ = ["EVENT", "Precision", "recorded_precision"]

EVENT = "precision"
"""Type of the event with which an integration tells it."""

NAMES = {
    **dict.fromkeys(("fp32", "float32", "32", "32-true", "single", "full", "f32"), "fp32"),
    **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed", "bf16-true"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "16", "16-mixed", "16-true", "half", "f16"), "fp16"),
    **dict.fromkeys(("tf32",), "tf32"),
    **dict.fromkeys(("fp8", "float8"), "fp8"),
    **dict.fromkeys(("fp64", "float64", "64", "64-true", "double"), "fp64"),
}
KEYS = ("precision", "dtype", "torch-dtype", "compute-dtype", "mixed-precision", "amp-dtype")
FLAGS = {
    **{name: NAMES[name] for name in ("fp32", "bf16", "fp16", "tf32", "fp8", "half")},
    "amp": "amp",
    "no-amp": "fp32",
}
OFF = ("no", "none", "off", "false", "0")


class Precision(NamedTuple):
    """`fp32`, `bf16`, `fp16`, ..., and who said so."""

    name: str
    said_by: str


def recorded_precision(
    record: RunRecord, events: Iterable[Mapping[str, Any]] = ()
) -> Precision | None:
    """From an integration, the tags or the command line; None where they say nothing.

    What contradicts itself says nothing either.
    """
    found = [
        Precision(name, "the training loop")
        for event in events
        if event.get("type") == EVENT and (name := NAMES.get(str(event.get("value")).lower()))
    ]
    found = found or [*_in_tags(record.tags), *_in_words(record.command or ())]
    names = {precision.name for precision in found}
    return found[0] if len(names) == 1 and found[0].name != "amp" else None


def _in_tags(tags: Mapping[str, Any]) -> list[Precision]:
    said = ((key, _meant(key, str(value))) for key, value in tags.items())
    return [Precision(name, f"the tag {key}={tags[key]}") for key, name in said if name]


def _in_words(words: Iterable[str]) -> list[Precision]:
    """`--precision fp32`, `--dtype=float32`, `trainer.precision=32`, `--bf16`, `--no-amp`."""
    found = []
    rest = list(words)
    for place, word in enumerate(rest):
        key, separator, value = word.partition("=")
        name: str | None
        if separator:
            name, said = _meant(key, value), word
        else:
            following = rest[place + 1] if place + 1 < len(rest) else ""
            name, said = _meant(word, following), f"{word} {following}"
            if name is None and word.startswith("--"):
                following_is_value = following.lower() in (*OFF, "1", "true")
                name, said = FLAGS.get(_plain(word)), word
                if name and following_is_value and following.lower() in OFF:
                    name = None  # `--bf16 false`
        if name:
            found.append(Precision(name, f"the argument {said}"))
    return found


def _meant(key: str, value: str) -> str | None:
    plain = _plain(key)
    if plain not in KEYS:
        return None
    if plain == "mixed-precision" and value.lower() in OFF:
        return "fp32"
    return NAMES.get(value.lower().removeprefix("torch."))


def _plain(key: str) -> str:
    """`--Trainer.precision` -> `precision`."""
    return re.sub(r"_", "-", key.lstrip("-").rpartition(".")[2].lower())
