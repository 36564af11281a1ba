"""Promises of random numbers, packed sequences and experts: they have an expected value."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from wattloop.predict import trace  # noqa: E402 - after the skip
from wattloop.predict.workload import Kind, Phase  # noqa: E402 - after the skip

TOKENS, WIDTH, EXPERTS = 48, 32, 4


class Experts(torch.nn.Module):
    """A router and its experts; a test sets the routing."""

    def __init__(self, route):
        super().__init__()
        self.router = torch.nn.Linear(WIDTH, EXPERTS)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.route = route

    def forward(self, x):
        scores = self.router(x).softmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            self.route(x, scores, out, number, expert)
        return out


def _by_rows(x, scores, out, number, expert):
    weights, chosen = scores.topk(2, dim=-1)
    rows, nth = torch.where(chosen == number)
    out.index_add_(0, rows, expert(x[rows]) * weights[rows, nth, None])


def _by_one_hot(x, scores, out, number, expert):
    chosen = torch.topk(scores, 2).indices
    _, rows = torch.where(torch.nn.functional.one_hot(chosen, EXPERTS).permute(2, 1, 0)[number])
    out.index_add_(0, rows, expert(x[rows]))


def _by_mask(x, scores, out, number, expert):
    mask = (scores.topk(2).indices == number).any(dim=-1)
    if mask.sum() > 0:
        out[mask] = expert(x[mask])


@pytest.mark.parametrize("route", [_by_rows, _by_one_hot, _by_mask])
def test_experts_get_equal_shares_of_the_rows(route):
    """Two of four are chosen for each row: the experts compute twice the rows between them."""
    workload = trace(Experts(route), torch.empty(TOKENS, WIDTH), training=False)
    flops = sum(
        op.flops * op.count
        for op in workload.operations
        if op.kind is Kind.GEMM and op.module.startswith("experts")
    )
    assert flops == 2 * TOKENS * 2 * WIDTH * WIDTH


class Drops(torch.nn.Module):
    """A model that leaves a layer out at random and checks for NaN."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            if torch.rand(1).item() < 0.1 or torch.rand([]) < 0.2:
                continue
            x = layer(x)
        if torch.isnan(x).any() or torch.isinf(x).any():
            raise ValueError("not a number")
        assert x.abs().max() < 1e6
        return x


def test_layers_that_are_rarely_left_out_are_traced():
    """A random number between 0 and 1 is a half, and no value is infinite."""
    workload = trace(Drops(), torch.empty(4, 8), optimizer=None)
    forward = [op for op in workload.operations if op.phase is Phase.FORWARD]
    assert sum(op.count for op in forward if op.kind is Kind.GEMM) == 3
    assert any("taken to be 0.5" in note for note in workload.notes)


class LastState(torch.nn.Module):
    """A classifier of packed sequences by the last state."""

    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.GRU(8, 16, batch_first=True)
        self.head = torch.nn.Linear(16, 5)

    def forward(self, x, lengths):
        pack = torch.nn.utils.rnn.pack_padded_sequence
        _, last = self.rnn(pack(x, lengths, batch_first=True))
        return self.head(last[-1])


def test_the_last_state_of_packed_sequences_has_the_whole_batch():
    """The size of the batch is read from the packed sequences; it is not 0."""
    inputs = (torch.empty(4, 10, 8), torch.tensor([10, 7, 5, 3]))
    workload = trace(LastState(), inputs, loss="cross_entropy", optimizer=None)
    head = next(op for op in workload.operations if op.module == "head" and op.kind is Kind.GEMM)
    assert head.outputs == ((4, 5),)


def test_ctc_loss_is_traced_with_targets_of_full_length():
    """Its shapes depend on lengths; the default is stated."""

    def loss(scores):
        targets = torch.ones(4, 10, dtype=torch.long)
        lengths = torch.full((4,), 50), torch.full((4,), 10)
        return torch.nn.functional.ctc_loss(
            scores.log_softmax(-1).transpose(0, 1), targets, *lengths
        )

    workload = trace(torch.nn.Linear(16, 20), torch.empty(4, 50, 16), loss=loss, optimizer=None)
    assert any(op.outputs == ((4,), (4, 50, 21)) for op in workload.operations)
    assert "10 long" in workload.notes[0]
