"""Promises of autocast: operations have the types of CUDA, not those of the CPU."""

from contextlib import contextmanager, nullcontext

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from wattloop.predict import trace  # noqa: E402 - after the skip
from wattloop.predict.workload import Kind, Phase  # noqa: E402 - after the skip
from wattloop.predict.workload.tracing.autocast import (  # noqa: E402 - after the skip
    autocasting,
    cuda_lists,
)

LOW, WIDE = torch.bfloat16, torch.float32
FUNCTIONS = torch.nn.functional


@contextmanager
def cuda_autocast(dtype, here, forgot):
    with cuda_lists(here) as weights, autocasting(dtype, weights, forgot):
        yield


@pytest.fixture(scope="module")
def results():
    """Return results of operations on a bf16 and an fp32 tensor under autocast."""
    low, wide = torch.ones(2, 4, dtype=LOW), torch.ones(2, 4)
    labels = torch.zeros(2, dtype=torch.long)
    with cuda_autocast(LOW, lambda: -1, lambda _: nullcontext()):
        return {
            "matmul": wide @ wide.t(),
            "linear": FUNCTIONS.linear(wide, wide),
            "conv1d": FUNCTIONS.conv1d(wide[None], torch.ones(3, 2, 1)),
            "bmm": torch.bmm(wide[None], wide.t()[None]),
            "add": low + low,
            "gelu": FUNCTIONS.gelu(low),
            "mean": low.mean(),
            "batch_norm": FUNCTIONS.batch_norm(low, None, None, training=True),
            "cat of low": torch.cat([low, low]),
            "layer_norm": FUNCTIONS.layer_norm(low, (4,)),
            "group_norm": FUNCTIONS.group_norm(low, 2),
            "softmax": low.softmax(-1),
            "log_softmax": low.log_softmax(-1),
            "exp": low.exp(),
            "pow": low**2,
            "rsqrt": low.rsqrt(),
            "sum": low.sum(),
            "cumsum": low.cumsum(0),
            "mse_loss": FUNCTIONS.mse_loss(low, low),
            "nll_loss": FUNCTIONS.nll_loss(low, labels),
            "cross_entropy": FUNCTIONS.cross_entropy(low, labels),
            "addcmul of both": torch.addcmul(wide, low, low),
            "addcmul of low": torch.addcmul(low, low, low),
            "sum to low": low.sum(dtype=LOW),
            "softmax of double": low.double().softmax(-1),
        }


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("matmul", "linear", "conv1d", "bmm"), LOW),
        (("add", "gelu", "mean", "batch_norm", "cat of low", "addcmul of low"), LOW),
        (("layer_norm", "group_norm", "softmax", "log_softmax"), WIDE),
        (("exp", "pow", "rsqrt", "sum", "cumsum"), WIDE),
        (("mse_loss", "nll_loss", "cross_entropy", "addcmul of both"), WIDE),
        (("sum to low",), LOW),
        (("softmax of double",), torch.float64),
    ],
    ids=["products", "as they come", "norms", "sensitive", "losses", "asked for", "double"],
)
def test_operations_have_the_types_of_cuda_s_lists(results, names, expected):
    """The lists of ATen/autocast_mode.h: lower, fp32, fp32 by argument, widest of all."""
    assert {name: results[name].dtype for name in names} == dict.fromkeys(names, expected)


def test_a_weight_is_cast_once_and_forgotten_at_the_end():
    """A leaf with a gradient is cast once; a computed tensor is cast each time."""
    weight = torch.ones(4, 4, requires_grad=True)
    forgotten = []
    with cuda_autocast(LOW, lambda: 7, lambda place: forgotten.append(place) or nullcontext()):
        first, second = (FUNCTIONS.linear(torch.ones(1, 4), weight) for _ in range(2))
        (cast,) = {
            id(each.grad_fn.next_functions[-1][0].next_functions[0][0]) for each in (first, second)
        }
    assert cast
    assert forgotten == [7]


def test_the_cpu_s_own_autocast_is_back_afterwards():
    """The CPU's own autocast keeps a layer norm in bf16."""
    with cuda_autocast(LOW, lambda: -1, lambda _: nullcontext()):
        pass
    with torch.autocast("cpu", dtype=LOW):
        assert FUNCTIONS.layer_norm(torch.ones(2, 4, dtype=LOW), (4,)).dtype == LOW


class Inside(torch.nn.Module):
    """Two layers, the first under its own autocast, the second without any."""

    def __init__(self):
        super().__init__()
        self.low = torch.nn.Linear(8, 8)
        self.wide = torch.nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast("cuda", dtype=LOW):
            x = self.low(x)
        return self.without(x.float())

    @torch.autocast("cuda", enabled=False)
    def without(self, x):
        return self.wide(x)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_autocast_inside_a_model_is_cuda_s(precision):
    """It is entered or left for `cuda`, by a context or a decorator, inside any other."""
    workload = trace(Inside(), torch.empty(2, 8), precision=precision, optimizer=None)
    products = [op for op in workload.operations if op.kind is Kind.GEMM]
    assert {(op.module, op.dtype) for op in products} == {("low", "bf16"), ("wide", "fp32")}


class Recomputes(torch.nn.Module):
    """A block that is recomputed in the backward pass."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.block = torch.nn.Sequential(
            torch.nn.LayerNorm(8),
            torch.nn.Linear(8, 8),
            torch.nn.Softmax(-1),
            torch.nn.Linear(8, 8),
        )

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.block, self.first(x), use_reentrant=False)


def test_what_is_recomputed_has_the_types_of_the_forward_pass():
    """Norm and softmax in fp32 both times; torch refuses a block that changes its types."""
    workload = trace(Recomputes(), torch.empty(2, 8), precision="bf16", optimizer=None)
    norms = [op for op in workload.operations if op.op == "aten.native_layer_norm"]
    assert {op.phase for op in norms} == {Phase.FORWARD, Phase.BACKWARD}
    assert {op.dtype for op in norms} == {"fp32"}
