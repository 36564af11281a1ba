"""The comment of a job: `--comment "wattloop:model=resnet-50,batch=128,low-power"`."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from wattloop.core.units import SECONDS
from wattloop.core.yaml_spec import nearest

LOW_POWER_SHARE = 0.7
"""Cap of a job that asks for low power and names no caps, as a share of the GPU's TDP."""
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
SHARDING = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}
LAYOUT = re.compile(r"[a-z]{2,10}(=[0-9x]{1,9})?(\+[a-z]{2,10}(=[0-9x]{1,9})?){0,9}", re.ASCII)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}", re.ASCII)
NUMBER = re.compile(r"\d{1,15}(\.\d{1,15})?([eE]\+?\d{1,2})?", re.ASCII)
TIME = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(s|m|min|h|d)", re.ASCII)
MOST_CHOICES = 16
MOST_GPUS = 4096
MOST_BATCH = 65_536
MOST_SEQUENCE = 1_048_576
MOST_WORK = 1e15
LEAST_CAP = 0.1
YEAR_S = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class JobComment:
    """Fields of a job's comment; None or empty means not stated.

    Attributes:
        model: as written in the comment, not yet resolved.
        work: samples to train on.
        deadline_s: seconds after submission.
        zero, parallel, checkpointing, global_batch: how its GPUs divide it (`JobKind`).
        requests_per_s, prompt, output, weights, tp: of a service (`ServiceLoad`), whose work is in
            seconds.
    """

    model: str = ""
    batches: tuple[int, ...] = ()
    work: float | None = None
    gpus: tuple[int, ...] = ()
    precision: str = ""
    sequence: int | None = None
    caps: tuple[float, ...] = ()
    types: tuple[str, ...] = ()
    deadline_s: float | None = None
    low_power: bool = False
    may_spread: bool = False
    no_save: bool = False
    zero: int = 0
    parallel: str = ""
    checkpointing: str = "none"
    global_batch: int | None = None
    requests_per_s: float | None = None
    prompt: int = 512
    output: int = 512
    weights: str = "bf16"
    tp: int = 1


def with_field(stated: JobComment, key: str, text: str | None) -> JobComment:
    """Return the comment with one more field, `key=text`, or a flag when `text` is None.

    Raises:
        ValueError: the field is invalid; the message is short and states what is allowed.
    """
    if key in FLAGS:
        if text is not None:
            raise ValueError(f"{key}: takes no value; write it alone")
        flag: dict[str, Any] = {FLAGS[key]: True}
        return replace(stated, **flag)
    if key not in FIELDS:
        raise ValueError(f"unknown field {_quoted(key)}; {nearest(key[:40], [*FIELDS, *FLAGS])}")
    if text is None:
        raise ValueError(f"{key}: has no value; write {key}=...")
    name, read = FIELDS[key]
    try:
        changes: dict[str, Any] = {name: read(text)}
    except ValueError as error:
        raise ValueError(f"{key}={_quoted(text)}: {error}") from None
    return replace(stated, **changes)


def _quoted(text: str) -> str:
    """Shorten a text to plain characters for logs and terminals."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text[:40])
    return f"'{plain}...'" if len(text) > 40 else f"'{plain}'"


def _name(text: str) -> str:
    if NAME.fullmatch(text) is None or ".." in text:
        raise ValueError("write a name of letters, digits, '.', '_', '/' and '-', 100 at most")
    return text


def _names(text: str) -> tuple[str, ...]:
    return _choices(text, _name)


def _number(least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        if NUMBER.fullmatch(text) is None or not least <= float(text) <= most:
            raise ValueError(f"write a number from {least:g} to {most:g}")
        return float(text)

    return read


def _whole(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = _number(1, most)(text)
        if value != int(value):
            raise ValueError(f"write a whole number from 1 to {most}")
        return int(value)

    return read


def _wholes(most: int) -> Callable[[str], tuple[int, ...]]:
    return lambda text: _choices(text, _whole(most))


def _share(text: str) -> float:
    """Parse `0.7` or `70%`."""
    percent = text.endswith("%")
    value = _number(0, 100)(text[:-1] if percent else text) / (100 if percent else 1)
    if not LEAST_CAP <= value <= 1:
        raise ValueError(f"write shares of the GPU's power limit from {LEAST_CAP:g} to 1, or 70%")
    return value


def _shares(text: str) -> tuple[float, ...]:
    return _choices(text, _share)


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"choose one of {', '.join(words)}")
        return text

    return read


def _sharding(text: str) -> int:
    return SHARDING[_one_of(*SHARDING)(text)]


def _layout(text: str) -> str:
    if LAYOUT.fullmatch(text) is None:
        raise ValueError("write sizes joined by '+', such as tp=8+sp+fsdp")
    return text.replace("+", ",")


def _time(text: str) -> float:
    match = TIME.fullmatch(text)
    if match is None:
        raise ValueError("write a time from now, such as 90min, 2h or 3d")
    found = float(match.group(1)) * SECONDS[match.group(2)]
    if not 0 < found <= YEAR_S:
        raise ValueError("must be above 0 and at most a year")
    return found


def _choices(text: str, read: Callable[[str], Any]) -> tuple[Any, ...]:
    parts = text.split("|", MOST_CHOICES)
    if len(parts) > MOST_CHOICES:
        raise ValueError(f"at most {MOST_CHOICES} choices")
    return tuple(dict.fromkeys(read(part) for part in parts))


FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "model": ("model", _name),
    "batch": ("batches", _wholes(MOST_BATCH)),
    "samples": ("work", _number(1, MOST_WORK)),
    "gpus": ("gpus", _wholes(MOST_GPUS)),
    "precision": ("precision", _one_of(*PRECISIONS)),
    "seq": ("sequence", _whole(MOST_SEQUENCE)),
    "caps": ("caps", _shares),
    "types": ("types", _names),
    "deadline": ("deadline_s", _time),
    "sharding": ("zero", _sharding),
    "parallel": ("parallel", _layout),
    "checkpointing": ("checkpointing", _one_of("none", "selective", "half", "full")),
    "global-batch": ("global_batch", _whole(10**9)),
    "requests-per-s": ("requests_per_s", _number(1e-6, 1e6)),
    "prompt": ("prompt", _whole(MOST_SEQUENCE)),
    "output": ("output", _whole(MOST_SEQUENCE)),
    "weights": ("weights", _one_of("bf16", "fp16", "fp8", "int4")),
    "tp": ("tp", _whole(64)),
}
"""Key in a comment or a rule -> field of `JobComment`, and its parser."""
FLAGS = {"low-power": "low_power", "no-save": "no_save", "spread": "may_spread"}
"""Word in a comment -> field of `JobComment`."""


# The grammar of a job's comment.
#
#     --comment="wattloop:model=resnet-50,batch=128,samples=1e6,gpus=1|2|4,deadline=2h,low-power"
#
# A tag begins with `wattloop:`, at the start or after a blank, and ends at the next blank; the
# rest of the comment belongs to other programs. Fields are `key=value` or a flag, joined by commas,
# in any order; choices are joined by `|`. One wrong field makes the whole tag void: half of a
# request may mean the opposite.

LONGEST_COMMENT = 65_536
LONGEST_TAG = 1_024
TAG = re.compile(r"(?:^|(?<=\s))wattloop:(\S*)")
ALLOWED = re.compile(r"[A-Za-z0-9._/|=,%+-]*", re.ASCII)


def read_comment(text: str) -> tuple[JobComment | None, str]:
    """Return the fields of a comment, and why it was refused.

    Returns:
        The fields, None without a valid tag; and the refusal, empty without one. A comment without
        a tag is not an error.
    """
    if len(text) > LONGEST_COMMENT:
        return None, f"comment: longer than {LONGEST_COMMENT:,} characters; not read"
    tags = TAG.findall(text)
    if not tags:
        return None, ""
    if len(tags) > 1:
        return None, f"comment: has {len(tags)} tags that begin with wattloop:; write one"
    return _read_tag(tags[0])


def _read_tag(tag: str) -> tuple[JobComment | None, str]:
    if len(tag) > LONGEST_TAG:
        return None, f"comment: the tag is longer than {LONGEST_TAG:,} characters"
    if ALLOWED.fullmatch(tag) is None:
        return (
            None,
            "comment: the tag has characters other than letters, digits and . _ / | = % + -",
        )
    stated, seen = JobComment(), set()
    for item in tag.split(","):
        key, equals, value = item.partition("=")
        if key in seen:
            return None, f"comment: {key[:40]} is stated twice"
        seen.add(key)
        try:
            stated = with_field(stated, key, value if equals else None)
        except ValueError as error:
            return None, f"comment: {error}"
    return stated, ""
