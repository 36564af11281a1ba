"""The table of well-known configurations: facts, not weights."""

import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError

__all__ = ["architecture", "architecture_names", "canonical_name"]

DATA_FILE = Path(__file__).with_name("architectures.yaml")


def architecture(name: str) -> dict[str, Any] | None:
    """Keys of the configuration, `model_type` among them; None when the name is not known.

    The organisation (`openai-community/gpt2`), case, `-hf` and underscores do not matter.
    """
    known = _by_key().get(_key(name))
    return None if known is None else _whole(known)


def architecture_names() -> tuple[str, ...]:
    """Every name of the table, without other spellings."""
    return tuple(_table())


def canonical_name(name: str) -> str | None:
    """What the table calls it, for any spelling of it that the table knows."""
    return _by_key().get(_key(name))


def unknown(name: str) -> ConfigError:
    """The error for a name that nobody knows, with what it may have meant."""
    near = get_close_matches(_key(name), list(_by_key()), n=5, cutoff=0.5)
    meant = list(dict.fromkeys(_by_key()[key] for key in near))
    hint = f"did you mean {', '.join(f'hf:{m}' for m in meant)}? " if meant else ""
    return ConfigError(
        f"model hf:{name}: not in the table, no such config.json or folder, and not in the local "
        f"cache of Hugging Face; {hint}'wattloop predict models' lists the table; any other "
        "configuration is used with hf:PATH/config.json"
    )


def _whole(name: str) -> dict[str, Any]:
    """An entry with what it takes from the one it is like."""
    entry = dict(_table()[name])
    base = entry.pop("like", None)
    entry.pop("names", None)
    return {**(_whole(base) if base else {}), **entry}


def _key(name: str) -> str:
    return re.sub(r"-hf$", "", name.rpartition("/")[2].lower().replace("_", "-"))


@cache
def _by_key() -> dict[str, str]:
    keys = {}
    for name, entry in _table().items():
        for spelling in (name, *entry.get("names", ())):
            keys[_key(spelling)] = name
    return keys


@cache
def _table() -> dict[str, dict[str, Any]]:
    import yaml

    table: dict[str, dict[str, Any]] = yaml.safe_load(DATA_FILE.read_text(encoding="utf-8"))
    return table
