"""Source of a user's function that makes a model: `torch:package.module:name`, `file.py:name`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import load_user_code
from wattloop.predict.sources.inputs import GuessedLoss, guessed_inputs, stated_inputs
from wattloop.predict.sources.source import Inputs, ModelSource, Sizes, needs_torch

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
