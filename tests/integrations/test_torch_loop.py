import time
from typing import Any

import pytest

from tests.integrations.conftest import Machine
from wattloop.integrations.torch_loop import EnergyMeter

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def train(meter: EnergyMeter | None) -> Any:
    """Run a tiny training and return its weights."""
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.ReLU())
    model.append(torch.nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        if meter is None:
            for x, y in loader:
                step(x, y)
            continue
        with meter.epoch():
            for x, y in loader:
                with meter.step() as measured:
                    measured.loss = step(x, y)
                time.sleep(0.005)
            meter.log(accuracy=0.5)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_plain_loop_is_measured_and_not_changed(machine: Machine) -> None:
    """Promise: epochs and steps have energy and losses, and the weights are bit-identical."""
    plain = train(None)
    state = torch.get_rng_state()
    with EnergyMeter() as meter:
        weights = train(meter)
    assert torch.equal(plain, weights)
    assert torch.equal(state, torch.get_rng_state())
    assert len(meter.steps) == 12
    assert all(s.loss is not None and s.loss > 0 for s in meter.steps)
    assert all(e.energy_j and e.energy_j > 0 for e in meter.epochs)
    assert meter.epochs[0].metrics == {"accuracy": 0.5}


def test_step_done_without_epochs(machine: Machine) -> None:
    """Promise: one call per step works; the first step counts from the start."""
    with EnergyMeter() as meter:
        for _ in range(5):
            time.sleep(0.01)
            meter.step_done(loss=torch.tensor(0.25, requires_grad=True))
    assert [s.index for s in meter.steps] == [0, 1, 2, 3, 4]
    assert [s.loss for s in meter.steps] == [0.25] * 5
    assert meter.steps[0].duration_s >= 0.009


def test_a_step_that_raises_is_not_a_step(machine: Machine) -> None:
    """Promise: the user's exception passes unchanged, and the failed step is not recorded."""
    with pytest.raises(ZeroDivisionError), EnergyMeter() as meter, meter.epoch():
        with meter.step():
            time.sleep(0.01)
        with meter.step():
            raise ZeroDivisionError
    assert len(meter.steps) == 1
    assert meter.run is not None
    assert meter.run.status == "failed"


def test_the_loss_may_be_logged(machine: Machine) -> None:
    """Promise: `log(loss=...)` is the same as setting `loss`."""
    with EnergyMeter() as meter, meter.step() as step:
        step.log(loss=0.5, accuracy=0.9)
    assert meter.fault is None
    assert meter.steps[0].metrics == {"loss": 0.5, "accuracy": 0.9}


def test_workers_of_a_data_loader(machine: Machine) -> None:
    """Promise: forked data-loading workers disturb nothing."""
    data = torch.utils.data.TensorDataset(torch.randn(32, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2)
    with EnergyMeter() as meter:
        for _ in range(2):
            with meter.epoch():
                for (x,) in loader:
                    with meter.step() as step:
                        step.loss = x.square().mean()
    assert meter.fault is None
    assert [e.steps for e in meter.epochs] == [4, 4]
    (journal,) = machine.journals()
    assert journal.end is not None
    assert journal.torn_bytes == 0
