"""What a model of Transformers is trained for, and the inputs that takes."""

from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.predict.sources.libraries import needs_torch
from wattloop.predict.sources.source import (
    DEFAULT_BATCH,
    DEFAULT_IMAGE,
    DEFAULT_SEQ,
    Inputs,
    Sizes,
)

__all__ = ["HEADS", "ModelInputs", "inputs_of", "usual_head"]

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
    """The head its architecture is named after, else the usual one for its kind."""
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
    # what can fill in masked words is an encoder, and an encoder is fine-tuned to classify
    if has("causal-lm") and not has("masked-lm"):
        return "causal-lm"
    return next((h for h in ("sequence-classification", "causal-lm") if has(h)), "none")


def inputs_of(name: str, config: Any, head: str, sizes: Sizes, *, training: bool) -> ModelInputs:
    """What one pass takes; labels only where it trains."""
    batch = sizes.batch or DEFAULT_BATCH
    notes = () if sizes.batch else (f"batch: {batch}, as none was stated",)
    if head == "image-classification" or not hasattr(config, "vocab_size"):
        return _images(name, config, head, sizes, batch, notes, training=training)
    return _tokens(name, config, head, sizes, batch, notes, training=training)


def _images(
    name: str,
    config: Any,
    head: str,
    sizes: Sizes,
    batch: int,
    notes: tuple[str, ...],
    *,
    training: bool,
) -> ModelInputs:
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
    if not sizes.image:
        notes = (*notes, f"image: {side} x {side}, as none was stated")
    shape = (batch, config.num_channels, side, side)
    tensors = {"pixel_values": torch.empty(shape, device="meta")}
    if training and head != "none":
        tensors["labels"] = torch.empty(batch, dtype=torch.long, device="meta")
    return ModelInputs(tensors, batch, notes)


def _tokens(
    name: str,
    config: Any,
    head: str,
    sizes: Sizes,
    batch: int,
    notes: tuple[str, ...],
    *,
    training: bool,
) -> ModelInputs:
    torch = needs_torch(f"model hf:{name}")
    limit, is_hard = _positions(config)
    seq = sizes.seq or min(DEFAULT_SEQ, limit or DEFAULT_SEQ)
    if not sizes.seq:
        notes = (*notes, f"seq: {seq} tokens, as none was stated")
    if limit is not None and seq > limit:
        if is_hard:
            raise ConfigError(
                f"seq {seq}: {name} has {limit} positions; choose at most that, or a config.json "
                "with more (hf:PATH/config.json)"
            )
        notes = (*notes, f"seq {seq} is beyond the {limit} positions {name} was made for")
    if head == "sequence-classification" and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0  # which a classifier looks for at the end of each sample
    tensors = {"input_ids": torch.empty((batch, seq), dtype=torch.long, device="meta")}
    if training and head != "none":
        per_token = head != "sequence-classification"
        shape = (batch, seq) if per_token else (batch,)
        tensors["labels"] = torch.empty(shape, dtype=torch.long, device="meta")
    elif head == "seq2seq-lm":
        tensors["decoder_input_ids"] = tensors["input_ids"]
    return ModelInputs(tensors, batch, (*notes, "no padding: every sample has all tokens"))


def _positions(config: Any) -> tuple[int | None, bool]:
    """The most tokens, and whether more cannot be used at all (a table of positions)."""
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        return None, False
    rotary = any(
        getattr(config, key, None) is not None
        for key in ("rope_theta", "rope_parameters", "rope_scaling", "rotary_dim", "rotary_pct")
    )
    return limit - OFFSET_POSITIONS.get(config.model_type, 0), not rotary
