"""Promises of `TorchExecutor.on_gpus`: several candidates at once, each with its GPU's energy."""

import os
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="trainings in PyTorch need torch")

from tests.support.virtual_caps import settle  # noqa: E402 - after the skip

from wattloop.core.settings import Settings  # noqa: E402 - after the skip
from wattloop.store.database import open_store  # noqa: E402 - after the skip
from wattloop.store.experiments import read_trials  # noqa: E402 - after the skip
from wattloop.tune.executors.torch.batches import FlexibleBatches  # noqa: E402 - after the skip
from wattloop.tune.executors.torch.epochs import SessionEnergy  # noqa: E402 - after the skip
from wattloop.tune.executors.torch.executor import TorchExecutor  # noqa: E402 - after the skip
from wattloop.tune.executors.torch.training import Training  # noqa: E402 - after the skip
from wattloop.tune.search_loop import Search  # noqa: E402 - after the skip
from wattloop.tune.search_problem import Limits, Problem, Quality  # noqa: E402 - after the skip
from wattloop.tune.search_store import SearchRecord, open_search  # noqa: E402 - after the skip
from wattloop.tune.segment import Progress, Segment  # noqa: E402 - after the skip
from wattloop.tune.space import Choice, Real, Space  # noqa: E402 - after the skip
from wattloop.tune.strategies.sm2.sm2 import Sm2  # noqa: E402 - after the skip
from wattloop.virtual.node import shared_gpus  # noqa: E402 - after the skip
from wattloop.virtual.timeline import this_process  # noqa: E402 - after the skip

PROBLEM = Problem(
    space=Space(
        {
            "batch_size": Choice(values=(16, 32)),
            "learning_rate": Real(low=1e-3, high=1.0, log=True),
        }
    ),
    quality=Quality(metric="accuracy"),
    limits=Limits(epochs=2),
    rate="learning_rate",
    seed=3,
)
STEP_S = 0.01


def loading_training() -> Training:
    """A small network on the CPU. The worker of GPU 0 loads its card, that of GPU 1 does not."""
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(5)
    points = torch.randn(128, 4, generator=draw)
    labels = (points.sum(1) > 0).long()
    number = int(os.environ.get("CUDA_VISIBLE_DEVICES", "-1"))
    if number == 0:
        shared_gpus(2)[number].load(1.0, memory=0.3, owner=this_process())

    def loss(model: "torch.nn.Module", batch: tuple["torch.Tensor", ...]) -> "torch.Tensor":
        time.sleep(STEP_S)
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    return Training(
        model=lambda _: torch.nn.Linear(4, 2),
        optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
        loss=loss,
        data=FlexibleBatches((points, labels), unit=16, device="cpu"),
        evaluate=lambda model: {
            "accuracy": (model(points).argmax(1) == labels).float().mean(),
            "gpu": number,
        },
    )


def test_candidates_are_explored_at_once_with_the_energy_of_their_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: under way together, charged with their own card, and the result of one by one."""
    settle(monkeypatch, tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    store_path = str(tmp_path / "runs.db")
    settings = Settings(virtual_gpus=2, meters=("virtual",), interval_s=0.02, store=store_path)
    begin_s = time.monotonic()
    executor = TorchExecutor.on_gpus(
        loading_training, PROBLEM.quality, 2, settings, error=float("inf")
    )
    try:
        with open_store(store_path) as store:
            record = SearchRecord(store, open_search(store, {}, "sm2 at once")[0])
            Search(record, PROBLEM, Sm2(PROBLEM, configurations=2, rates=4), executor).run()
            end_s = time.monotonic()
            trials = read_trials(store, record.search_id)
    finally:
        executor.close()
    first, second = trials[:2]
    assert len({trial.settings["segment"]["candidate"] for trial in trials[:2]}) == 2
    assert second.settings["asked"] < first.outcome["told"]  # both were under way
    outcomes = [trial.outcome for trial in trials]
    assert {outcome["provenance"] for outcome in outcomes} == {"simulated"}
    power_w: dict[float, list[float]] = {0: [], 1: []}
    for outcome in outcomes:
        power_w[outcome["metrics"]["gpu"]].append(outcome["energy_j"] / outcome["time_s"])
    assert max(power_w[0]) > 300  # its own card, at work
    assert max(power_w[1]) < 100  # its own card, at rest, though the other one works
    charged_j = sum(outcome["energy_j"] + outcome["idle_j"] for outcome in outcomes)
    drawn_j = sum(card.true_energy_j(begin_s, end_s) for card in shared_gpus(2))
    assert charged_j < 1.05 * drawn_j  # no joule is paid twice

    energy = SessionEnergy("gpu", settings, keep=False)
    alone = TorchExecutor(loading_training(), PROBLEM.quality, energy=energy, error=float("inf"))
    try:
        for trial in trials[:2]:
            swept = alone.run(Segment.from_dict(trial.settings["segment"])).rates
            told = Progress.from_dict(trial.outcome).rates
            assert told == swept and len(told) == 4
    finally:
        alone.close()
