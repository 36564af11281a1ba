"""Promises of a compiled step: it has the kernels that Inductor generates."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from wattloop.core.errors import ConfigError  # noqa: E402 - after the skip
from wattloop.predict import trace  # noqa: E402 - after the skip
from wattloop.predict.workload import Kind, Phase  # noqa: E402 - after the skip
from wattloop.predict.workload.files import (  # noqa: E402 - after the skip
    load_workload,
    save_workload,
)

nn = torch.nn


def compiled(model, *shape, mode="default", **more):
    return trace(model, torch.empty(*shape), compile=mode, **{"loss": "mse", **more})


def fused(workload, phase):
    return [op for op in workload.operations if "form" in op.detail and op.phase == phase]


def test_a_chain_of_pointwise_operations_is_one_kernel_that_reads_and_writes_once():
    class Chain(nn.Module):
        def forward(self, x):
            return torch.sigmoid(torch.relu(x * 2 + 1)) * 3

    step = compiled(Chain(), 512, 256, training=False, loss=None)
    (kernel,) = step.operations
    assert kernel.op == "inductor.pointwise"
    assert kernel.bytes_read == kernel.bytes_written == 4 * 512 * 256


def test_a_chain_longer_than_the_stack_is_one_kernel():
    class Chain(nn.Module):
        def forward(self, x):
            for _ in range(1_200):
                x = x * 2
            return x

    step = compiled(Chain(), 64, 64, training=False, loss=None)
    (kernel,) = step.operations
    assert kernel.bytes_read == kernel.bytes_written == 4 * 64 * 64


def test_a_layer_norm_with_the_sum_before_and_the_cast_after_it_is_one_kernel():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.layer = nn.LayerNorm(64), nn.Linear(64, 64)

        def forward(self, x):
            return self.layer(self.norm(x + 1))

    step = compiled(Block, 32, 64, precision="bf16")
    (norm,) = [op for op in fused(step, Phase.FORWARD) if op.detail["form"] == "rows"]
    # the input and the two weights; the bf16 result, mean and deviation
    assert norm.bytes_read == 4 * (32 * 64 + 2 * 64)
    assert norm.bytes_written == 2 * 32 * 64 + 2 * 4 * 32


def test_products_stay_those_of_the_eager_step():
    model = lambda: nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))  # noqa: E731
    eager, step = (
        trace(model, torch.empty(32, 64), loss="mse", compile=mode) for mode in (None, "default")
    )

    def products(workload):
        return sorted(op.dims for op in workload.operations if op.kind is Kind.GEMM)

    assert products(step) == products(eager)
    assert len(step.operations) < len(eager.operations)


def test_backward_computes_an_activation_again_instead_of_reading_it():
    """silu(gate) is made of the gate, which is saved anyway: eager saves both."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up, self.down = (nn.Linear(64, 64, bias=False) for _ in range(3))

        def forward(self, x):
            return self.down(nn.functional.silu(self.gate(x)) * self.up(x))

    eager, step = (
        trace(Gated, torch.empty(32, 64), loss=lambda y: y.sum(), compile=mode)
        for mode in (None, "default")
    )
    one = 4 * 32 * 64
    # gate, up and the product for the weight's gradient; eager has silu(gate) as well
    assert step.activation_bytes == pytest.approx(3 * one, abs=8)
    assert eager.activation_bytes >= 4 * one


def test_a_cross_entropy_does_not_write_its_probabilities():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(16, 1000, bias=False)

        def forward(self, x):
            return nn.functional.cross_entropy(self.head(x), torch.zeros(64, dtype=torch.long))

    step = compiled(Loss, 64, 16, loss=lambda loss: loss)
    scores = 4 * 64 * 1000
    assert sum(op.bytes_written for op in fused(step, Phase.FORWARD)) < 0.1 * scores
    backward = sum(op.bytes_written for op in fused(step, Phase.BACKWARD))
    assert scores <= backward < 1.5 * scores


def test_the_loss_outside_of_the_model_stays_eager():
    step = compiled(nn.Linear(8, 4), 16, 8, loss="cross_entropy")
    names = [op.op for op in step.operations if op.phase == Phase.FORWARD]
    assert "aten._log_softmax" in names


def test_the_optimizer_stays_eager():
    plain, step = (
        trace(nn.Linear(8, 4), torch.empty(2, 8), loss="mse", compile=mode)
        for mode in (None, "default")
    )

    def updates(workload):
        return [op for op in workload.operations if op.phase == Phase.OPTIMIZER]

    assert updates(step) == updates(plain)


def conv_layouts(*layers):
    step = compiled(nn.Sequential(*layers), 2, layers[0].in_channels, 16, 16)
    return {op.detail["channels_last"] for op in step.operations if op.kind is Kind.CONV}


def test_convolutions_get_channels_last_tensors_where_inductor_thinks_it_pays():
    assert conv_layouts(nn.Conv2d(8, 128, 3), nn.Conv2d(128, 128, 3)) == {True}
    # all channels are few
    assert conv_layouts(nn.Conv2d(8, 64, 3), nn.Conv2d(64, 64, 3)) == {False}
    # one has half as many channels after it
    assert conv_layouts(nn.Conv2d(8, 256, 3), nn.Conv2d(256, 128, 3)) == {False}
    # one has groups of several channels
    assert conv_layouts(nn.Conv2d(8, 128, 3), nn.Conv2d(128, 128, 3, groups=32)) == {False}


def test_a_batch_norm_reads_its_input_for_the_statistics_and_again_for_the_result():
    model = nn.Sequential(nn.Conv2d(8, 128, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU())
    step = compiled(model, 4, 8, 16, 16)
    picture = 4 * 4 * 128 * 16 * 16
    large = [op for op in fused(step, Phase.FORWARD) if op.bytes_read >= picture]
    assert [op.detail["form"] for op in large] == ["columns", "point"]
    assert large[1].bytes_written == picture


def test_recurrent_layers_stay_the_librarys():
    """Dynamo does not compile them, and their weights' copies are theirs as well."""

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(8, 16, batch_first=True)

        def forward(self, x):
            return self.layer(x)[0] * 2

    step = compiled(Reader, 4, 5, 8)
    assert [op.kind for op in step.operations if op.phase == Phase.FORWARD].count(Kind.RNN) == 1


def test_an_encoder_of_transformers_makes_its_mask_and_has_no_fused_attention():
    """Under torch.compile it cannot see that the mask hides nothing; eager steps leave it out."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    masking = pytest.importorskip("transformers.masking_utils")
    if not hasattr(masking, "is_torchdynamo_exporting"):
        pytest.skip("this version of transformers decides about masks in another way")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14):
        pytest.skip("this version of torch leaves masks out")
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=64,
    )  # fmt: skip
    inputs = {"input_ids": torch.zeros(2, 16, dtype=torch.long)}

    def attention(mode):
        step = trace(lambda: transformers.BertModel(config), inputs, precision="bf16", compile=mode)
        return [op for op in step.operations if op.kind is Kind.ATTENTION]

    assert attention(None)
    assert not attention("default")


def test_what_is_not_used_is_not_computed():
    class Wasteful(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x):
            y = self.layer(x)
            y.exp()
            return y

    step = compiled(Wasteful, 32, 64, loss=lambda y: y.sum())
    assert not fused(step, Phase.FORWARD)


def test_products_are_padded_to_aligned_sides():
    """This holds where arithmetic bounds them; a narrow one is unchanged."""
    step = compiled(nn.Linear(512, 1001, bias=False), 512, 512, precision="bf16")
    assert {op.dims for op in step.operations if op.kind is Kind.GEMM} >= {(1, 512, 1008, 512)}
    narrow = compiled(nn.Linear(64, 1001, bias=False), 32, 64, precision="bf16")
    assert {op.dims for op in narrow.operations if op.kind is Kind.GEMM} >= {(1, 32, 1001, 64)}


def test_a_mode_that_is_not_predicted_is_refused():
    with pytest.raises(ConfigError, match="'max-autotune' is not known; use one of default, red"):
        compiled(nn.Linear(8, 4), 2, 8, mode="max-autotune")


def test_the_mode_is_written_with_the_workload_and_older_files_are_eager(tmp_path):
    step = compiled(nn.Linear(8, 4), 2, 8, mode="reduce-overhead")
    save_workload(step, tmp_path / "step.json")
    assert load_workload(tmp_path / "step.json").compile_mode == "reduce-overhead"
    text = (tmp_path / "step.json").read_text()
    (tmp_path / "old.json").write_text(text.replace('"compile_mode":', '"unknown":'))
    assert not load_workload(tmp_path / "old.json").compile_mode
