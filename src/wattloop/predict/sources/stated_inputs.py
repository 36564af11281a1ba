"""`--input "x=float32[B,3,224,224]"`: inputs as a person writes them down."""

import re
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.predict.sources.libraries import needs_torch
from wattloop.predict.sources.source import (
    DEFAULT_BATCH,
    DEFAULT_IMAGE,
    DEFAULT_SEQ,
    Inputs,
    Sizes,
)

__all__ = ["stated_inputs"]

PATTERN = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)\s*=\s*)?(?P<dtype>\w+)\s*\[(?P<dims>[^\]]*)\]")
DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8", "bool")
EXAMPLE = "write it as x=float32[B,3,224,224]; B, S and I are batch, seq and image"


def stated_inputs(texts: tuple[str, ...], sizes: Sizes) -> Inputs:
    """Tensors of the shapes that were written; by name when they have names.

    Raises:
        ConfigError: one cannot be read, or some have names and some have none.
    """
    read = [_read(text, sizes) for text in texts]
    names = [name for name, _ in read if name]
    if names and len(names) < len(read):
        raise ConfigError(f"input {texts[0]}: give every input a name, or none of them")
    if len(set(names)) < len(names):
        raise ConfigError(f"input {texts[-1]}: the same name twice")
    if names:
        return {str(name): tensor for name, tensor in read}
    return tuple(tensor for _, tensor in read)


def _read(text: str, sizes: Sizes) -> tuple[str | None, Any]:
    torch = needs_torch("stating inputs")
    found = PATTERN.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"input {text}: cannot be read; {EXAMPLE}")
    if found["dtype"] not in DTYPES:
        raise ConfigError(
            f"input {text}: unknown type {found['dtype']}; choose one of {', '.join(DTYPES)}"
        )
    shape = tuple(_dimension(part.strip(), text, sizes) for part in found["dims"].split(","))
    return found["name"], torch.empty(shape, dtype=getattr(torch, found["dtype"]), device="meta")


def _dimension(part: str, text: str, sizes: Sizes) -> int:
    letters = {
        "B": sizes.batch or DEFAULT_BATCH,
        "S": sizes.seq or DEFAULT_SEQ,
        "I": sizes.image or DEFAULT_IMAGE,
    }
    if part.upper() in letters:
        return letters[part.upper()]
    if not part.isdecimal() or int(part) < 1:
        raise ConfigError(f"input {text}: {part or 'nothing'} is no size; {EXAMPLE}")
    return int(part)
