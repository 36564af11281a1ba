"""Levers and caps of torch trainings, on virtual GPUs."""

import time

import pytest

torch = pytest.importorskip("torch", reason="trainings in PyTorch need torch")

from tests.support.virtual_caps import settle  # noqa: E402 - after the check for torch
from tests.tune.test_levers import CAPS, QUICK, SETTINGS, limits  # noqa: E402 - after the skip

from wattloop.cap.curve_model import physical_curves  # noqa: E402 - after the skip
from wattloop.tune.executors.torch.batches import FlexibleBatches  # noqa: E402 - after the skip
from wattloop.tune.executors.torch.epochs import SessionEnergy  # noqa: E402 - after the skip
from wattloop.tune.executors.torch.executor import TorchExecutor  # noqa: E402 - after the skip
from wattloop.tune.executors.torch.training import Training  # noqa: E402 - after the skip
from wattloop.tune.levers import LeverBoard  # noqa: E402 - after the skip
from wattloop.tune.search_problem import Quality  # noqa: E402 - after the skip
from wattloop.tune.segment import (  # noqa: E402 - after the skip
    Segment,
    Status,
    Until,
)
from wattloop.tune.space import Choice, Space  # noqa: E402 - after the skip
from wattloop.virtual.node import shared_gpus  # noqa: E402 - after the skip

SPACE = Space(
    {
        "batch_size": Choice(values=(4,)),
        "power_limit": Choice(values=(300, 500), lever="gpu/power_limit"),
    }
)


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    settle(monkeypatch, tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def bench(tmp_path):
    settings = SETTINGS._replace(store=str(tmp_path / "runs.db"))
    gpus = shared_gpus(2)

    def loss(model, batch):
        for gpu in gpus:
            gpu.load(1.0, memory=0.3)
        time.sleep(0.01)
        return model(batch).pow(2).mean()

    training = Training(
        model=lambda parameters: torch.nn.Linear(3, 1),
        optimizer=lambda params, lr: torch.optim.SGD(params, lr=lr),
        loss=loss,
        data=FlexibleBatches(torch.randn(160, 3), unit=4),
        evaluate=lambda model: {"accuracy": 0.5},
    )
    made = TorchExecutor(
        training,
        Quality(metric="accuracy"),
        energy=SessionEnergy(settings=settings),
        board=LeverBoard(SPACE, settings, caps=True),
        cap_rules=QUICK,
    )
    yield made
    made.close()


def segment(epochs: float, **more) -> Segment:
    until = Until(epochs=epochs, at_target=False)
    return Segment(key="a", candidate="a", parameters={"batch_size": 4}, until=until, **more)


def test_a_cap_is_found_in_the_steps_of_a_training(bench) -> None:
    """Promise: probes are steps of the training; the limits are as before in the end."""
    physical_curves()  # takes its time once, and this training is short
    before = limits()
    progress = bench.run(segment(9, cap=CAPS))
    assert progress.status is Status.PAUSED and progress.epochs == 9
    assert progress.cap is not None
    assert progress.cap.cap_w in CAPS.caps_w, progress.cap.reason
    bench.close()
    assert limits() == before


def test_levers_hold_for_their_segment(bench) -> None:
    """Promise: a segment runs under its levers, and a refused value is reported."""
    assert bench.run(segment(1, levers={"power_limit": 300})).status is Status.PAUSED
    assert limits() == [300.0, 300.0]
    refused = bench.run(segment(2, levers={"power_limit": 9_000}))
    assert refused.status is Status.NOT_SET and "9" in refused.message
    assert bench.run(segment(2)).epochs == 2
    assert limits() != [300.0, 300.0]
