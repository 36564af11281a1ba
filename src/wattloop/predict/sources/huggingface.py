"""Source `hf:NAME`: a Transformers model built from its configuration, without downloads."""

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.user_code import check_user_code
from wattloop.predict.sources.source import (
    DEFAULT_BATCH,
    DEFAULT_IMAGE,
    DEFAULT_SEQ,
    Inputs,
    ModelSource,
    Sizes,
    needs_torch,
    needs_transformers,
    quiet_libraries,
)

DATA_FILE = Path(__file__).with_name("architectures.yaml")


def architecture(name: str) -> dict[str, Any] | None:
    """Return the keys of the configuration, `model_type` among them; None for an unknown name.

    The organisation (`openai-community/gpt2`), case, `-hf` and underscores do not matter.
    """
    known = _by_key().get(_key(name))
    return None if known is None else _whole(known)


def architecture_names() -> tuple[str, ...]:
    """Return every name of the table, without other spellings."""
    return tuple(_table())


def canonical_name(name: str) -> str | None:
    """Return the table's name for any spelling that the table has."""
    return _by_key().get(_key(name))


def unknown(name: str) -> ConfigError:
    near = get_close_matches(_key(name), list(_by_key()), n=5, cutoff=0.5)
    meant = list(dict.fromkeys(_by_key()[key] for key in near))
    hint = f"did you mean {', '.join(f'hf:{m}' for m in meant)}? " if meant else ""
    return ConfigError(
        f"model hf:{name}: not in the table, no such config.json or folder, and not in the local "
        f"cache of Hugging Face; {hint}'wattloop predict models' lists the table; any other "
        "configuration is used with hf:PATH/config.json"
    )


def _whole(name: str) -> dict[str, Any]:
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


HEADS = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "image-classification": "AutoModelForImageClassification",
    "none": "AutoModel",
}
"""Head -> the class of Transformers that builds it."""
OFFSET_POSITIONS = {"roberta": 2, "xlm-roberta": 2, "camembert": 2, "longformer": 2}
"""Rows of the table of positions that no token uses."""


class ModelInputs(NamedTuple):
    """Tensors on the meta device, how many samples they are, and what was assumed."""

    tensors: Inputs
    batch: int
    notes: tuple[str, ...]


def usual_head(transformers: Any, config: Any) -> str:
    """Return the head its architecture is named after, else the usual one for its kind."""
    for name in config.architectures or ():
        for head, maker in HEADS.items():
            if head != "none" and name.endswith(maker.removeprefix("AutoModel")):
                return head

    def has(head: str) -> bool:
        return type(config) in getattr(transformers, HEADS[head])._model_mapping

    if has("image-classification"):
        return "image-classification"
    if has("seq2seq-lm"):
        return "seq2seq-lm"
    # a model with a masked-LM head is an encoder, and encoders are fine-tuned to classify
    if has("causal-lm") and not has("masked-lm"):
        return "causal-lm"
    return next((h for h in ("sequence-classification", "causal-lm") if has(h)), "none")


def inputs_of(name: str, config: Any, head: str, sizes: Sizes, *, training: bool) -> ModelInputs:
    """Return the inputs of one pass; labels only for training."""
    batch = sizes.batch or DEFAULT_BATCH
    notes = () if sizes.batch else (f"batch: {batch}, as none was stated",)
    images = head == "image-classification" or not hasattr(config, "vocab_size")
    tensors, more = (_images if images else _tokens)(name, config, sizes, batch)
    torch = needs_torch(f"model hf:{name}")
    if training and head != "none":
        per_token = not images and head != "sequence-classification"
        shape = tensors["input_ids"].shape if per_token else (batch,)
        tensors["labels"] = torch.empty(shape, dtype=torch.long, device="meta")
    elif head == "seq2seq-lm" and not images:
        tensors["decoder_input_ids"] = tensors["input_ids"]
    classifies = head == "sequence-classification" and not images
    if classifies and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0  # which a classifier looks for at the end of each sample
    return ModelInputs(tensors, batch, (*notes, *more))


def _images(name: str, config: Any, sizes: Sizes, batch: int) -> tuple[dict[str, Any], list[str]]:
    torch = needs_torch(f"model hf:{name}")
    if not hasattr(config, "num_channels"):
        raise ConfigError(
            f"model hf:{name}: takes neither tokens nor images; write a factory that returns "
            "(module, inputs) and name it as file.py:factory"
        )
    usual = getattr(config, "image_size", DEFAULT_IMAGE)
    if not isinstance(usual, int):  # height and width
        usual = usual[0]
    side = sizes.image or usual
    patch = getattr(config, "patch_size", 1)
    if isinstance(patch, int) and side % patch:
        raise ConfigError(
            f"image {side}: {name} cuts images into patches of {patch} pixels; choose a multiple "
            f"of it, such as {max(1, side // patch) * patch}"
        )
    if hasattr(config, "image_size"):
        config.image_size = side
    notes = [] if sizes.image else [f"image: {side} x {side}, as none was stated"]
    shape = (batch, config.num_channels, side, side)
    return {"pixel_values": torch.empty(shape, device="meta")}, notes


def _tokens(name: str, config: Any, sizes: Sizes, batch: int) -> tuple[dict[str, Any], list[str]]:
    torch = needs_torch(f"model hf:{name}")
    limit, is_hard = _positions(config)
    seq = sizes.seq or min(DEFAULT_SEQ, limit or DEFAULT_SEQ)
    notes = [] if sizes.seq else [f"seq: {seq} tokens, as none was stated"]
    if limit is not None and seq > limit:
        if is_hard:
            raise ConfigError(
                f"seq {seq}: {name} has {limit} positions; choose at most that, or a config.json "
                "with more (hf:PATH/config.json)"
            )
        notes.append(f"seq {seq} is beyond the {limit} positions {name} was made for")
    notes.append("no padding: every sample has all tokens")
    return {"input_ids": torch.empty((batch, seq), dtype=torch.long, device="meta")}, notes


def _positions(config: Any) -> tuple[int | None, bool]:
    """Return the most tokens, and whether that is a hard limit (a table of positions)."""
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        return None, False
    rotary = any(
        getattr(config, key, None) is not None
        for key in ("rope_theta", "rope_parameters", "rope_scaling", "rotary_dim", "rotary_pct")
    )
    return limit - OFFSET_POSITIONS.get(config.model_type, 0), not rotary


CLASSES = 1_000
"""Of an image classifier, as in ImageNet."""


def huggingface_source(
    name: str, sizes: Sizes, *, head: str | None = None, training: bool = True
) -> ModelSource:
    """Return the model of the table, of a `config.json`, of a folder with one, or of the local
    cache.

    Raises:
        ConfigError: no such configuration, a head it does not have, or sizes that do not fit.
    """
    entry, notes = configuration_named(name)  # report a wrong name before importing torch
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
    return ModelSource(f"hf:{name}", module, inputs.tensors, None, inputs.batch, tuple(told))


def configuration_named(name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the keys of the configuration, and a note about its origin; needs neither torch nor
    network.
    """
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
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, "config.json")
    except (ImportError, ValueError):  # the library raises ValueError for an invalid name
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
    # keys and values of past tokens serve generation, not training
    config.use_cache = False
    if config.architectures is None:
        config.architectures = []
    return config


def _without_looking_at_values(module: Any) -> None:
    """Suppress a warning that reads the tokens, which have no values here."""
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
