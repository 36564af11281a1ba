"""Promises of equal blocks: traced once, with the result of tracing all of them."""

from functools import cache

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.predict.workload import small_models  # noqa: E402 - needs torch
from wattloop.predict import trace  # noqa: E402 - after the skip
from wattloop.predict.workload import Kind, Phase  # noqa: E402 - after the skip
from wattloop.predict.workload.aggregates import aggregates  # noqa: E402 - after the skip
from wattloop.predict.workload.trace import TraceRequest  # noqa: E402 - after the skip
from wattloop.predict.workload.tracing.step import traced  # noqa: E402 - after the skip
from wattloop.predict.workload.workload import ACCUMULATE  # noqa: E402 - after the skip


class Shares(torch.nn.Module):
    """Blocks that all read one trained tensor, and a module that is called again and again."""

    def __init__(self):
        super().__init__()
        self.start = torch.nn.Parameter(torch.ones(1, 16, 32))
        self.layers = torch.nn.ModuleList(Reads() for _ in range(5))
        self.again = small_models.Block()

    def forward(self, ids):
        x = self.start.expand(ids.shape[0], -1, -1)
        for layer in self.layers:
            x = layer(x, self.start)
            x = self.again(x)
        return x


class Reads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = small_models.Block()

    def forward(self, x, shared):
        return self.block(x + shared)


MODELS = {
    "stack": lambda: small_models.Stack(5),
    "checkpointed": lambda: small_models.Stack(5, checkpoint=True),
    "shares": Shares,
    "nested": lambda: torch.nn.Sequential(
        torch.nn.Embedding(50, 8),
        *(torch.nn.Sequential(*(_layers() for _ in range(4))) for _ in range(6)),
    ),
    "pictures": lambda: torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        *(torch.nn.Sequential(*_convolution()) for _ in range(5)),
    ),
}


def _layers():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))


def _convolution():
    return (
        torch.nn.Conv2d(8, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(inplace=True),
    )


@cache
def made(name, merge=True, **options):
    """Trace one of the models."""
    inputs = small_models.images() if name == "pictures" else small_models.ids()
    request = TraceRequest(
        model=MODELS[name],
        inputs=inputs,
        targets=None,
        loss="mse",
        optimizer="adamw",
        style="foreach",
        name="",
        merge=merge,
        **({"training": True, "accumulate": 1, "precision": "bf16"} | options),
    )
    return traced(request)


@pytest.mark.parametrize("name", MODELS)
def test_traced_once_or_all_of_them_is_the_same(name):
    """The same operations as often, the same totals, the same memory to the byte."""
    merged, whole = made(name), made(name, merge=False)
    assert small_models.counted(merged) == small_models.counted(whole)
    assert aggregates(merged).step == aggregates(whole).step
    assert merged.activation_bytes == whole.activation_bytes
    assert merged.peak_bytes == pytest.approx(whole.peak_bytes, rel=0.01)
    assert merged.modules == whole.modules
    assert merged.gradient_bytes == whole.gradient_bytes


def test_alike_blocks_are_written_as_one():
    """One path has the range of blocks and their count."""
    merged, whole = made("stack"), made("stack", merge=False)
    assert len(merged.operations) < len(whole.operations) / 2
    paths = {op.module for op in merged.operations if "norm" in op.module}
    assert paths == {"layers.0-4.norm"}
    products = [op for op in merged.operations if op.module == "layers.0-4.qkv" and op.dims]
    assert {op.count for op in products} == {5}


def test_modules_that_the_forward_pass_makes_are_traced():
    """A slice of a `Sequential` is a module that the model does not have."""

    class Slices(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(*_layers(), torch.nn.Linear(8, 2))

        def forward(self, x):
            return self.layers[-1](self.layers[:-1](x))

    workload = trace(Slices, torch.empty(4, 8, device="meta"))
    products = [op for op in workload.operations if op.op == "aten.addmm"]
    assert sum(op.count for op in products) == 3


def test_blocks_without_gradients_are_merged_as_well():
    """This holds for a forward pass alone."""
    merged, whole = (made("stack", merge=merge, training=False) for merge in (True, False))
    assert small_models.counted(merged) == small_models.counted(whole)
    assert merged.peak_bytes == whole.peak_bytes


def test_blocks_that_differ_are_not_merged():
    """Another width in the middle, another setting that changes what is computed."""
    layers = [torch.nn.Linear(8, 8) for _ in range(12)]
    blocks = [
        torch.nn.Sequential(*layers[at : at + 2], torch.nn.Dropout(0.0 if at == 4 else 0.1))
        for at in range(0, 12, 2)
    ]
    workload = trace(torch.nn.Sequential(*blocks), torch.empty(4, 8), loss="mse")
    dropouts = [op for op in workload.operations if op.op == "aten.native_dropout"]
    assert sum(op.count for op in dropouts) == 5


def test_checkpointing_computes_the_forward_pass_again():
    """The products of the blocks are in the backward pass too; activations are far fewer."""
    plain, again = made("stack"), made("checkpointed")
    first, second = (aggregates(each).phases for each in (plain, again))
    # The last product of a block is not computed again: nothing of it is needed.
    inside = sum(
        op.flops * op.count
        for op in plain.operations
        if op.phase is Phase.FORWARD
        and op.module.startswith("layers")
        and op.kind in {Kind.GEMM, Kind.ATTENTION}
        and not op.module.endswith("mlp.2")
    )
    assert second[Phase.FORWARD].gemm_flops == first[Phase.FORWARD].gemm_flops
    assert second[Phase.BACKWARD].gemm_flops == first[Phase.BACKWARD].gemm_flops + inside
    assert again.activation_bytes < plain.activation_bytes / 3


def test_accumulated_gradients_are_summed_once_less_than_there_are_passes():
    """Each parameter, each pass but the first; memory for the sums is there from the start."""
    once, thrice = made("stack"), made("stack", accumulate=3)
    sums = [op for op in thrice.operations if op.op == ACCUMULATE]
    parameters = small_models.Stack(5)
    assert sum(op.count for op in sums) == 2 * len(list(parameters.parameters()))
    assert sum(op.count * op.bytes_read for op in sums) == 2 * 2 * thrice.gradient_bytes
    assert thrice.samples == 3 * once.samples
    assert thrice.peak_bytes > once.peak_bytes
    assert _launching(once.accumulating(3)) == _launching(thrice)
    assert _launching(thrice.accumulating(1)) == _launching(once)


def _launching(workload):
    return [op for op in workload.operations if op.kernels]
