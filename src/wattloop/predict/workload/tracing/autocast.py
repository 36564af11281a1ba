"""Types of CUDA's autocast for each operation, reproduced on fake CPU tensors."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

# CPU autocast has other lists (it leaves norms and softmax in bf16). During a trace, the operations
# of CUDA's lists (ATen/autocast_mode.h) get our kernels for the CPU's autocast key, and operations
# that only the CPU lists pass through.


@contextmanager
def cuda_lists(here: Callable[[], int]) -> Iterator["WeightCasts"]:
    """Use CUDA's autocast lists within this context, forward and backward (recomputation).

    `here` returns the location of a cast of a weight.
    """
    weights = WeightCasts(here)
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # torch warns about overridden kernels, which is intended here.
            warnings.simplefilter("ignore")
            _install(library, weights)
        yield weights
    finally:
        library._destroy()


@contextmanager
def autocasting(dtype: Any, weights: "WeightCasts", forgot: Callable[[int], Any]) -> Iterator[None]:
    """Autocast to `dtype`, or not at all if it is None, until the forward pass ends.

    Casts of weights are cached until then; `forgot` is entered when those of one location are
    freed.
    """
    try:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            yield
    finally:
        weights.forget(forgot)


class WeightCasts:
    """Casts to low precision; those of weights are cached until the forward pass ends."""

    def __init__(self, here: Callable[[], int]) -> None:
        self._here = here
        self._keeps = True
        self._kept: dict[tuple[int, Any], tuple[Any, Any]] = {}
        self._made: dict[int, list[tuple[int, Any]]] = {}

    def forget(self, forgot: Callable[[int], Any]) -> None:
        """Free the casts; only those saved for the backward pass stay alive.

        From then on none is cached: a recomputed forward casts its weights again.
        """
        for place, keys in self._made.items():
            with forgot(place):
                for key in keys:
                    del self._kept[key]
        self._made.clear()
        self._keeps = False

    def keep(self) -> None:
        """Cache casts again: a further forward pass begins."""
        self._keeps = True

    def low(self, value: Any, dtype: Any = None) -> Any:
        """Return the value as autocast gives it to an operation of low precision."""
        dtype = dtype or torch.get_autocast_dtype("cpu")
        if not _eligible(value) or value.dtype == dtype:
            return value
        keeps = (
            self._keeps
            and value.dtype == torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not keeps:
            return value.to(dtype)
        key = (id(value), dtype)
        if key not in self._kept:
            self._kept[key] = (value, value.to(dtype))
            self._made.setdefault(self._here(), []).append(key)
        return self._kept[key][1]


def _install(library: Any, weights: WeightCasts) -> None:
    policies: tuple[tuple[str, Callable[[Any, WeightCasts], Any]], ...] = (
        (_LOWER, _lower),
        (_HALVE, _halve),
        (_FP32, _widen),
        (_FP32_BY_DTYPE, _widen_by_dtype),
        (_PROMOTE, _promote),
    )
    handled = set()
    for names, policy in policies:
        for name in names.split():
            op = _overload(name)
            if op is not None:
                library.impl(name, policy(op, weights), "AutocastCPU")
                handled.add(f"aten::{name}")
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
    for full in registered:
        namespace, name = full.split("::", 1)
        if namespace == "aten" and full not in handled and _overload(name) is not None:
            library.impl(name, torch.library.fallthrough_kernel, "AutocastCPU")


def _lower(op: Any, weights: WeightCasts) -> Any:
    return _casting(op, lambda _: weights.low)


def _halve(op: Any, weights: WeightCasts) -> Any:
    """Cast to fp16: so torch runs cuDNN's recurrent layers, whatever the type of autocast."""
    return _casting(op, lambda _: lambda value: weights.low(value, torch.float16))


def _widen(op: Any, _: WeightCasts) -> Any:
    return _casting(op, lambda _: _wide)


def _promote(op: Any, _: WeightCasts) -> Any:
    """Cast to float32 where an argument is of that type."""

    def change(values: list[Any]) -> Callable[[Any], Any]:
        wide = any(_eligible(value) and value.dtype == torch.float32 for value in values)
        return _wide if wide else lambda value: value

    return _casting(op, change)


def _casting(op: Any, change_for: Callable[[list[Any]], Callable[[Any], Any]]) -> Any:
    """Return a kernel that casts its arguments as `change_for` all of them says."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            found: list[Any] = []
            _each(found.append, [*args, *kwargs.values()])
            change = change_for(found)
            named = {key: _each(change, value) for key, value in kwargs.items()}
            return op(*(_each(change, value) for value in args), **named)

    return kernel


def _widen_by_dtype(op: Any, _: WeightCasts) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            named = [each.name for each in op._schema.arguments]
            at = named.index("dtype")
            given = args[at] if at < len(args) else kwargs.get("dtype")
            if given is None and _eligible(args[0]):
                args, kwargs = args[:at], {**kwargs, "dtype": torch.float32}
            return op(*args, **kwargs)

    return kernel


def _each(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_each(change, each) for each in value]
    return change(value)


def _wide(value: Any) -> Any:
    return value.to(torch.float32) if _eligible(value) and value.dtype != torch.float32 else value


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


def _without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    )


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    if base == "rms_norm" and torch.__version__ < _LISTS_RMS_NORM:
        return None
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload or "default", None) if packet is not None else None


LOW_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Types of autocast, by precision."""
_LISTS_RMS_NORM = "2.12"
"""Since then CUDA's autocast computes RMS norms in fp32 (2.11 does not yet, 2.13 does)."""
_LOWER = """
_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d
conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm
mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell
_thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention
"""
_HALVE = """
lstm.input gru.input rnn_tanh.input rnn_relu.input lstm.data gru.data rnn_tanh.data rnn_relu.data
"""
_FP32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm
frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
_upsample_bicubic2d_aa norm.Scalar norm.ScalarOpt_dim
"""
_FP32_BY_DTYPE = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
_PROMOTE = """
addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
"""


@contextmanager
def cuda_autocast_is_ours() -> Iterator[None]:
    """Apply `torch.autocast("cuda", ...)` in a model to the fake tensors within this context."""
    kind: Any = torch.autocast
    make, enter = kind.__init__, kind.__enter__
    moved: list[Any] = []

    def made(
        self: Any,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or _usual()
        make(self, device_type, dtype, enabled, cache_enabled)

    def entered(self: Any) -> Any:
        if self.device == "cuda":  # a decorator, made before the trace
            self.device = "cpu"
            moved.append(self)
        return enter(self)

    kind.__init__, kind.__enter__ = made, entered
    try:
        yield
    finally:
        kind.__init__, kind.__enter__ = make, enter
        for each in moved:
            each.device = "cuda"


def _usual() -> Any:
    """Return the default type: that of the autocast around it, else CUDA's default."""
    return torch.get_autocast_dtype("cpu" if torch.is_autocast_enabled("cpu") else "cuda")
