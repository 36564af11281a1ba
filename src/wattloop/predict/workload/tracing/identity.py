"""Identity of a trace as text: the cache key of a model, its inputs and its options."""

import functools
import hashlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten

from wattloop.predict.workload.costs.registry import registered
from wattloop.predict.workload.trace import TraceRequest
from wattloop.predict.workload.tracing.fake_weights import module_of
from wattloop.version import __version__


class _Unknown(Exception):
    """Signal that something has no source or printable value."""


def identity_of(request: TraceRequest) -> list[str] | None:
    """Return parts of a key; None when something is unknown, such as a function without source."""
    try:
        return [
            f"wattloop {__version__}",
            f"torch {torch.__version__}",
            *_model(request.model),
            *(_shapes(each) for each in (request.inputs, request.targets)),
            _value(request.loss),
            _value(request.optimizer),
            repr(
                (
                    request.precision,
                    request.style,
                    request.compile,
                    request.training,
                    request.accumulate,
                    request.batch,
                    request.name,
                    request.merge,
                )
            ),
            *registered(),
        ]
    except _Unknown:
        return None


def _model(model: Any) -> Iterator[str]:
    if isinstance(model, torch.nn.Module):
        yield from _module(model)
    elif hasattr(model, "model_type") and hasattr(model, "to_dict"):
        import transformers

        yield f"transformers {transformers.__version__}"
        yield type(model).__qualname__
        yield json.dumps(model.to_dict(), sort_keys=True, default=str)
    else:
        # A factory may depend on anything; the module that it makes can be inspected.
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield from _module(module_of(model))


def _module(model: Any) -> Iterator[str]:
    """Return structure, settings, shapes and the source of every class that is not torch's own."""
    kinds = set()
    for name, each in model.named_modules():
        kinds.add(type(each))
        yield f"{name} {type(each).__qualname__} {each.training} {_settings(each)}"
        hooks = (*each._forward_hooks.values(), *each._forward_pre_hooks.values())
        yield from (_value(hook) for hook in hooks)
        for held in (each._parameters, each._buffers):
            for key, tensor in held.items():
                if tensor is not None:
                    yield f"{key} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}"
    for kind in sorted(kinds, key=lambda each: each.__qualname__):
        if not kind.__module__.startswith("torch."):
            yield _source(kind)


def _settings(module: Any) -> str:
    plain = {}
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or isinstance(value, torch.nn.Module):
            continue
        plain[name] = _value(value)
    return repr(plain)


def _shapes(values: Any) -> str:
    leaves, shape = tree_flatten(values)
    shown = [
        (tuple(each.shape), each.stride(), str(each.dtype), each.requires_grad)
        if isinstance(each, torch.Tensor)
        else _value(each)
        for each in leaves
    ]
    return f"{shape} {shown}"


def _value(value: Any, depth: int = 0) -> str:
    """Return a plain value, or the source of a function with its closure."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, torch.dtype)):
        return repr(value)
    if depth > 4:
        raise _Unknown
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {value.dtype}"
    if isinstance(value, torch.nn.Module):
        return "\n".join(_module(value))
    if isinstance(value, (list, tuple, set, frozenset)):
        return repr([_value(each, depth + 1) for each in value])
    if isinstance(value, dict):
        return repr([(str(key), _value(each, depth + 1)) for key, each in value.items()])
    if isinstance(value, functools.partial):
        return _value([value.func, list(value.args), value.keywords], depth + 1)
    if hasattr(value, "to_dict"):
        return json.dumps(value.to_dict(), sort_keys=True, default=str)
    if inspect.isbuiltin(value):
        return f"{value.__module__}.{value.__qualname__}"
    if callable(value):
        closed = getattr(value, "__closure__", None) or ()
        inside = [_value(cell.cell_contents, depth + 1) for cell in closed]
        code = getattr(value, "__code__", None)
        at = "" if code is None else (code.co_firstlineno, code.co_code.hex())
        return f"{_source(value)} {at} {getattr(value, '__defaults__', None)} {inside}"
    raise _Unknown


def _source(thing: Any) -> str:
    """Return the name and the whole source file, which often includes the functions it calls."""
    try:
        name, file = thing.__qualname__, inspect.getsourcefile(thing)
        inspect.getsource(thing)
    except (OSError, TypeError, AttributeError):
        raise _Unknown from None
    if file is None:
        raise _Unknown
    return f"{name} {_contents(file)}"


@functools.lru_cache
def _contents(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
