"""Table 1 of Geißler et al. (SM2) in small: batch sizes halved, learning rates swept, on a CPU.

    python examples/sm2.py
    python examples/sm2.py --configurations 16 --rates 40 --seeds 3

A small network learns scikit-learn's digits: by one ordinary training ("vanilla"), and by `sm2`
with alpha 1 (only quality counts) and 0.75 (energy and learning rate, too). Parity is the energy of
a whole search over that of one ordinary training. The images that were learned from are counted as
well: on a busy machine without an energy sensor, estimated joules follow the load of others.

Needs PyTorch and scikit-learn.
"""

import argparse
import math
from statistics import fmean

import torch
from sklearn.datasets import load_digits

from wattloop.tune.executors.torch.batches import FlexibleBatches
from wattloop.tune.executors.torch.executor import TorchExecutor
from wattloop.tune.executors.torch.training import Training
from wattloop.tune.search_problem import EarlyStopping, Limits, Problem, Quality
from wattloop.tune.segment import Segment, Until
from wattloop.tune.space import Choice, Real, Space
from wattloop.tune.strategies.sm2.sm2 import Sm2

HELD_BACK = 360
QUALITY = Quality(metric="accuracy")
STOPPING = EarlyStopping(patience=3)
USUAL = {"batch_size": 32, "learning_rate": 0.05}
LEARNED_FROM: list[int] = []
"""Images of each step since the list was emptied."""


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--configurations", type=int, default=8, help="batch sizes to begin with")
    parser.add_argument("--rates", type=int, default=20, help="tried in an exploratory epoch")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20, help="of one training at most")
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    made = training(args.width)
    vanilla(made, 1, 0)  # first steps load libraries; they belong to none of the three
    spent: dict[str, list[tuple[float, int]]] = {"1": [], "0.75": [], "vanilla": []}
    for seed in range(args.seeds):
        spent["vanilla"].append(vanilla(made, args.epochs, seed))
        for alpha in ("1", "0.75"):
            cost, kept = sm2(made, args, float(alpha), seed)
            spent[alpha].append(cost)
            print(f"seed {seed}, alpha {alpha}: {kept}, {cost[0]:.2f} J, {cost[1]:,} images")
    print(f"{args.configurations} batch sizes, {args.rates} rates, {args.seeds} seeds")
    for place, unit in enumerate(("J", "images")):
        one, both, plain = (fmean(c[place] for c in costs) for costs in spent.values())
        changes = [b[place] / a[place] - 1 for a, b in zip(spent["1"], spent["0.75"], strict=True)]
        print(
            f"{unit}: alpha 1 {one:,.1f}, alpha 0.75 {both:,.1f} ({both / one - 1:+.0%}; by seed "
            f"{', '.join(f'{change:+.0%}' for change in changes)}), vanilla {plain:,.1f}, "
            f"parity {both / plain:.2f}"
        )


def training(width: int) -> Training:
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    test_x, test_y = x[:HELD_BACK], y[:HELD_BACK]

    def loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        LEARNED_FROM.append(len(batch[1]))
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    return Training(
        model=lambda _: torch.nn.Sequential(
            torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)
        ),
        optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
        loss=loss,
        data=FlexibleBatches((x[HELD_BACK:], y[HELD_BACK:]), unit=8, device="cpu"),
        evaluate=lambda model: {"accuracy": (model(test_x).argmax(1) == test_y).float().mean()},
        stopping=STOPPING,
    )


def vanilla(made: Training, epochs: int, seed: int) -> tuple[float, int]:
    """Return joules and images of one training at a usual batch size and rate."""
    LEARNED_FROM.clear()
    executor = TorchExecutor(made, QUALITY, error=math.inf)
    until = Until(epochs=epochs, at_target=False)
    segment = Segment(key="v", candidate="v", parameters=USUAL, until=until, seed=seed)
    progress = executor.run(segment)
    executor.close()
    return progress.energy_j or math.nan, sum(LEARNED_FROM)


def sm2(
    made: Training, args: argparse.Namespace, alpha: float, seed: int
) -> tuple[tuple[float, int], str]:
    """Return joules and images of a whole search, and its survivors."""
    LEARNED_FROM.clear()
    sizes = tuple(8 * (place + 1) for place in range(args.configurations))
    if args.configurations <= 8:
        sizes = tuple(8 * 2**place for place in range(args.configurations))
    problem = Problem(
        space=Space(
            {
                "batch_size": Choice(values=sizes),
                "learning_rate": Real(low=1e-3, high=1.0, log=True),
            }
        ),
        quality=QUALITY,
        limits=Limits(epochs=args.epochs),
        rate="learning_rate",
        seed=seed,
    )
    strategy = Sm2(
        problem, configurations=args.configurations, rates=args.rates, alpha=alpha,
        patience=STOPPING.patience,
    )  # fmt: skip
    executor = TorchExecutor(made, QUALITY, error=math.inf)
    energy_j, halvings = 0.0, 0
    while (segment := strategy.ask()) is not None:
        progress = executor.run(segment)
        energy_j += progress.energy_j or 0.0
        strategy.tell(segment, progress)
        halvings = strategy.halvings
    executor.close()
    best = strategy.best()
    left = (
        "none was left" if best is None else f"batch size {best.parameters['batch_size']} is left"
    )
    return (energy_j, sum(LEARNED_FROM)), f"{left} after {halvings} halvings"


if __name__ == "__main__":
    main()
