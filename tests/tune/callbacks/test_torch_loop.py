"""A plain loop with its checkpoint."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from wattloop.tune.callbacks.torch_loop import TrialLoop  # noqa: E402 - after the skip


def trained(trial, epochs, resumed=0):
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trial.resumed, trial.epochs_done = resumed > 0, float(resumed)
    loop = TrialLoop(trial, model=model, optimizer=optimizer)
    for _ in loop.epochs(epochs):
        for batch in loop.steps([torch.rand(4, 3) for _ in range(2)]):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        loop.report(loss=model.weight.square().sum())
    return model.weight.detach().clone()


def test_a_resumed_loop_ends_where_a_whole_one_does(trial):
    """Promise: model, optimizer and random numbers continue from the last finished epoch."""
    whole = trained(trial, 4)
    assert trial.steps_seen == 8
    assert len(trial.reports) == 4
    trained(trial, 2)
    assert torch.equal(trained(trial, 4, resumed=2), whole)
