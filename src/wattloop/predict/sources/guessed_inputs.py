"""What a module seems to take, from its first layers and the signature of its forward."""

import inspect
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.predict.sources.heads import HEADS, ModelInputs, inputs_of
from wattloop.predict.sources.libraries import needs_torch
from wattloop.predict.sources.source import DEFAULT_BATCH, DEFAULT_IMAGE, DEFAULT_SEQ, Sizes

__all__ = ["guessed_inputs"]

STATE_IT = 'state them, such as --input "x=float32[B,3,224,224]", or return (module, inputs)'


class _Guess(NamedTuple):
    shape: tuple[int, ...]
    is_index: bool
    why: str
    uses: str
    """Which size it has taken: `seq`, `image` or neither."""


def guessed_inputs(name: str, module: Any, sizes: Sizes, *, training: bool) -> ModelInputs:
    """One tensor for one parameter of forward, shaped for the first layer that decides.

    Raises:
        ConfigError: forward takes several things, or no layer says what it takes.
    """
    torch = needs_torch(f"model {name}")
    if hasattr(module, "config") and hasattr(module.config, "model_type"):
        return _of_transformers(name, module, sizes, training=training)
    parameter = _parameter(name, module)
    batch = sizes.batch or DEFAULT_BATCH
    guess = next(filter(None, (_of_layer(torch, m, batch, sizes) for m in module.modules())), None)
    if guess is None:
        raise ConfigError(f"model {name}: none of its layers says what {parameter} is; {STATE_IT}")
    kind = "int64" if guess.is_index else "float32"
    size = ", ".join(map(str, guess.shape))
    notes = [f"input: {parameter} = {kind}[{size}], guessed from {guess.why}"]
    if sizes.batch is None:
        notes.append(f"batch: {batch}, as none was stated")
    if guess.uses and getattr(sizes, guess.uses) is None:
        usual = {"seq": DEFAULT_SEQ, "image": DEFAULT_IMAGE}[guess.uses]
        notes.append(f"{guess.uses}: {usual}, as none was stated")
    dtype = torch.long if guess.is_index else torch.float32
    tensor = torch.empty(guess.shape, dtype=dtype, device="meta")
    return ModelInputs((tensor,), batch, tuple(notes))


def _of_transformers(name: str, module: Any, sizes: Sizes, *, training: bool) -> ModelInputs:
    """A model of Transformers that somebody else has built."""
    kind = type(module).__name__
    if kind.endswith("LMHeadModel"):
        head = "causal-lm"
    elif kind.endswith("ForConditionalGeneration"):
        head = "seq2seq-lm"
    else:  # no head is the last, and ends every name
        head = next(h for h, auto in HEADS.items() if kind.endswith(auto.removeprefix("AutoModel")))
    return inputs_of(name, module.config, head, sizes, training=training)


def _parameter(name: str, module: Any) -> str:
    """The only parameter of forward that needs a value."""
    parameters = inspect.signature(module.forward).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p.name for p in positional if p.default is p.empty]
    if len(needed) > 1:
        raise ConfigError(
            f"model {name}: its forward takes {', '.join(needed)}, too many to guess; {STATE_IT}"
        )
    if not needed and not positional and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise ConfigError(f"model {name}: its forward takes nothing by position; {STATE_IT}")
    return (needed or [p.name for p in positional] or ["input"])[0]


def _of_layer(torch: Any, layer: Any, batch: int, sizes: Sizes) -> _Guess | None:
    nn = torch.nn
    seq, image = sizes.seq or DEFAULT_SEQ, sizes.image or DEFAULT_IMAGE
    if isinstance(layer, nn.Conv2d):
        channels = layer.in_channels
        return _Guess((batch, channels, image, image), False, f"Conv2d of {channels} channels",
                      "image")  # fmt: skip
    if isinstance(layer, nn.Conv1d):
        return _Guess((batch, layer.in_channels, seq), False, "Conv1d", "seq")
    if isinstance(layer, nn.Embedding):
        return _Guess((batch, seq), True, f"Embedding of {layer.num_embeddings}", "seq")
    if isinstance(layer, nn.RNNBase):
        return _in_time(layer, batch, seq, layer.input_size)
    if isinstance(layer, nn.MultiheadAttention):
        return _in_time(layer, batch, seq, layer.embed_dim)
    if isinstance(layer, nn.Linear):
        return _Guess((batch, layer.in_features), False, f"Linear of {layer.in_features}", "")
    return None


def _in_time(layer: Any, batch: int, seq: int, width: int) -> _Guess:
    why = f"{type(layer).__name__} of {width}"
    if layer.batch_first:
        return _Guess((batch, seq, width), False, why, "seq")
    return _Guess((seq, batch, width), False, f"{why}, sequence first", "seq")
