"""A module, a Hugging Face configuration or a factory -> a module of fake tensors."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from wattloop.core.errors import ConfigError
from wattloop.predict.workload.tracing.converting import conversions_work

__all__ = ["faked", "module_of"]


def module_of(model: Any) -> Any:
    """The module that `model` is, describes or makes; called where tensors are fake."""
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
    """Tensors among `values` (tensors, lists, dictionaries) as fake ones of the same shape."""
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
    """The model a configuration is for: the class it names, else the one with a training loss."""
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
    """A model is built in here: its weights have no values, its settings do."""
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
    """Initialisations that look at what they made (is a value out of bounds?) find nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer 0 where a number is read from a fake tensor."""
        if func is torch.ops.aten._local_scalar_dense.default:
            tensor = args[0]
            if isinstance(tensor, FakeTensor) and tensor.constant is None:
                return False if tensor.dtype == torch.bool else 0
        return func(*args, **(kwargs or {}))


class _SmallOnesAreReal(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Short ranges of numbers stay real while a model is built.

    Models read settings from them, such as a rate of dropout for each layer.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Make small ranges real, leave the rest as it is."""
        kwargs = kwargs or {}
        if func in _RANGES and all(isinstance(each, (int, float)) for each in args):
            with unset_fake_temporarily():
                made = func(*args, **{**kwargs, "device": "meta"})
                if prod(made.shape) <= _SMALL:
                    return func(*args, **{**kwargs, "device": "cpu"})
        return func(*args, **kwargs)


_RANGES = (torch.linspace, torch.arange)
_SMALL = 4096
