"""Promises of traces: the operations that CUDA runs, with their shapes, types and FLOPs."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.predict.workload import small_models  # noqa: E402 - needs torch
from wattloop.core.errors import ConfigError  # noqa: E402 - after the skip
from wattloop.predict import trace  # noqa: E402 - after the skip
from wattloop.predict.workload import Kind, Phase  # noqa: E402 - after the skip
from wattloop.predict.workload.aggregates import aggregates  # noqa: E402 - after the skip
from wattloop.predict.workload.files import (  # noqa: E402 - after the skip
    load_workload,
    save_workload,
)


def mlp() -> torch.nn.Module:
    layers = torch.nn
    return layers.Sequential(
        layers.Linear(8, 16), layers.LayerNorm(16), layers.Dropout(0.1), layers.Linear(16, 3)
    )


@pytest.fixture(scope="module")
def stacks():
    """Trace the same transformer in every precision."""
    return {
        precision: trace(
            lambda: small_models.Stack(2),
            small_models.ids(),
            loss="cross_entropy",
            precision=precision,
        )
        for precision in ("fp32", "tf32", "bf16", "fp16")
    }


def test_a_small_model_has_exactly_these_operations():
    """Every kernel of forward and backward in order, at its module; gradients are the module's."""
    workload = trace(mlp, torch.empty(4, 8), loss="cross_entropy")
    assert small_models.kernels(workload, "forward") == [
        "0:addmm",
        "1:native_layer_norm",
        "2:native_dropout",
        "3:addmm",
        ":_log_softmax",
        ":nll_loss_forward",
    ]
    assert small_models.kernels(workload, "backward") == [
        ":ones_like",
        ":nll_loss_backward",
        ":_log_softmax_backward_data",
        "3:mm",
        "3:mm",
        "3:sum",
        "2:native_dropout_backward",
        "1:native_layer_norm_backward",
        "0:mm",
        "0:sum",
    ]


def test_products_have_dims_layout_and_bytes():
    """Forward reads the weight transposed; gradients of input and weight are the other layouts."""
    workload = trace(mlp, torch.empty(4, 8), loss="cross_entropy")
    found = [
        (op.phase, op.module, op.dims, op.detail["layout"], op.detail["bias"])
        for op in workload.operations
        if op.kind is Kind.GEMM
    ]
    assert found == [
        (Phase.FORWARD, "0", (1, 4, 16, 8), "nt", True),
        (Phase.FORWARD, "3", (1, 4, 3, 16), "nt", True),
        (Phase.BACKWARD, "3", (1, 4, 16, 3), "nn", False),
        (Phase.BACKWARD, "3", (1, 3, 16, 4), "tn", False),
        (Phase.BACKWARD, "0", (1, 16, 8, 4), "tn", False),
    ]
    first = next(op for op in workload.operations if op.kind is Kind.GEMM)
    assert first.bytes_read == 4 * (4 * 8 + 8 * 16 + 16)
    assert first.bytes_written == 4 * 4 * 16


def test_flops_are_those_that_torch_counts():
    """FlopCounterMode over a real forward and backward pass of a convolutional net."""
    from torch.utils.flop_counter import FlopCounterMode

    model = small_models.cnn(groups=1)  # torch counts gradients of grouped weights too often
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(4, 3, 16, 16)).mean().backward()
    totals = aggregates(trace(model, small_models.images(), loss=lambda y: y.mean())).step
    assert totals.gemm_flops + totals.conv_flops == counter.get_total_flops()


def test_a_convolution_s_gradients_are_apart_and_its_bias_a_pass_of_its_own():
    """cuDNN gets data, weight and bias one after the other; the first has no data gradient."""
    workload = trace(small_models.cnn, small_models.images(), loss="cross_entropy")
    found = [
        (op.module, op.detail["direction"], op.calls)
        for op in workload.operations
        if op.kind is Kind.CONV
    ]
    assert found == [
        ("0", "forward", 1),
        ("3", "forward", 1),
        ("3", "data", 1),
        ("3", "weight", 0),
        ("0", "weight", 1),
    ]
    assert "3:add_" in small_models.kernels(workload, "forward")
    assert "3:sum" in small_models.kernels(workload, "backward")


@pytest.mark.parametrize(
    ("precision", "product", "norm", "stored"),
    [
        ("fp32", "fp32", "fp32", "fp32"),
        ("tf32", "tf32", "fp32", "fp32"),
        ("bf16", "bf16", "fp32", "bf16"),
        ("fp16", "fp16", "fp32", "fp16"),
    ],
)
def test_every_precision_has_cuda_s_types(stacks, precision, product, norm, stored):
    """Products and attention in the precision, norms in fp32, what passes between as stored."""
    ops = stacks[precision].operations
    kinds = {kind: {op.dtype for op in ops if op.kind is kind} for kind in Kind}
    assert kinds[Kind.GEMM] == {product}
    assert kinds[Kind.ATTENTION] == {product}
    assert kinds[Kind.NORM] == {norm}
    assert {op.dtype for op in ops if op.op == "aten.gelu"} == {stored}
    assert kinds[Kind.FOREACH] == {"fp32"}


def test_autocast_casts_a_weight_once_and_its_gradient_back(stacks):
    """As many copies down as weights and inputs need, as many up as gradients."""
    ops = [op for op in stacks["bf16"].operations if op.op == "aten._to_copy"]
    forward = [op for op in ops if op.phase is Phase.FORWARD and op.inputs[0] == (96, 32)]
    backward = [op for op in ops if op.phase is Phase.BACKWARD and op.inputs[0] == (96, 32)]
    assert sum(op.count for op in forward) == 2
    assert sum(op.count for op in backward) == 2
    assert {(op.detail["from_dtype"], op.dtype) for op in forward} == {("fp32", "bf16")}
    assert {(op.detail["from_dtype"], op.dtype) for op in backward} == {("bf16", "fp32")}


def test_fp16_has_a_gradient_scaler(stacks):
    """Gradients are unscaled in fp16, and only there."""
    scaled = {
        precision
        for precision, workload in stacks.items()
        if any("unscale" in op.op for op in workload.operations)
    }
    assert scaled == {"fp16"}


def test_batch_norm_stays_in_bf16_and_is_torch_s_own_there():
    """CUDA's autocast leaves batch norm alone; cuDNN has no bf16 of it."""
    for precision, name in (("fp32", "cudnn"), ("bf16", "native")):
        workload = trace(
            small_models.cnn, small_models.images(), loss="cross_entropy", precision=precision
        )
        ops = [op for op in workload.operations if op.kind is Kind.NORM]
        assert {op.op.split(".")[1].partition("_")[0] for op in ops} == {name}
        assert {op.dtype for op in ops} == {precision}
        assert (ops[0].detail["rows"], ops[0].detail["columns"]) == (4 * 8 * 8, 8)


@pytest.mark.parametrize(
    ("style", "names"),
    [
        ("foreach", ["mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_"]),
        ("fused", ["add_", "_fused_adamw_"]),
    ],
)
def test_styles_of_adamw_have_their_kernels(style, names):
    """Lists of parameters at once, or all in one."""
    workload = trace(mlp, torch.empty(4, 8), loss="cross_entropy", style=style)
    found = [op.op for op in workload.operations if op.kind is Kind.FOREACH]
    assert [name.removeprefix("aten.").removeprefix("_foreach_") for name in found] == names
    assert workload.optimizer_style == style


def test_an_optimizer_of_torch_is_recognised():
    """A function from parameters to an optimizer determines momentum and decay itself."""
    made = {
        name: trace(mlp, torch.empty(4, 8), loss="cross_entropy", optimizer=factory).optimizer
        for name, factory in {
            "adamw": torch.optim.AdamW,
            "adam": torch.optim.Adam,
            "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
            "sgd+momentum+decay": lambda p: torch.optim.SGD(
                p, lr=0.1, momentum=0.9, weight_decay=1e-4
            ),
            "rmsprop": torch.optim.RMSprop,
        }.items()
    }
    assert list(made) == list(made.values())


def test_parameters_states_and_gradients_are_counted():
    """Two moments of AdamW; frozen parameters have neither gradient nor state."""
    model = mlp()
    model[0].requires_grad_(False)
    workload = trace(model, torch.empty(4, 8), loss="cross_entropy")
    assert workload.parameters == 32 + 16 * 3 + 3
    assert workload.parameter_bytes == 4 * (8 * 16 + 16 + workload.parameters)
    assert workload.gradient_bytes == 4 * workload.parameters
    assert workload.optimizer_bytes == 8 * workload.parameters


def test_the_model_is_left_as_it_was():
    """Weights are the same objects with their values, the mode is the same, no gradients."""
    model = mlp().eval()
    before = dict(model.named_parameters())
    trace(model, torch.empty(4, 8), loss="cross_entropy", precision="bf16")
    assert all(each is before[name] for name, each in model.named_parameters())
    assert all(each.grad is None for each in model.parameters())
    assert not any(each.training for each in model.modules())
    assert type(model[0]) is torch.nn.Linear
    assert model(torch.ones(2, 8)).isfinite().all()


def test_what_the_caller_has_set_does_not_matter():
    """In inference mode, or on several threads, the workload is the same."""
    from concurrent.futures import ThreadPoolExecutor

    model, inputs = mlp(), torch.empty(4, 8)
    plain = trace(model, inputs)
    with torch.inference_mode():
        assert trace(model, inputs) == plain
    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(lambda _: len(trace(model, inputs).operations), range(3))) == {
            len(plain.operations)
        }


def test_forward_alone_has_no_gradients_and_dropout_does_nothing():
    """Evaluation mode without autograd."""
    workload = trace(mlp, torch.empty(4, 8), training=False)
    assert {op.phase for op in workload.operations} == {Phase.FORWARD}
    assert not any(op.kind is Kind.RANDOM for op in workload.operations)
    assert (workload.optimizer, workload.gradient_bytes) == ("", 0.0)
    assert workload.peak_bytes < trace(mlp, torch.empty(4, 8)).peak_bytes


def test_the_batch_is_the_first_length_unless_told():
    """A recurrent network may have the sequence first."""
    assert trace(mlp, torch.empty(4, 8), training=False).batch == 4
    assert trace(mlp, torch.empty(4, 2, 8), training=False, batch=2).batch == 2


def test_no_optimizer_means_forward_and_backward_only():
    """Some benchmarks measure only those."""
    workload = trace(mlp, torch.empty(4, 8), optimizer=None)
    assert Phase.OPTIMIZER not in {op.phase for op in workload.operations}
    assert workload.optimizer_bytes == 0


def test_without_a_loss_the_mean_is_taken_with_a_note():
    """A note says so."""
    workload = trace(mlp, torch.empty(4, 8))
    assert "mean of its output" in workload.notes[0]


def test_a_traced_workload_is_saved_and_read_back_equal(stacks, tmp_path):
    """Every operation is read back, with any detail."""
    save_workload(stacks["bf16"], tmp_path / "w.json.gz")
    assert load_workload(tmp_path / "w.json.gz") == stacks["bf16"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"precision": "int4"}, "precision 'int4'"),
        ({"optimizer": "lion"}, "optimizer 'lion'"),
        ({"optimizer": 3}, "optimizer: expected"),
        ({"style": "quick"}, "style 'quick'"),
        ({"loss": "hinge"}, "loss 'hinge'"),
        ({"accumulate": 0}, "accumulate is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"optimizer": torch.optim.Adagrad}, "Adagrad has no rule"),
        ({"optimizer": "rmsprop", "style": "fused"}, "no fused rmsprop"),
        ({"model": 5}, "model: expected"),
        ({"model": lambda: 5}, "the factory gave a int"),
        ({"inputs": torch.empty(4, 9)}, "module '0', operation 'aten.addmm'"),
        ({"inputs": {"y": torch.empty(4, 8)}}, "does not run on these inputs"),
    ],
)
def test_wrong_arguments_and_shapes_are_refused_by_name(arguments, said):
    """The error names the argument, or the module whose shapes do not fit."""
    given = {"model": mlp, "inputs": torch.empty(4, 8), **arguments}
    with pytest.raises(ConfigError, match=said):
        trace(given.pop("model"), given.pop("inputs"), **given)


def test_a_lazy_layer_is_refused_by_name():
    """Without a first call it has no shapes."""
    model = torch.nn.Sequential(torch.nn.LazyLinear(4))
    with pytest.raises(ConfigError, match=r"'0\.weight' of a LazyLinear"):
        trace(model, torch.empty(2, 3))
