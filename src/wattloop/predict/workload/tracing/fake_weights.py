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
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from wattloop.core.errors import ConfigError
from wattloop.predict.workload.tracing.constant_tracking import Known, know
from wattloop.predict.workload.tracing.torch_state import STAYS, on_one_device


@contextmanager
def on_fake_weights(module: Any, known: dict[int, Any] | None = None) -> Iterator[None]:
    """Replace parameters and buffers by fake ones within this context.

    Afterwards the model is restored, including attributes that its forward pass sets. `known` has
    the fake tensor of each real one by its identity, and gets those made here.
    """
    _no_lazy_ones(module)
    kept = [(each, dict(vars(each)), _contents(each)) for each in module.modules()]
    known = {} if known is None else known
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
    if getattr(tensor, "wattloop_stand_in", False):
        return tensor
    if id(tensor) not in known:
        made = _fake_weight(tensor)
        made.wattloop_stand_in = True
        known[id(tensor)] = made
    return known[id(tensor)]


class StandIns(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Mode in which a fake tensor stands in for each real one that belongs to the step.

    Those are tensors of any device but the CPU, and tensors that require a gradient. Tensors of the
    CPU that meet a fake one become fake by the fake mode itself. Devices of GPUs mean the CPU.

    Args:
        known: real tensor's identity -> fake tensor; shared with `on_fake_weights`.
        runs_host_code: tells whether operations among CPU tensors alone, such as the making of a
            batch, run for real now.
    """

    def __init__(
        self, known: dict[int, Any] | None = None, runs_host_code: Callable[[], bool] | None = None
    ) -> None:
        super().__init__()
        self._known: dict[int, Any] = {} if known is None else known
        self._runs_host_code = runs_host_code or (lambda: False)
        self._originals: list[Any] = []
        """Real tensors, so that no later one gets the same identity."""
        self._host: dict[int, Any] = {}
        """Storages that host code made, and may change."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in STAYS:
            return args[0]
        args, kwargs = on_one_device(func, args, kwargs, "cpu")
        tensors = [each for each in tree_flatten((args, kwargs))[0] if _is_tensor(each)]
        if any(isinstance(each, FakeTensor) or self._belongs(each) for each in tensors):
            args, kwargs = tree_map(self.of, (args, kwargs))
            if func in _VALUES:
                return _no_values(func, *args)
            return func(*args, **kwargs)
        if self._runs_host_code() and not self._changes_foreign(func, tensors, kwargs):
            with _disable_current_modes():
                made = func(*args, **kwargs)
                for each in tree_flatten(made)[0]:
                    if _is_tensor(each) and each.device.type == "cpu":
                        self._host[each.untyped_storage()._cdata] = each
            return made
        return func(*args, **kwargs)

    @contextmanager
    def in_backward(self) -> Iterator[None]:
        """Keep the mode active in backward passes, which compute checkpointed layers again.

        A mode is not active in the functions that it handles, `Tensor.backward` among them.
        """
        original = torch.autograd._engine_run_backward

        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return original(*args, **kwargs)

        torch.autograd._engine_run_backward = run
        try:
            yield
        finally:
            torch.autograd._engine_run_backward = original

    def of(self, value: Any) -> Any:
        """Return the fake tensor that stands in for a real one; other values as they are."""
        if not _is_tensor(value) or isinstance(value, FakeTensor) or not self._belongs(value):
            return value
        if id(value) not in self._known:
            self._originals.append(value)
            with torch.inference_mode(False), torch.enable_grad():
                return _stand_in(value, self._known)
        return self._known[id(value)]

    def _belongs(self, tensor: Any) -> bool:
        if id(tensor) in self._known:
            return True
        with torch._C.DisableTorchFunction():
            return bool(tensor.requires_grad or tensor.device.type != "cpu")

    def _changes_foreign(self, func: Any, tensors: list[Any], kwargs: Any) -> bool:
        """Return whether an operation changes a tensor that existed before the step."""
        name = getattr(func, "__name__", "")
        changes = "out" in kwargs or name in _CHANGING or (name[-1:] == "_" and name[-2:] != "__")
        return changes and any(each.untyped_storage()._cdata not in self._host for each in tensors)


_VALUES = (
    torch.Tensor.numpy,
    torch.Tensor.tolist,
    torch.Tensor.__array__,
    torch.Tensor.__format__,
)
_IN_PLACE = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
_CHANGING = frozenset(
    ["__setitem__", "__set__", "__delete__", *(f"__i{name}__" for name in _IN_PLACE)]
)


def _no_values(func: Any, tensor: Any, *more: Any) -> Any:
    """Return zeros in the place of the values of a fake tensor."""
    import numpy

    if func is torch.Tensor.__format__:
        return str(tensor) if tensor.dim() else format(0.0, *more)

    kind = str(tensor.dtype).removeprefix("torch.")
    zeros = numpy.zeros(tuple(tensor.shape), "float32" if kind == "bfloat16" else kind)
    return zeros.tolist() if func is torch.Tensor.tolist else zeros


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


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
    return made.requires_grad_() if tensor.requires_grad else made


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
