import math
import random

import pytest

torch = pytest.importorskip("torch", reason="trainings in PyTorch need torch")

import numpy as np  # noqa: E402 - after the check for torch

from wattloop.core.errors import ConfigError  # noqa: E402 - after the skip
from wattloop.tune.executors.base import TrainedSoFar  # noqa: E402 - after the skip
from wattloop.tune.executors.torch.batches import FlexibleBatches  # noqa: E402 - after the skip
from wattloop.tune.executors.torch.epochs import SessionEnergy  # noqa: E402 - after the skip
from wattloop.tune.executors.torch.executor import TorchExecutor  # noqa: E402 - after the skip
from wattloop.tune.executors.torch.training import Training  # noqa: E402 - after the skip
from wattloop.tune.search_problem import EarlyStopping, Quality  # noqa: E402 - after the skip
from wattloop.tune.segment import (  # noqa: E402 - after the skip
    CapRequest,
    RateSweep,
    Segment,
    Status,
    Until,
)
from wattloop.tune.segment_meter import Joules  # noqa: E402 - after the skip

WATTS = 50.0
QUALITY = Quality(metric="accuracy", target=0.97)


class Sensor:
    """50 W, read with an error at each edge as of a sensor that changes every 2 ms.

    Its clock advances by 10 ms whenever it is read: no time depends on the machine.
    """

    run_id = "steady"
    session = None

    def __init__(self, edge_s: float = 0.002) -> None:
        self.edge_s = edge_s
        self._reads = 0

    def now_s(self) -> float:
        self._reads += 1
        return 0.01 * self._reads

    def between(self, begin_s: float, end_s: float) -> Joules:
        return Joules(WATTS * (end_s - begin_s), WATTS * self.edge_s, "simulated")

    def settle(self, end_s: float) -> None:
        pass

    def close(self) -> None:
        pass


def two_moons(count: int = 512) -> tuple["torch.Tensor", "torch.Tensor"]:
    draw = torch.Generator().manual_seed(5)
    angle = math.pi * torch.rand(count, generator=draw)
    upper = torch.rand(count, generator=draw) > 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    points = torch.stack([x, y], 1) + 0.1 * torch.randn(count, 2, generator=draw)
    return points, upper.long()


def net(parameters) -> "torch.nn.Module":
    width = int(parameters.get("width", 32))
    return torch.nn.Sequential(
        torch.nn.Linear(2, width),
        torch.nn.BatchNorm1d(width),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(width, 2),
    )


POINTS, LABELS = two_moons()


def training(**changes) -> Training:
    def loss(model, batch):
        points, labels = batch
        # Draws of the user's own, of all three kinds that programs use.
        noise = 0.01 * (random.random() + np.random.rand())
        return torch.nn.functional.cross_entropy(model(points + noise), labels)

    def evaluate(model):
        return {"accuracy": (model(POINTS).argmax(1) == LABELS).float().mean().item()}

    facts = {
        "model": net,
        "optimizer": lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9),
        "loss": loss,
        "data": FlexibleBatches((POINTS, LABELS), unit=16),
        "evaluate": evaluate,
    }
    return Training(**(facts | changes))


def bench(made: Training | None = None, **options) -> TorchExecutor:
    return TorchExecutor(
        made or training(), options.pop("quality", QUALITY), energy=Sensor(), **options
    )


def segment(epochs=None, *, candidate="a", batch_size=32, lr=0.05, **more) -> Segment:
    until = more.pop("until", Until(epochs=epochs, at_target=False))
    parameters = {"batch_size": batch_size, "learning_rate": lr} | more.pop("parameters", {})
    return Segment(key=candidate, candidate=candidate, parameters=parameters, until=until, **more)


def weights(made: TorchExecutor, candidate: str = "a") -> dict[str, "torch.Tensor"]:
    return {n: t.clone() for n, t in made.model(candidate).state_dict().items()}


def same(one: dict, other: dict) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


SWEEP = RateSweep(low=1e-3, high=1.0, count=6, data_share=0.5, cyclic=True)
OPTIMIZERS = {
    "sgd": lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9),
    "adamw": lambda params, lr: torch.optim.AdamW(params, lr=lr, amsgrad=True),
    "rmsprop": lambda params, lr: torch.optim.RMSprop(params, lr=lr, centered=True),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("first_epochs", [0, 2])
def test_an_exploration_leaves_no_trace(optimizer, first_epochs) -> None:
    """Promise: with `keep=False` the training afterwards is, bit by bit, as without it."""
    results = []
    for explores in (False, True):
        made = bench(training(optimizer=OPTIMIZERS[optimizer]), error=0.05)
        if first_epochs:
            made.run(segment(first_epochs, lr=0.01))
        if explores:
            swept = made.run(segment(rates=SWEEP, keep=False, lr=0.01))
            assert len(swept.rates) == 6
            made.run(segment(first_epochs + 2, keep=False, lr=0.01))
        progress = made.run(segment(first_epochs + 2, lr=0.01))
        assert progress.epochs == first_epochs + 2
        results.append((weights(made), progress.quality, progress.metrics["loss"]))
    (plain, quality, loss), (explored, again, loss_again) = results
    assert same(plain, explored)
    assert (quality, loss) == (again, loss_again)


def test_pausing_changes_nothing() -> None:
    """Promise: a training in pieces, with others in between, is the training in one piece."""
    whole = bench()
    whole.run(segment(4))
    pieces = bench()
    pieces.run(segment(1))
    pieces.run(segment(3, candidate="other", batch_size=64))
    torch.manual_seed(1)
    pieces.run(segment(4))
    assert same(weights(whole), weights(pieces))


@pytest.mark.parametrize("budget_bytes", [None, 3_000])
def test_pausing_inside_an_epoch_changes_nothing(budget_bytes) -> None:
    """Promise: where a segment may end anywhere, the epoch continues with the remaining batches."""
    data = FlexibleBatches((POINTS, LABELS), unit=16, budget_bytes=budget_bytes)
    whole, pieces = bench(training(data=data)), bench(training(data=data))
    whole.run(segment(2))
    for epochs in (0.25, 0.7, 1.5):
        part = pieces.run(segment(until=Until(epochs=epochs, anywhere=True, at_target=False)))
        assert epochs <= part.epochs < epochs + 1 / 16
        assert part.status is Status.PAUSED
    brief = pieces.run(segment(until=Until(time_s=0.0, anywhere=True, at_target=False)))
    assert part.epochs < brief.epochs < 2
    pieces.run(segment(2))
    assert same(weights(whole), weights(pieces))


def test_the_program_keeps_its_random_numbers() -> None:
    """Promise: a bench draws nothing from the program's random numbers."""
    made = bench()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    made.run(segment(1))
    assert torch.equal(torch.rand(3), expected)


def test_candidates_of_one_seed_begin_alike() -> None:
    """Promise: batch sizes are compared from the same first weights, seeds from others."""
    made = bench()
    for name, size, seed in (("a", 16, 0), ("b", 64, 0), ("c", 16, 1)):
        made.run(segment(0, candidate=name, batch_size=size, seed=seed))
    assert same(weights(made, "a"), weights(made, "b"))
    assert not same(weights(made, "a"), weights(made, "c"))
    given = bench(training(model=net({})))
    given.run(segment(1))
    given.run(segment(0, candidate="b"))
    assert not same(weights(given, "a"), weights(given, "b"))


def test_a_segment_ends_at_its_bounds() -> None:
    """Promise: epochs, energy, time, the target and early stopping each end a segment."""
    made = bench()
    assert made.run(segment(2)).epochs == 2
    more = made.run(segment(until=Until(energy_j=0.001, at_target=False)))
    assert (more.status, more.epochs) == (Status.PAUSED, 3)
    assert made.run(segment(until=Until(time_s=0.0001, at_target=False))).epochs == 4
    reached = made.run(segment(until=Until(epochs=60)))
    assert reached.status is Status.REACHED and reached.quality >= 0.97
    assert [p.epoch for p in reached.curve] == list(range(5, int(reached.epochs) + 1))
    stopping = EarlyStopping(patience=2, least_gain=1.0)
    ended = bench(training(stopping=stopping)).run(segment(50))
    assert (ended.status, ended.epochs) == (Status.ENDED, 3)


def test_what_has_ended_stays_so() -> None:
    """Promise: a training that its own rule has ended is not trained any further."""
    made = bench(training(stopping=EarlyStopping(patience=1, most_epochs=2)))
    assert made.run(segment(9)).status is Status.ENDED
    before = weights(made)
    again = made.run(segment(20))
    assert (again.status, again.epochs, again.curve) == (Status.ENDED, 2, ())
    assert same(before, weights(made))


def test_the_curve_counts_everything_spent() -> None:
    """Promise: explorations are in the candidate's energy; evaluations are separate."""
    made = bench()
    swept = made.run(segment(rates=SWEEP, keep=False))
    trained = made.run(segment(2))
    spent_j = swept.energy_j + trained.curve[0].energy_j - swept.energy_j
    assert trained.curve[0].energy_j > swept.energy_j
    assert trained.curve[1].energy_j > spent_j
    assert 0 < trained.metrics["eval_energy_j"] < trained.energy_j
    assert trained.energy_j == pytest.approx(WATTS * trained.time_s)
    assert (trained.provenance, trained.run_id) == ("simulated", "steady")


def test_an_exploration_goes_on_until_its_energy_is_sure() -> None:
    """Promise: the energy of an epoch is known to the error asked for, and is charged."""
    made = bench(error=0.01)
    swept = made.run(segment(rates=SWEEP, keep=False))
    energy_j, error_j = swept.metrics["epoch_energy_j"], swept.metrics["epoch_uncertainty_j"]
    assert error_j <= 0.01 * energy_j
    plain = bench(error=1e9).run(segment(rates=SWEEP, keep=False))
    assert plain.time_s < swept.time_s
    assert plain.metrics["epoch_uncertainty_j"] > 0.01 * plain.metrics["epoch_energy_j"]


def test_a_sensor_that_time_does_not_help_is_given_up() -> None:
    """Promise: an error that longer windows do not make smaller does not make them endless."""

    class Rough(Sensor):
        def between(self, begin_s, end_s):
            return Joules(WATTS * (end_s - begin_s), 0.2 * WATTS * (end_s - begin_s), "estimated")

    made = TorchExecutor(training(), QUALITY, energy=Rough(), longest_s=15.0)
    swept = made.run(segment(rates=SWEEP, keep=False))
    assert swept.metrics["epoch_uncertainty_j"] == pytest.approx(
        0.2 * swept.metrics["epoch_energy_j"]
    )
    assert swept.time_s < 15


def test_a_rate_that_breaks_the_model_is_infinite_and_spoils_nothing_else() -> None:
    """Promise: after a loss of NaN or infinity the sweep continues with a sound model."""
    wild = RateSweep(low=1e-3, high=1e12, count=16, data_share=1.0, cyclic=True)
    fragile = training(model=lambda p: torch.nn.Linear(2, 2), clip=None)
    swept = bench(fragile).run(segment(rates=wild, keep=False, batch_size=16))
    losses = [r.loss for r in swept.rates]
    assert len(losses) == 16
    assert math.isinf(losses[-1])
    assert all(loss < 2 for loss in losses[:4])
    assert swept.quality is not None and swept.status is Status.PAUSED


def test_blocks_of_steps_at_one_rate() -> None:
    """Promise: blockwise, scarce data means fewer rates, not fewer steps at each."""
    sweep = RateSweep(low=1e-3, high=1.0, count=12, steps_each=10, data_share=None)
    assert len(bench().run(segment(rates=sweep, keep=False)).rates) == 12
    scarce = RateSweep(low=1e-3, high=1.0, count=12, steps_each=10, data_share=1.0)
    rates = [r.rate for r in bench().run(segment(rates=scarce, keep=False, batch_size=8)).rates]
    assert len(rates) == 6
    assert rates[0] == pytest.approx(1e-3) and rates[-1] == pytest.approx(1.0)
    none = bench().run(segment(rates=scarce, keep=False, batch_size=128))
    assert none.rates == () and none.status is Status.PAUSED


def test_a_new_rate_holds_from_there_on() -> None:
    """Promise: `learning_rate` of a segment stays until another one is given."""
    made = bench()
    made.run(segment(1))
    made.run(segment(2, learning_rate=0.0))
    before = {n: p.clone() for n, p in made.model("a").named_parameters()}
    made.run(segment(3))
    after = dict(made.model("a").named_parameters())
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_divergence_is_a_result_and_can_be_gone_back_from() -> None:
    """Promise: a loss that is not finite is `diverged`; a smaller rate continues from before."""
    fragile = training(model=lambda p: torch.nn.Linear(2, 2))
    made = bench(fragile)
    made.run(segment(1))
    before = weights(made)
    diverged = made.run(segment(5, learning_rate=1e38))
    assert diverged.status is Status.DIVERGED and "loss is" in diverged.message
    assert same(before, weights(made))
    assert made.run(segment(2, learning_rate=0.05)).status is Status.PAUSED


def test_running_out_of_memory_and_faults_are_results() -> None:
    """Promise: a training that fails does not stop the search, and says why."""

    def no_memory(model, batch):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    def broken(model, batch):
        raise ValueError("labels are wrong")

    assert bench(training(loss=no_memory)).run(segment(1)).status is Status.OUT_OF_MEMORY
    failed = bench(training(loss=broken)).run(segment(1))
    assert failed.status is Status.FAILED and "labels are wrong" in failed.message


def test_a_metric_that_is_never_given_is_said() -> None:
    """Promise: an evaluation without the metric is an error that names both."""
    with pytest.raises(ConfigError, match="gave accuracy, not perplexity"):
        bench(quality=Quality(metric="perplexity")).run(segment(1))


def test_levers_are_refused() -> None:
    """Promise: a lever that this executor cannot set is refused, not ignored."""
    assert bench().run(segment(1, levers={"cap": 200})).status is Status.NOT_SUPPORTED
    without = bench().run(segment(1, cap=CapRequest()))
    assert without.status is Status.PAUSED
    assert without.cap.cap_w is None and "LeverBoard" in without.cap.reason


def test_a_killed_search_goes_on_from_disk(tmp_path) -> None:
    """Promise: after a kill the training continues bit by bit from its checkpoint."""
    whole = bench()
    whole.run(segment(4))
    first = bench(checkpoints=tmp_path)
    first.run(segment(2))
    first.run(segment(3))  # the kill came before the search noted this one
    del first
    again = bench(checkpoints=tmp_path)
    again.recall({"a": TrainedSoFar(epochs=2.0, time_s=7.0, energy_j=90.0)})
    gone_on = again.run(segment(4))
    assert same(weights(whole), weights(again))
    assert gone_on.curve[0].energy_j > 90 and gone_on.curve[0].time_s > 7
    lost = bench(checkpoints=tmp_path / "other")
    lost.recall({"a": TrainedSoFar(epochs=2.0)})
    with pytest.raises(ConfigError, match="no checkpoint of 'a' after 2 epochs"):
        lost.run(segment(4))
    again.release("a")
    assert not list(tmp_path.glob("a-*.pt"))


def test_with_the_meters_of_this_machine(tmp_path, monkeypatch) -> None:
    """Promise: without anything given, energy comes from this machine's meters, or is None."""
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "runs.db"))
    made = TorchExecutor(training(), QUALITY, energy=SessionEnergy(keep=False), longest_s=0.2)
    progress = made.run(segment(1))
    made.close()
    assert progress.time_s > 0
    assert progress.energy_j is None or progress.energy_j > 0


def test_bf16() -> None:
    """Promise: computing in bfloat16 trains, too."""
    assert bench(training(bf16=True)).run(segment(3)).quality > 0.7
