"""Promises of users' models: traced in any style, and left unchanged."""

import logging

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from wattloop.core.errors import ConfigError  # noqa: E402 - after the skip
from wattloop.predict import trace  # noqa: E402 - after the skip


class Tied(torch.nn.Module):
    """An embedding that is the head as well, around a recurrent layer."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 8)
        self.rnn = torch.nn.LSTM(8, 8)
        self.head = torch.nn.Linear(8, 10, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(self.rnn(self.table(x))[0])


@pytest.mark.parametrize(
    ("convert", "size"),
    [
        (torch.nn.Module.float, 4),
        (torch.nn.Module.bfloat16, 2),
        (torch.nn.Module.cuda, 4),
        (lambda model: model.to(torch.device("cuda:0"), torch.bfloat16), 2),
        (lambda model: model.to(memory_format=torch.channels_last), 4),
    ],
    ids=["float", "bfloat16", "cuda", "to cuda and bfloat16", "channels last"],
)
def test_a_factory_may_convert_its_model(convert, size):
    """This includes a missing GPU; tied weights stay tied."""
    workload = trace(lambda: convert(Tied()), torch.empty(3, 2, dtype=torch.long), optimizer=None)
    assert workload.parameters == 10 * 8 + 4 * 8 * (8 + 8 + 2)
    assert workload.parameter_bytes == size * workload.parameters


class NamesGpu(torch.nn.Module):
    """A model that makes and moves tensors on a GPU by name."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x.cuda()) + torch.zeros(8, device="cuda") + torch.ones(8).to("cuda:0")


def test_a_model_that_names_a_gpu_is_traced_without_one():
    """Named devices are replaced by that of the trace."""
    assert trace(NamesGpu(), torch.empty(2, 8), optimizer=None).operations


class Keeps(torch.nn.Module):
    """A model that stores tensors of its forward pass in attributes, some of which are not
    buffers.
    """

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.utils.spectral_norm(torch.nn.Linear(8, 8))
        self.table = torch.zeros(4, 8, device="meta")
        self.more = [torch.zeros(8, device="meta")]
        self.mask = None
        self.calls, self.seen = 0, {}

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.ones_like(x)
        self.calls += 1
        self.seen["last"] = x
        self.register_buffer("late", torch.zeros(3))
        return self.layer(x) * self.mask + self.table + self.more[0]


def test_a_model_is_left_without_what_the_trace_made():
    """Attributes, lists, dictionaries and buffers that its forward pass sets are restored."""
    model = Keeps()
    weight, table = model.layer.weight, model.table
    trace(model, torch.empty(4, 8), optimizer=None)
    assert model.layer.weight is weight
    assert model.table is table
    assert (model.mask, model.calls, model.seen) == (None, 0, {})
    assert "late" not in model._buffers


class Counts(torch.nn.Module):
    """A model that passes through a layer as often as a buffer says."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("passes", torch.tensor(3))

    def forward(self, x):
        for _ in range(int(self.passes)):
            x = self.layer(x)
        return x


def test_a_number_in_a_buffer_has_its_value():
    """It is a setting of the model, not data."""
    workload = trace(Counts(), torch.empty(2, 8), training=False)
    assert sum(op.count for op in workload.operations if op.op == "aten.addmm") == 3


class Leaves(torch.nn.Module):
    """A block that stores a value for the model."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.layer = torch.nn.Linear(8, 8)
        self.act = torch.nn.GELU()

    def forward(self, x):
        self.extra = self.layer(self.norm(x))
        return self.act(self.extra)


class Collects(torch.nn.Module):
    """A model that sums the values of equal blocks."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Leaves() for _ in range(6))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x + sum(block.extra for block in self.blocks)


def test_blocks_that_store_a_value_all_run():
    """A skipped block would not store it, so none is skipped."""
    workload = trace(Collects(), torch.empty(2, 8), training=False)
    assert sum(op.count for op in workload.operations if op.op == "aten.addmm") == 6


def test_shapes_that_do_not_fit_are_told_without_a_traceback():
    """The error names the module; torch logs nothing in addition."""
    log, told = logging.getLogger("torch._subclasses.fake_tensor"), []
    log.addFilter(told.append)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(8, 4))
    with pytest.raises(ConfigError, match="module '1'"):
        trace(model, torch.empty(2, 8))
    log.removeFilter(told.append)
    assert told == []
    assert not log.disabled


def test_a_model_with_nothing_to_train_is_told_so():
    """All of it is frozen, and only the forward pass can be traced."""
    model = torch.nn.Linear(8, 8).requires_grad_(False)
    with pytest.raises(ConfigError, match="training=False"):
        trace(model, torch.empty(2, 8))
    assert trace(model, torch.empty(2, 8), training=False).operations
