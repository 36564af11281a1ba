"""Promises of traced training steps: predicted as written, with all of the user's state
unchanged.
"""

import random
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

import numpy  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from wattloop.core.errors import ConfigError  # noqa: E402
from wattloop.predict import predict, trace  # noqa: E402

IMAGES = torch.randn(8, 32)
LABELS = torch.randint(10, (8,))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))


def counts(workload, *, phases=("forward", "backward", "optimizer")):
    """Count operations by name; autograd's first gradient is made by the engine or before it."""
    found = Counter()
    for each in workload.operations:
        if each.phase.value in phases and each.op != "aten.ones_like":
            found[each.op, each.phase.value, each.dtype] += each.count
    return found


def test_a_step_has_the_operations_of_the_same_model_inputs_and_loss():
    """A hand-written bf16 step over a Transformer is the trace of model, inputs and loss."""
    layer = nn.TransformerEncoderLayer(32, 4, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 5, enable_nested_tensor=False))
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(4, 16, 32), torch.randn(4, 16, 32)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()

    mine = trace(model, step=step, optimizer=optimizer)
    plain = trace(model, (x,), targets=y, loss="mse", precision="bf16", optimizer="adamw")
    assert counts(mine) == counts(plain)
    assert (mine.precision, mine.batch, mine.accumulate) == ("bf16", 4, 1)
    assert mine.peak_bytes == pytest.approx(plain.peak_bytes, rel=0.001)


def test_nothing_of_the_user_changes():
    """Parameters, buffers, gradients, states, rates, random numbers and batches stay."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=8, shuffle=True)
    torch.manual_seed(1)
    expected = [each[0].tolist() for each in loader]
    torch.manual_seed(1)
    batches = iter(loader)
    model[0].weight.grad = torch.ones_like(model[0].weight)

    def step():
        optimizer.zero_grad()
        (numbers,) = next(batches)
        noise = numpy.random.rand() + random.random()
        loss = functional.cross_entropy(model(IMAGES + numbers[0] + noise), LABELS)
        loss.backward()
        optimizer.step()
        schedule.step()
        model.register_buffer("seen", torch.ones(1))

    state = {name: value.clone() for name, value in model.state_dict().items()}
    weights = [id(each) for each in model.parameters()]
    drawn = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    for optimizers in (optimizer, None):
        trace(model, step=step, optimizer=optimizers)
    assert [id(each) for each in model.parameters()] == weights
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())
    assert model[0].weight.grad.sum() == 32 * 64
    assert model[3].weight.grad is None
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert schedule.last_epoch == 0
    assert torch.equal(drawn[0], torch.get_rng_state())
    assert drawn[1:] == (random.getstate(), numpy.random.get_state()[1].tolist())
    assert [each[0].tolist() for each in batches] == expected


@pytest.mark.parametrize(
    "labels", [LABELS, LABELS.to("meta"), LABELS.numpy()], ids=["cpu", "meta", "numpy"]
)
@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_labels_come_from_anywhere(labels, where):
    """Labels on another device than the model, or in numpy, are those of the step."""
    model = network().to(where)
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        aim = torch.from_numpy(labels) if isinstance(labels, numpy.ndarray) else labels
        loss = functional.cross_entropy(model(IMAGES.cuda()), aim.to("cuda"))
        loss.backward()
        optimizer.step()

    assert predict(step=step, model=model, optimizer=optimizer).workload.batch == 8
    if not isinstance(labels, numpy.ndarray):
        loss = lambda output: functional.cross_entropy(output, labels)  # noqa: E731
        assert predict(model, inputs=IMAGES, loss=loss).prediction.step_s > 0


def test_labels_of_a_module_and_of_the_program():
    """Attributes of modules and global variables are found as closures are."""
    model = network()
    model.labels = LABELS.to("meta")
    forecast = predict(
        step=lambda: functional.cross_entropy(model(IMAGES), model.labels), optimizer="sgd"
    )
    assert forecast.workload.optimizer == "sgd"
    assert any("returned a loss" in note for note in forecast.notes)


def test_accumulated_passes_are_counted_and_traced_once():
    """Four micro-batches make accumulate 4; gradient clipping happens once."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(passes):
        for _ in range(passes):
            (functional.cross_entropy(model(IMAGES), LABELS) / passes).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    one = trace(model, step=lambda: step(1), optimizer=optimizer)
    four = trace(model, step=lambda: step(4), optimizer=optimizer)
    assert (one.accumulate, four.accumulate, four.samples) == (1, 4, 32)
    assert counts(one, phases=["forward"]) == counts(four, phases=["forward"])
    norms = [each for each in four.operations if each.op == "aten._foreach_norm"]
    assert [(each.phase.value, each.count) for each in norms] == [("optimizer", 1)]


class Lion(torch.optim.Optimizer):
    """An optimizer that has no rule."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-4})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for each in group["params"]:
                state = self.state[each]
                if not state:
                    state["mean"] = torch.zeros_like(each)
                each.add_(state["mean"].lerp(each.grad, 0.1).sign_(), alpha=-group["lr"])
                state["mean"].lerp_(each.grad, 0.01)


@pytest.mark.parametrize("kind", [Lion, torch.optim.NAdam, torch.optim.Adafactor])
def test_an_optimizer_without_a_rule_is_traced(kind):
    """Its operations and states are counted, without those of its first step."""
    model = nn.Linear(32, 10)
    optimizer = kind(model.parameters())

    def step():
        functional.cross_entropy(model(IMAGES), LABELS).backward()
        optimizer.step()

    workload = trace(model, step=step, optimizer=optimizer)
    names = {each.op for each in workload.operations if each.phase.value == "optimizer"}
    assert names
    assert not names & {"aten.zeros_like", "aten.zeros"}
    states = {"Lion": 1, "NAdam": 2}.get(kind.__name__)
    if states:
        assert workload.optimizer_bytes == states * 4 * (32 * 10 + 10)
    assert workload.optimizer == kind.__name__.lower()


def test_two_optimizers_make_one_step():
    """Generator and discriminator of a GAN are both in the step, each call of them."""
    maker, judge = network(), nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizers = [torch.optim.Adam(each.parameters()) for each in (judge, maker)]

    def step():
        made = maker(IMAGES)
        for output in (judge(torch.randn(8, 10)), judge(made.detach())):
            output.mean().backward()
        optimizers[0].step()
        judge(made).mean().backward()
        optimizers[1].step()

    workload = trace(None, step=step, optimizer=optimizers)
    assert workload.accumulate == 1
    products = counts(workload, phases=["forward"])
    assert products["aten.addmm", "forward", "fp32"] == 2 + 3 * 2
    assert workload.parameters == sum(
        each.numel() for model in (maker, judge) for each in model.parameters()
    )


def test_a_model_that_is_called_twice_before_its_backward_pass():
    """Equal blocks are not skipped where a second call runs them again."""
    layer = nn.TransformerEncoderLayer(32, 4, batch_first=True)
    model = nn.TransformerEncoder(layer, 5, enable_nested_tensor=False)
    x = torch.randn(4, 16, 32)

    def step(calls):
        return sum(model(x).mean() for _ in range(calls))

    once, twice = (trace(model, step=lambda n=n: step(n), optimizer="sgd") for n in (1, 2))
    products = [counts(each)["aten.addmm", "forward", "fp32"] for each in (once, twice)]
    assert products[1] == 2 * products[0] > 0


def test_compiled_models_scaled_losses_and_checkpoints():
    """`torch.compile`, `GradScaler` and recomputed layers are those of the step."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    mask = torch.ones(8, 10, device="meta")
    quick = torch.compile(model, mode="reduce-overhead")
    scaler = torch.amp.GradScaler("cpu")

    def compiled():
        functional.cross_entropy(quick(IMAGES), LABELS).backward()
        optimizer.step()

    def scaled():
        with torch.autocast("cuda", dtype=torch.float16):
            loss = functional.cross_entropy(model(IMAGES), LABELS)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    def again():
        output = checkpoint(lambda x: model(x) * mask, IMAGES, use_reentrant=False)
        functional.cross_entropy(output, LABELS).backward()
        optimizer.step()

    workload = trace(quick, step=compiled, optimizer=optimizer)
    assert (workload.compile_mode, workload.optimizer_style) == ("reduce-overhead", "fused")
    workload = trace(model, step=scaled, optimizer=optimizer)
    assert workload.precision == "fp16"
    assert any("unscale" in each.op for each in workload.operations)
    assert not scaler._per_optimizer_states
    workload = trace(model, step=again, optimizer=optimizer)
    assert counts(workload)["aten.addmm", "backward", "fp32"] == 2


def test_a_large_model_needs_no_memory():
    """Seven billion parameters on the meta device are traced, not run."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(16384, 16384) for _ in range(26)))
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.empty(4, 16384)).mean().backward()
        optimizer.step()

    assert trace(model, step=step, optimizer=optimizer).parameters > 6.9e9


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "say what to predict"),
        ({"step": 3}, "step: is a int"),
        ({"step": lambda batch: batch}, "it takes batch; give inputs="),
        ({"step": lambda: None}, "no backward pass was seen"),
        ({"step": lambda: 1 / 0}, r"ZeroDivisionError at test_training_step.py:\d+"),
        ({"step": lambda: network()(IMAGES[:, :3]).sum()}, "in module '0', operation 'aten.addmm'"),
        ({"step": lambda: None, "seq": 8}, "seq: a training step has its own"),
        ({"step": lambda: None, "model": "hf:gpt2"}, "leave the model out"),
        ({"step": lambda: None, "model": 3}, "the nn.Module that the step trains"),
        ({"step": lambda: None, "training": False}, "inference: a training step trains"),
    ],
)
def test_mistakes_are_explained(asked, said):
    with pytest.raises(ConfigError, match=said):
        predict(**asked)


def test_inputs_fit_the_arguments_of_a_step():
    """A tuple, a dictionary and a data loader give the batch."""
    model = network()
    loader = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=4)

    def whole(batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    def parts(images, labels):
        return functional.cross_entropy(model(images), labels)

    assert predict(step=parts, inputs=(IMAGES, LABELS)).workload.batch == 8
    assert predict(step=whole, inputs=(IMAGES, LABELS)).workload.batch == 8
    assert predict(step=whole, inputs=loader).workload.batch == 4
    named = {"images": IMAGES, "labels": LABELS}
    assert predict(step=parts, inputs=named, gpu="a100").workload.batch == 8


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        ids = torch.full((24,), index)
        return {"input_ids": ids, "labels": ids}


def test_a_trainer_of_hugging_face(tmp_path):
    """Batch, accumulation, precision, optimizer and checkpointing are the Trainer's."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.GPT2Config(
        n_layer=4,
        n_embd=32,
        n_head=2,
        vocab_size=64,
        n_positions=24,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    options = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "use_cpu": True}

    def forecast(**more):
        arguments = transformers.TrainingArguments(str(tmp_path), report_to=[], **options, **more)
        trainer = transformers.Trainer(model, arguments, train_dataset=Tokens())
        before = dict(vars(trainer))
        found = predict(trainer)
        assert vars(trainer) == before
        return found.workload

    plain = forecast(optim="adamw_torch")
    assert (plain.batch, plain.accumulate, plain.precision) == (4, 3, "fp32")
    assert (plain.optimizer, plain.optimizer_style) == ("adamw", "foreach")
    saved = forecast(bf16=True, optim="adamw_torch_fused", gradient_checkpointing=True)
    assert (saved.precision, saved.optimizer_style) == ("bf16", "fused")
    assert saved.activation_bytes < plain.activation_bytes / 2
    assert not model.is_gradient_checkpointing
    assert forecast(torch_compile=True).compile_mode == "default"


def test_a_lightning_module():
    """Its training_step, optimizer and loader, and a Trainer's precision and accumulation."""
    lightning = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, index):
            images, labels = batch
            loss = functional.cross_entropy(self.net(images), labels)
            self.log("loss", loss)
            return {"loss": loss}

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    module = Classifier()
    loader = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=4)
    with pytest.raises(ConfigError, match="a batch or a DataLoader"):
        predict(module)
    workload = predict(module, inputs=loader).workload
    assert (workload.name, workload.batch, workload.optimizer) == ("Classifier", 4, "sgd")
    trainer = lightning.Trainer(
        precision="bf16-mixed", accumulate_grad_batches=2, gradient_clip_val=1.0, logger=False,
        accelerator="cpu", enable_checkpointing=False,
    )  # fmt: skip
    workload = predict(module, inputs=(IMAGES, LABELS), trainer=trainer).workload
    assert (workload.precision, workload.accumulate) == ("bf16", 2)
    assert any(each.op == "aten._foreach_norm" for each in workload.operations)
    assert "log" not in vars(module)
