"""Promises of rules: users count their own operations and modules; uncounted ones are named."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.predict.workload import small_models  # noqa: E402 - needs torch
from wattloop.core.errors import ConfigError  # noqa: E402 - after the skip
from wattloop.predict import register_rule, trace  # noqa: E402 - after the skip
from wattloop.predict.workload import Kind, Phase, costs  # noqa: E402 - after the skip
from wattloop.predict.workload.aggregates import aggregates  # noqa: E402 - after the skip
from wattloop.predict.workload.costs.registry import unregister_rule  # noqa: E402 - after the skip


@pytest.fixture
def rules():
    """Register rules that are removed after the test."""
    made = []

    def register(target, rule):
        register_rule(target, rule)
        made.append(target)

    yield register
    for each in made:
        unregister_rule(each)


class Scans(torch.nn.Module):
    """Two layers around an operation that has no rule."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = torch.linalg.matrix_exp(self.first(x).view(-1, 8, 8))
        return self.second(y)


def test_an_operation_without_a_rule_is_counted_by_its_bytes_and_told():
    """Its share of all bytes and its name are in the totals."""
    workload = trace(Scans, torch.empty(8, 8), optimizer=None)
    unknown = [op for op in workload.operations if not op.ruled]
    assert {op.op for op in unknown} == {"aten.linalg_matrix_exp"}
    assert unknown[0].kind is Kind.OTHER
    assert unknown[0].bytes_moved == 2 * 4 * 64
    totals = aggregates(workload)
    assert totals.unruled == ("aten.linalg_matrix_exp",)
    moved = sum(op.bytes_moved * op.count for op in workload.operations)
    expected = sum(op.bytes_moved * op.count for op in unknown) / moved
    assert totals.unruled_share == pytest.approx(expected)


def test_a_rule_for_an_operation_counts_it(rules):
    """It gets the call with its tensors, and returns an operation."""

    def rule(call):
        (n, size, _) = call.inputs[0].shape
        return costs.gemm(n, size, size, size, dtype=call.product_dtype, **call.place)

    rules("aten.linalg_matrix_exp", rule)
    workload = trace(Scans, torch.empty(8, 8))
    assert aggregates(workload).unruled_share == 0
    found = [op for op in workload.operations if op.op == "aten.linalg_matrix_exp"]
    assert {(op.kind, op.dims) for op in found if op.phase is Phase.FORWARD} == {
        (Kind.GEMM, (1, 8, 8, 8))
    }


def test_a_rule_for_a_module_replaces_what_it_does_inside(rules):
    """It is called once for the forward and once for the backward pass, at the module's place."""
    calls = []

    def rule(call):
        calls.append((call.phase, call.inputs, call.outputs, call.dtype))
        return costs.elementwise(32, 1, 1, call.dtype, op="my.scan")

    rules(Scans, rule)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), Scans(), torch.nn.Linear(8, 8))
    workload = trace(model, torch.empty(8, 8), loss="mse")
    assert calls == [
        (Phase.FORWARD, ((8, 8),), ((1, 8, 8),), "fp32"),
        (Phase.BACKWARD, ((8, 8),), ((1, 8, 8),), "fp32"),
    ]
    inside = [op for op in workload.operations if op.module.startswith("1")]
    assert [(op.op, op.phase, op.module) for op in inside] == [
        ("my.scan", Phase.FORWARD, "1"),
        ("my.scan", Phase.BACKWARD, "1"),
    ]
    assert [op.module for op in workload.operations if op.op == "aten.addmm"] == ["0", "2"]


def test_a_module_s_rule_counts_for_alike_blocks_as_well(rules):
    """Blocks that are traced once ask once, and count as often as there are blocks."""
    rules(small_models.Block, lambda call: costs.elementwise(1, 1, 1, "fp32", op="my.block"))
    workload = trace(lambda: small_models.Stack(6), small_models.ids())
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        found = [op for op in workload.operations if op.op == "my.block" and op.phase is phase]
        assert sum(op.count for op in found) == 6


@pytest.mark.parametrize(
    ("target", "rule", "said"),
    [
        ("matrix_exp", lambda call: None, "namespace"),
        ("aten.linalg_matrix_exp", 5, "expected a function"),
        (3, lambda call: None, "name of an operation or a class"),
    ],
)
def test_an_invalid_rule_is_refused(target, rule, said):
    """The error comes at registration, not during a trace."""
    with pytest.raises(ConfigError, match=said):
        register_rule(target, rule)


def test_a_rule_that_gives_no_operations_is_refused_by_its_target(rules):
    """The error comes when the rule is called."""
    rules(Scans, lambda call: [5])
    with pytest.raises(ConfigError, match=r"rule of module '' .*Scans"):
        trace(Scans, torch.empty(8, 8))


@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.Hardswish(inplace=True),
        torch.nn.Mish(inplace=True),
        torch.nn.LogSigmoid(),
        torch.nn.PReLU(),
        torch.nn.LSTMCell(8, 8),
        torch.nn.DataParallel(torch.nn.Identity()),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_common_layers_have_rules(layer):
    """In place or not, their operations are counted by kind."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), layer)
    totals = aggregates(trace(model, torch.empty(4, 8), optimizer=None))
    assert totals.unruled == ()


def test_a_fourier_transform_has_its_flops():
    """5 n log2 n for each row, complex."""
    workload = trace(
        torch.nn.Identity(),
        torch.empty(4, 64, dtype=torch.complex64),
        training=False,
        loss=torch.fft.fft,
    )
    (transform,) = (op for op in workload.operations if "fft" in op.op)
    assert transform.flops == 4 * 5 * 64 * 6
    assert transform.bytes_moved == 2 * 4 * 64 * 8


@pytest.mark.parametrize("name", ["mse_loss", "huber_loss", "binary_cross_entropy_with_logits"])
def test_a_loss_of_two_tensors_streams_like_a_reduction(name):
    """Not like a look-up of classes, which runs in few blocks: that made it 150 times too slow."""
    loss = getattr(torch.nn.functional, name)
    workload = trace(
        torch.nn.Linear(64, 64), torch.empty(32, 64), loss=lambda y: loss(y, torch.zeros_like(y))
    )
    kinds = {op.kind for op in workload.operations if "loss" in op.op or "entropy" in op.op}
    assert kinds
    assert kinds <= {Kind.REDUCTION, Kind.ELEMENTWISE}
