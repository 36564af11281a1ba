"""Source of a user's function that makes a model: `torch:package.module:name`, `file.py:name`."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import load_user_code
from wattloop.predict.sources.huggingface import HEADS, ModelInputs, inputs_of
from wattloop.predict.sources.source import (
    DEFAULT_BATCH,
    DEFAULT_IMAGE,
    DEFAULT_SEQ,
    Inputs,
    ModelSource,
    Sizes,
    needs_torch,
)

# Inputs and loss of a module: stated by the user, or inferred from its layers.

PATTERN = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)\s*=\s*)?(?P<dtype>\w+)\s*\[(?P<dims>[^\]]*)\]")
DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8", "bool")
EXAMPLE = "write it as x=float32[B,3,224,224]; B, S and I are batch, seq and image"


def stated_inputs(texts: tuple[str, ...], sizes: Sizes) -> Inputs:
    """Return tensors of the stated shapes; by name when they have names.

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
        raise ConfigError(f"input {text}: {part or 'nothing'} is not a size; {EXAMPLE}")
    return int(part)


STATE_IT = 'state them, such as --input "x=float32[B,3,224,224]", or return (module, inputs)'


class _Guess(NamedTuple):
    shape: tuple[int, ...]
    is_index: bool
    why: str
    uses: str
    """Size that it uses: `seq`, `image` or neither."""


def guessed_inputs(name: str, module: Any, sizes: Sizes, *, training: bool) -> ModelInputs:
    """Return one tensor for one parameter of forward, shaped for the first decisive layer.

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
    kind = type(module).__name__
    if kind.endswith("LMHeadModel"):
        head = "causal-lm"
    elif kind.endswith("ForConditionalGeneration"):
        head = "seq2seq-lm"
    else:  # no head is the last, and ends every name
        head = next(h for h, auto in HEADS.items() if kind.endswith(auto.removeprefix("AutoModel")))
    return inputs_of(name, module.config, head, sizes, training=training)


def _parameter(name: str, module: Any) -> str:
    """Return the only parameter of forward that needs a value."""
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


STATE_LOSS = "return (module, inputs, loss) from the factory, where loss takes the output"


class GuessedLoss:
    """Function from output to loss; `note` then describes the choice.

    The module's own loss, cross entropy of scores, or mean squared error.
    """

    def __init__(self, name: str, inputs: Any = ()) -> None:
        self._name = name
        self._inputs = inputs
        self.note = ""

    def __call__(self, output: Any) -> Any:
        """Return the loss against unknown targets, which cost nothing to make."""
        own = _own_loss(output)
        if own is not None:
            self.note = "loss: the module's own"
            return own
        scores = _scores(output)
        if scores is None:
            kind = type(output).__name__
            raise ConfigError(
                f"model {self._name}: no loss can be guessed for an output of type {kind}; "
                f"{STATE_LOSS}"
            )
        if not scores.is_floating_point():
            raise ConfigError(
                f"model {self._name}: its output is of whole numbers, which cannot be trained; "
                f"{STATE_LOSS}"
            )
        return self._of(scores)

    def _of(self, scores: Any) -> Any:
        import torch
        from torch.nn import functional

        shape = tuple(scores.shape)
        said = "x".join(map(str, shape))
        first = _first(self._inputs)
        tokens = first is not None and not first.is_floating_point()
        same = first is not None and tuple(first.shape) == shape
        classes = {
            2: shape[-1],
            3: shape[-1] if tokens else 1,
            4: shape[1] if len(shape) == 4 else 1,
        }
        if same or classes.get(len(shape), 1) <= 1:
            self.note = f"loss: mean squared error of the {said} output, guessed"
            return functional.mse_loss(scores, torch.empty_like(scores))
        if len(shape) == 3:
            scores = scores.flatten(0, 1)
        if len(shape) == 4:
            targets = scores.new_empty((shape[0], *shape[2:]), dtype=torch.long)
        else:
            targets = scores.new_empty(scores.shape[0], dtype=torch.long)
        what = {2: "classes", 3: "tokens", 4: "pixels"}[len(shape)]
        self.note = f"loss: cross entropy over {what} of the {said} output, guessed"
        return functional.cross_entropy(scores, targets)


def _own_loss(output: Any) -> Any:
    if isinstance(output, Mapping):
        return output.get("loss")
    return getattr(output, "loss", None)


def _scores(output: Any) -> Any:
    import torch

    if isinstance(output, torch.Tensor):
        return output
    for name in ("logits", "out", "last_hidden_state", "prediction", "output"):
        found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(found, torch.Tensor):
            return found
    values = list(output.values()) if isinstance(output, Mapping) else output
    if isinstance(values, tuple | list):
        return next((_scores(v) for v in values if isinstance(v, torch.Tensor)), None)
    return None


def _first(inputs: Any) -> Any:
    import torch

    values = inputs.values() if isinstance(inputs, Mapping) else inputs
    return next((v for v in values if isinstance(v, torch.Tensor)), None)


RETURNS = "return an nn.Module, (module, inputs) or (module, inputs, loss)"


def factory_source(
    text: str, sizes: Sizes, *, stated: tuple[str, ...] = (), training: bool = True
) -> ModelSource:
    """Call the function named as `package.module:factory` or `file.py:factory`.

    Its parameters named batch, seq or image get those sizes; any other needs a default.

    Raises:
        ConfigError: it cannot be found, raises, or returns something else.
    """
    needs_torch(f"model {text}")
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise ConfigError(
            f"model {text}: name the function as well, such as {text or 'file.py'}:make_model"
        )
    factory = _attribute(load_user_code(place, f"model {text}", "factory"), name, text)
    made = _called(factory, sizes, text)
    parts = made if isinstance(made, tuple) else (made,)
    if not 1 <= len(parts) <= 3:
        raise ConfigError(f"model {text}: returned {len(parts)} things; {RETURNS}")
    module, inputs, loss = (*parts, None, None)[:3]
    return module_source(
        text, module, sizes, inputs=inputs, loss=loss, stated=stated, training=training
    )


def module_source(
    name: str,
    module: Any,
    sizes: Sizes,
    *,
    inputs: Any = None,
    loss: Callable[..., Any] | None = None,
    stated: tuple[str, ...] = (),
    training: bool = True,
) -> ModelSource:
    """Return a module with its known inputs and loss; the rest is inferred, with a note."""
    torch = needs_torch(f"model {name}")
    if not isinstance(module, torch.nn.Module):
        kind = type(module).__name__
        raise ConfigError(f"model {name}: is a {kind}, not a module of torch; {RETURNS}")
    if loss is not None and not callable(loss):
        raise ConfigError(f"model {name}: its loss is a {type(loss).__name__}, not a function")
    notes: tuple[str, ...] = ()
    if stated:
        tensors: Inputs = stated_inputs(stated, sizes)
        batch = _batch(tensors)
    elif inputs is not None:
        tensors = _as_inputs(name, inputs)
        batch = _batch(tensors)
        if sizes.batch not in (None, batch):
            raise ConfigError(
                f"batch {sizes.batch}: {name} returns inputs of {batch} samples; give the factory "
                "a parameter named batch and make them of that size"
            )
    else:
        guess = guessed_inputs(name, module, sizes, training=training)
        tensors, batch, notes = guess.tensors, guess.batch, guess.notes
    if loss is None and training:
        loss = GuessedLoss(name, tensors)
    return ModelSource(name, module, tensors, loss, batch, notes)


def _attribute(module: Any, name: str, text: str) -> Any:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            from difflib import get_close_matches

            public = [n for n in vars(module) if not n.startswith("_")]
            near = get_close_matches(name, public, n=3, cutoff=0.4)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ConfigError(f"model {text}: no {name} in it{hint}")
    return found


def _called(factory: Any, sizes: Sizes, text: str) -> Any:
    torch = needs_torch(f"model {text}")
    if isinstance(factory, torch.nn.Module):
        return factory
    if not callable(factory):
        raise ConfigError(f"model {text}: is a {type(factory).__name__}, not a function; {RETURNS}")
    from wattloop.predict.workload.tracing.torch_state import OneDevice

    arguments = _arguments(factory, sizes, text)
    try:
        with torch.device("meta"), OneDevice("meta"):
            return factory(**arguments)
    except (Exception, SystemExit):  # noqa: BLE001 - the user's code may raise anything
        # some factories read values while they build, which meta tensors do not have
        try:
            with OneDevice("cpu"):
                return factory(**arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything
            raise ConfigError(
                f"model {text}: the factory failed with {type(error).__name__}: {error}; call it "
                "in Python to see where"
            ) from None


def _arguments(factory: Callable[..., Any], sizes: Sizes, text: str) -> dict[str, int]:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # written in C
        return {}
    given = sizes.named()
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    lacking = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and p.name not in given
    ]
    if lacking:
        raise ConfigError(
            f"model {text}: its parameter {lacking[0]} has no value; state it as --{lacking[0]} "
            "(batch, seq and image are passed on), or give it a default"
        )
    return {name: value for name, value in given.items() if name in names}


def _as_inputs(name: str, inputs: Any) -> Inputs:
    torch = needs_torch(f"model {name}")
    if isinstance(inputs, torch.Tensor):
        return (inputs,)
    if isinstance(inputs, Mapping):
        return dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs)
    raise ConfigError(
        f"model {name}: its inputs are a {type(inputs).__name__}; return a tensor, a tuple of "
        "arguments, or a dict of arguments by name"
    )


def _batch(inputs: Inputs) -> int:
    values = inputs.values() if isinstance(inputs, Mapping) else inputs
    for value in values:
        if getattr(value, "ndim", 0):
            return int(value.shape[0])
    return 1
