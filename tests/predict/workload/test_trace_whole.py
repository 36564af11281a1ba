"""Promises of whole operations: one kernel or library call of CUDA is one operation of a trace."""

from collections import Counter

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from wattloop.predict import trace  # noqa: E402 - after the skip
from wattloop.predict.workload import Kind, Phase  # noqa: E402 - after the skip

ATTENTION = torch.nn.functional.scaled_dot_product_attention


class Attends(torch.nn.Module):
    """Attention of its input with itself."""

    def __init__(self, **options):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.options = options

    def forward(self, q, k=None, mask=None):
        q = q * self.scale
        k = q if k is None else k * self.scale
        return ATTENTION(q, k, k, attn_mask=mask, **self.options)


def attention(precision, q, *more, **options):
    workload = trace(Attends(**options), (q, *more), precision=precision)
    return [op for op in workload.operations if op.kind is Kind.ATTENTION]


@pytest.mark.parametrize(
    ("precision", "masked", "algorithm"),
    [
        ("bf16", False, "flash"),
        ("fp16", False, "flash"),
        ("fp32", False, "efficient"),
        ("tf32", False, "efficient"),
        ("bf16", True, "efficient"),
    ],
)
def test_attention_is_one_operation_each_way_by_cuda_s_kernel(precision, masked, algorithm):
    """Flash without a mask in half precision, the memory-efficient kernel else."""
    q = torch.empty(2, 4, 64, 16, device="meta")
    mask = (q, torch.empty(1, 1, 64, 64, dtype=torch.bool, device="meta")) if masked else ()
    forward, backward = attention(precision, q, *mask)
    assert forward.detail == {
        "direction": "forward",
        "batch": 2,
        "heads": 4,
        "kv_heads": 4,
        "q_len": 64,
        "kv_len": 64,
        "head_dim": 16,
        "causal": False,
        "masked": masked,
        "algorithm": algorithm,
    }
    assert backward.detail["direction"] == "backward"
    assert (forward.dtype, backward.flops) == (precision, 2.5 * forward.flops)


def test_attention_that_no_fused_kernel_serves_is_taken_apart():
    """Grouped heads in fp32, and heads that are not aligned: products and a softmax, as on CUDA."""
    q, k = (torch.empty(2, heads, 64, 16, device="meta") for heads in (8, 2))
    assert attention("fp32", q, k, enable_gqa=True) == []
    (forward, _) = attention("bf16", q, k, enable_gqa=True)
    assert (forward.detail["heads"], forward.detail["kv_heads"]) == (8, 2)
    assert attention("fp32", torch.empty(2, 4, 64, 15, device="meta")) == []


@pytest.mark.parametrize(("places", "padded"), [(49, 7), (64, 0)], ids=str)
def test_a_trained_bias_goes_through_the_fused_kernel(places, padded):
    """Windows of Swin: rows are padded to eight elements; the gradient is summed over windows."""

    class Windows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1))
            self.bias = torch.nn.Parameter(torch.zeros(1, 3, places, places))

        def forward(self, q):
            q = q * self.scale
            return ATTENTION(q, q, q, attn_mask=self.bias)

    workload = trace(Windows, (torch.empty(64, 3, places, 32, device="meta"),), precision="fp32")
    forward, backward = [op for op in workload.operations if op.kind is Kind.ATTENTION]
    assert (forward.detail["algorithm"], forward.detail["masked"]) == ("efficient", True)
    heads = 4 * 64 * 3 * places * 32
    assert forward.bytes_read == 3 * heads + 4 * 3 * places**2
    assert backward.bytes_moved > 8 * heads + 4 * 64 * 3 * places**2
    names = Counter(op.op for op in workload.operations)
    assert names["aten.constant_pad_nd"] == (2 if padded else 0)  # forward, and its gradient
    sums = [op for op in workload.operations if op.op == "aten.sum" and op.phase is Phase.BACKWARD]
    assert max(op.detail["elements"] for op in sums) == 64 * 3 * places**2


def test_a_bias_in_another_order_is_taken_apart():
    """T5's bias is a view whose keys are not next to each other, which no fused kernel reads."""
    q = torch.empty(2, 4, 64, 16, device="meta")
    bias = torch.empty(64, 64, 4, device="meta").permute(2, 0, 1)[None]
    assert attention("bf16", q, q, bias) == []


@pytest.mark.parametrize(
    ("layer", "cell"), [("LSTM", "lstm"), ("GRU", "gru"), ("RNN", "rnn")], ids=str
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_recurrent_network_is_one_call_of_cudnn_each_way(layer, cell, precision):
    """All layers, both directions, all steps; the batch comes first in memory.

    Autocast runs them in fp16, whatever type it is asked for.
    """

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = getattr(torch.nn, layer)(
                8, 32, num_layers=2, batch_first=True, bidirectional=True
            )

        def forward(self, x):
            return self.layer(x)[0]

    workload = trace(Net, torch.empty(4, 20, 8, device="meta"), precision=precision)
    found = [op for op in workload.operations if op.kind is Kind.RNN]
    assert [op.op for op in found] == ["aten._cudnn_rnn", "aten._cudnn_rnn_backward"]
    assert found[0].detail == {
        "direction": "forward",
        "cell": cell,
        "layers": 2,
        "input": 8,
        "hidden": 32,
        "batch": 4,
        "seq": 20,
        "bidirectional": True,
    }
    assert {op.dtype for op in found} == {"fp16" if precision == "bf16" else precision}
    assert {op.module for op in found} == {"layer"}
    assert workload.gradient_bytes == workload.parameter_bytes


def test_packed_sequences_are_taken_as_full():
    """Lengths are data: as many steps as the tensor has."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.LSTM(8, 16)

        def forward(self, x):
            lengths = torch.tensor([10, 10])
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)
            return torch.nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0])[0]

    workload = trace(Net, torch.empty(10, 2, 8, device="meta"))
    (forward, _) = [op for op in workload.operations if op.kind is Kind.RNN]
    assert (forward.detail["seq"], forward.detail["batch"]) == (10, 2)
    assert any("full length" in note for note in workload.notes)


def test_rms_norm_and_dropout_are_one_kernel():
    """The CPU would split both."""
    net = torch.nn.Sequential(torch.nn.RMSNorm(16), torch.nn.Dropout(0.5))
    workload = trace(net, torch.empty(4, 16, requires_grad=True))
    names = [op.op for op in workload.operations if op.kind in {Kind.NORM, Kind.RANDOM}]
    assert names == ["aten._fused_rms_norm", "aten.native_dropout", "aten._fused_rms_norm_backward"]


def test_torch_itself_is_left_as_it_was():
    """After a trace attention, recurrent layers and autocast run for real again."""
    attention("bf16", torch.empty(2, 4, 8, 8, device="meta"))
    q = torch.ones(1, 1, 2, 4)
    assert torch.equal(ATTENTION(q, q, q), q)
    assert torch.nn.LSTM(2, 3)(torch.ones(4, 1, 2))[0].shape == (4, 1, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.nn.functional.layer_norm(torch.ones(2, 4).bfloat16(), (4,)).dtype == (
            torch.bfloat16
        )


def test_unused_outputs_cost_nothing_backward():
    """No zeros are made for the gradient of a state, of a saved tensor, or of a norm's rows."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.LSTM(8, 16)
            self.norm = torch.nn.RMSNorm(16)

        def forward(self, x):
            return self.norm(self.layer(x)[0])

    workload = trace(Net, torch.empty(10, 2, 8, device="meta"), loss="mse")
    filled = [op for op in workload.operations if op.op == "aten.zeros" and op.phase == "backward"]
    assert filled == []


class Steps(torch.nn.Module):
    """A recurrent cell, called for each step."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell(8, 16)

    def forward(self, x):
        state = None
        for step in x:
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state


@pytest.mark.parametrize(
    ("cell", "name", "gates"),
    [(torch.nn.LSTMCell, "lstm", 4), (torch.nn.GRUCell, "gru", 3)],
    ids=["lstm", "gru"],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_recurrent_cell_is_two_products_and_one_kernel(cell, name, gates, precision):
    """As CUDA fuses it, forward and backward; gradients reach weights and biases."""
    workload = trace(Steps(cell), torch.empty(3, 4, 8), precision=precision)
    fused = Counter()
    for op in workload.operations:
        if op.op.startswith("aten._thnn_fused_"):
            fused[op.op] += op.count * op.kernels
    assert fused == {f"aten._thnn_fused_{name}_cell{end}": 3 for end in ("", "_backward")}
    forward = sum(
        op.flops * op.count
        for op in workload.operations
        if op.phase is Phase.FORWARD and op.kind is Kind.GEMM
    )
    assert forward == 3 * 2 * 4 * gates * 16 * (8 + 16)
    assert workload.gradient_bytes == 4 * gates * 16 * (8 + 16 + 2)
