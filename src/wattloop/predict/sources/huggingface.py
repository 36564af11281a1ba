"""`hf:NAME`: a model of Transformers from its configuration alone; nothing is downloaded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import check_user_code
from wattloop.core.user_path import user_path
from wattloop.predict.sources.architectures import architecture, unknown
from wattloop.predict.sources.heads import HEADS, inputs_of, usual_head
from wattloop.predict.sources.libraries import needs_torch, needs_transformers, quiet_libraries
from wattloop.predict.sources.source import Sizes, Source

__all__ = ["configuration_named", "huggingface_source"]

CLASSES = 1_000
"""Of an image classifier, as in ImageNet."""


def huggingface_source(
    name: str, sizes: Sizes, *, head: str | None = None, training: bool = True
) -> Source:
    """The model of the table, of a `config.json`, of a folder with one, or of the local cache.

    Raises:
        ConfigError: no such configuration, a head it does not have, or sizes that do not fit.
    """
    entry, notes = configuration_named(name)  # a wrong name is told before anything is loaded
    transformers = needs_transformers(f"model hf:{name}")
    config = _config(transformers, name, entry)
    head = head or usual_head(transformers, config)
    if head not in HEADS:
        raise ConfigError(f"head {head}: unknown; choose one of {', '.join(HEADS)}")
    if head == "image-classification" and "id2label" not in entry and "num_labels" not in entry:
        config.num_labels = CLASSES
    inputs = inputs_of(name, config, head, sizes, training=training)
    module = _built(transformers, name, config, head)
    _without_looking_at_values(module)
    told = [*notes, f"head: {head}", *inputs.notes]
    return Source(f"hf:{name}", module, inputs.tensors, None, inputs.batch, tuple(told))


def configuration_named(name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Keys of the configuration, and a note where it is from; needs neither torch nor network."""
    entry = architecture(name)
    if entry is not None:
        return entry, ()
    check_user_code(f"model hf:{name}: not in the table")
    path = user_path(name)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return _read(path), ()
    cached = _cached(name)
    if cached is not None:
        return _read(cached), (f"configuration from {cached}",)
    if name.endswith(".json"):
        raise ConfigError(f"model hf:{name}: no file {path}; name a config.json or its folder")
    raise unknown(name)


def _cached(name: str) -> Path | None:
    """Where an earlier download of somebody's left the configuration."""
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, "config.json")
    except (ImportError, ValueError):  # the library says ValueError for what is no name of a model
        return None
    return Path(found) if isinstance(found, str) else None


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {path}: is not a configuration in JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
        raise ConfigError(
            f"model {path}: no model_type in it, which says what kind of model it is; a "
            "config.json of Transformers has one"
        )
    return data


def _config(transformers: Any, name: str, entry: Mapping[str, Any]) -> Any:
    kinds = transformers.CONFIG_MAPPING
    kind = entry["model_type"]
    if kind not in kinds:
        raise ConfigError(
            f"model hf:{name}: model_type {kind} is not known to transformers "
            f"{transformers.__version__}; try pip install --upgrade transformers"
        )
    given = {key: value for key, value in entry.items() if key != "model_type"}
    try:
        config = kinds[kind](**given)
    except Exception as error:  # noqa: BLE001 - each class refuses in its own way
        raise ConfigError(f"model hf:{name}: its configuration is refused: {error}") from None
    # keys and values of past tokens are kept for generation, not for training
    config.use_cache = False
    if config.architectures is None:
        config.architectures = []
    return config


def _without_looking_at_values(module: Any) -> None:
    """Leave out a warning that reads the tokens, of which there are none here."""
    name = "warn_if_padding_and_no_attention_mask"
    for part in module.modules():
        if hasattr(part, name):
            setattr(part, name, lambda *_, **__: None)


def _built(transformers: Any, name: str, config: Any, head: str) -> Any:
    torch = needs_torch(f"model hf:{name}")
    maker = getattr(transformers, HEADS[head])
    if type(config) not in maker._model_mapping:
        fitting = [
            h for h, a in HEADS.items() if type(config) in getattr(transformers, a)._model_mapping
        ]
        raise ConfigError(
            f"head {head}: {config.model_type} has none; it has {', '.join(fitting) or 'no head'}"
        )
    try:
        with quiet_libraries(), torch.device("meta"):
            return maker.from_config(config)
    except Exception as error:  # noqa: BLE001 - each class refuses in its own way
        raise ConfigError(
            f"model hf:{name}: cannot be built from its configuration: "
            f"{type(error).__name__}: {error}"
        ) from None
