"""Models on fake weights: of a module, a Transformers configuration or a factory."""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from wattloop.core.errors import ConfigError
from wattloop.predict.workload.tracing.constant_tracking import Known, know


@contextmanager
def on_fake_weights(module: Any) -> Iterator[None]:
    """Replace parameters and buffers by fake ones within this context.

    Afterwards the model is restored, including attributes that its forward pass sets.
    """
    _no_lazy_ones(module)
    kept = [(each, dict(vars(each)), _contents(each)) for each in module.modules()]
    known: dict[int, Any] = {}
    for each, attributes, _ in kept:
        for held in (each._parameters, each._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = _stand_in(tensor, known)
        for name, value in attributes.items():
            if isinstance(value, torch.Tensor) or type(value) in (list, tuple):
                vars(each)[name] = tree_map(lambda one: _away(one, known), value)
    try:
        yield
    finally:
        for each, attributes, contents in kept:
            vars(each).clear()
            vars(each).update(attributes)
            for container, content in contents:
                container.clear()
                (container.extend if isinstance(container, list) else container.update)(content)


def _contents(module: Any) -> list[tuple[Any, Any]]:
    """Return lists, dictionaries and sets among the attributes, each with a copy."""
    held = (value for value in vars(module).values() if type(value) in _CONTAINERS)
    return [(each, each.copy()) for each in held]


def _stand_in(tensor: Any, known: dict[int, Any]) -> Any:
    """Return the same fake tensor each time for a tensor."""
    if id(tensor) not in known:
        known[id(tensor)] = _fake_weight(tensor)
    return known[id(tensor)]


def _away(value: Any, known: dict[int, Any]) -> Any:
    """Return whether a tensor is replaced; small CPU tensors may be settings."""
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        return _stand_in(value, known)
    return value


def _fake_weight(tensor: Any) -> Any:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    if tensor.numel() == 1 and tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor):
        with unset_fake_temporarily():
            value = tensor.item()
        if isinstance(value, (int, float)):
            know(made, Known(value))
    return made


def _no_lazy_ones(module: Any) -> None:
    for path, each in module.named_modules():
        for name, tensor in (*each._parameters.items(), *each._buffers.items()):
            if tensor is not None and is_lazy(tensor):
                raise ConfigError(
                    f"model: '{path + '.' if path else ''}{name}' of a {type(each).__name__} has "
                    "no shape before the first call; call the model once on an input, or give "
                    "the layer its input size"
                )


_CONTAINERS = (list, dict, set, OrderedDict)


@contextmanager
def conversions_work() -> Iterator[None]:
    """Allow conversions of modules of fake tensors within this context.

    Torch swaps the contents of fake weights, which it refuses for tensors with other references
    (the fake mode has some). New ones replace them here, the same for tied weights.
    """
    kind: Any = torch.nn.Module
    original = kind._apply
    made: dict[tuple[int, int], tuple[Any, Any, Any]] = {}

    def convert(change: Callable[[Any], Any], tensor: Any) -> Any:
        key = (id(change), id(tensor))
        if key not in made:
            with torch.no_grad():
                new = change(tensor)
            if isinstance(tensor, torch.nn.Parameter) and new is not tensor:
                new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
            made[key] = (new, change, tensor)  # the last two: so that their ids stay theirs
        return made[key][0]

    def apply(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        for each in self.children() if recurse else ():
            each._apply(fn)
        for held in (self._parameters, self._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = convert(fn, tensor)
        return self

    kind._apply = apply
    try:
        yield
    finally:
        kind._apply = original


def module_of(model: Any) -> Any:
    """Return the module that `model` is, describes or makes; called in the fake mode."""
    if isinstance(model, torch.nn.Module):
        # What torch.compile wraps is traced as it would run without.
        return getattr(model, "_orig_mod", model)
    if hasattr(model, "model_type") and hasattr(model, "to_dict"):
        return _from_config(model)
    if callable(model):
        with _building():
            made = model()
        if isinstance(made, torch.nn.Module):
            return made
        raise ConfigError(
            f"model: the factory gave a {type(made).__name__}; it has to give a torch.nn.Module"
        )
    raise ConfigError(
        f"model: expected a torch.nn.Module, a Hugging Face configuration or a function that "
        f"makes a module, got {type(model).__name__}"
    )


def faked(values: Any) -> Any:
    """Convert tensors in `values` (tensors, lists, dictionaries) to fake ones of the same shape."""
    if callable(values) and not isinstance(values, torch.Tensor):
        values = values()
    if isinstance(values, Mapping) and type(values) is not dict:
        values = dict(values)  # a tokenizer's result
    return tree_map(_fake, values)


def _fake(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    return made.requires_grad_() if value.requires_grad else made


def _from_config(config: Any) -> Any:
    """Build the model of a configuration: the class it names, else the one with a training loss."""
    import transformers

    names = list(getattr(config, "architectures", None) or ())
    if names and hasattr(transformers, names[0]):
        with _building():
            return getattr(transformers, names[0])._from_config(config)
    for auto in _AUTO_CLASSES:
        family = getattr(transformers, auto)
        if type(config) in family._model_mapping:
            with _building():
                return family.from_config(config)
    raise ConfigError(
        f"model: transformers knows no model for {type(config).__name__}; give a function that "
        "makes the module instead"
    )


_AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForImageClassification",
    "AutoModelForSequenceClassification",
    "AutoModel",
)


@contextmanager
def _building() -> Iterator[None]:
    """Build a model within this context: its weights have no values, its settings do."""
    with (
        _SmallOnesAreReal(),
        _NothingIsFound(),
        conversions_work(),
        warnings.catch_warnings(),
    ):
        # Copying a module copies fake tensors, of which torch warns.
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        yield


class _NothingIsFound(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed here
    """Mode in which initialisations that search for values (out of bounds?) find none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            tensor = args[0]
            if isinstance(tensor, FakeTensor) and tensor.constant is None:
                return False if tensor.dtype == torch.bool else 0
        return func(*args, **(kwargs or {}))


class _SmallOnesAreReal(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Mode in which short ranges of numbers stay real while a model is built.

    Models read settings from them, such as a rate of dropout for each layer.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _RANGES and all(isinstance(each, (int, float)) for each in args):
            with unset_fake_temporarily():
                made = func(*args, **{**kwargs, "device": "meta"})
                if prod(made.shape) <= _SMALL:
                    return func(*args, **{**kwargs, "device": "cpu"})
        return func(*args, **kwargs)


_RANGES = (torch.linspace, torch.arange)
_SMALL = 4096
