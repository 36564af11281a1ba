"""Promises of models that read data: traced by stated defaults, or refused by name."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from wattloop.core.errors import ConfigError  # noqa: E402 - after the skip
from wattloop.predict import trace  # noqa: E402 - after the skip


class Looks(torch.nn.Module):
    """A layer, followed by an operation that a test sets."""

    def __init__(self, then):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.then = then

    def forward(self, x):
        return self.then(self.layer(x))


def traced(then):
    return trace(Looks(then), torch.empty(4, 8), loss=lambda y: y.sum())


def names(workload):
    return {op.op for op in workload.operations}


def test_a_branch_on_data_is_taken_as_false_first():
    """`if tensor.sum() > 0` reads a number, and the note states the assumed value."""
    workload = traced(lambda y: y.relu() if y.sum() > 0 else y.tanh())
    assert "aten.tanh" in names(workload)
    assert "aten.relu" not in names(workload)
    assert "taken to be 0" in workload.notes[0]


def test_a_number_that_cannot_be_0_is_taken_to_be_1():
    """A loop that divides by the number works with 1."""
    workload = traced(lambda y: y.tanh() * (1 / int(y.max().item())))
    assert "taken to be 1" in workload.notes[0]


@pytest.mark.parametrize(
    ("then", "said"),
    [
        (lambda y: y[(y > 0)], "mask as index"),
        (lambda y: torch.masked_select(y, y > 0), "all 32 elements"),
        (lambda y: y.flatten()[torch.nonzero(y.flatten() > 0).squeeze(1)], "all 32 elements"),
        (lambda y: y.sum() + torch.unique(y.long()).numel(), "32 different"),
    ],
    ids=["mask", "masked_select", "nonzero", "unique"],
)
def test_elements_found_in_data_are_taken_to_be_all(then, said):
    """All elements count as found, with a note."""
    workload = traced(then)
    assert any(said in note for note in workload.notes)


def test_a_mask_that_is_written_through_keeps_its_shape():
    """`y[mask] = 0` works on all elements."""

    def write(y):
        y = y.clone()
        y[y > 0] = 0.0
        return y

    assert any("mask" in note for note in traced(write).notes)


def test_a_read_without_a_default_is_refused_with_operation_and_module():
    """The number of repeats is data, and has no default."""
    with pytest.raises(ConfigError, match=r"operation 'aten\.repeat_interleave' in.*no default"):
        traced(lambda y: y.repeat_interleave((y[:, 0] > 0).long(), dim=0))


def test_an_error_in_the_model_s_own_code_names_the_module():
    """This also holds where no operation of torch failed."""
    with pytest.raises(ConfigError, match=r"in the model: 'x' is not in the table"):
        traced(lambda y: _raise())


def _raise():
    raise ValueError("'x' is not in the table")


def test_a_loop_that_ends_by_data_is_refused_in_good_time(monkeypatch):
    """With any assumed number, `while y.sum() > 0` would run for ever."""
    monkeypatch.setattr("wattloop.predict.workload.tracing.constant_tracking.MOST_READS", 50)

    def loop(y):
        while y.sum() > 0:
            y = y * 0.5
        raise ValueError("0 does not go through")

    with pytest.raises(ConfigError, match="a loop that ends by data cannot be traced"):
        traced(loop)
