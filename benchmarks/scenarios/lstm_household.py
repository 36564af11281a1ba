"""An LSTM that forecasts the next hour of a household's power, from a generated series.

The series has what such series have: a daily and a weekly course, seasons, appliances that are
switched on at their hours and run for a while, standby power that wanders, and noise.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scenarios.scenario import Scenario
from wattloop.tune.executors.torch.batches import FlexibleBatches, windows_of
from wattloop.tune.executors.torch.training import Training
from wattloop.tune.search_problem import EarlyStopping

__all__ = ["generated_series", "scenario"]

STEPS_A_DAY = 96
LENGTH, AHEAD = 96, 4


def scenario(*, quick: bool = False) -> Scenario:
    """Return the scenario for a GPU; `quick` is a small network on a short series."""
    days, width = (10, 8) if quick else (1_000, 128)
    sizes = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    sizes = (128, 256) if quick else sizes
    return Scenario(
        name="lstm",
        title="LSTM, household",
        metric="r2",
        maximize=True,
        batch_sizes=sizes,
        batch_size=128 if quick else 256,
        rate=1e-3,
        low=1e-5,
        high=1e-2,
        optimizer="Adam",
        tolerance=0.01,
        stopping=EarlyStopping(patience=4, least_gain=1e-3, most_epochs=2 if quick else 30),
        training=lambda device: _training(device, days, width, sizes[0]),
        facts={"days": days, "steps a day": STEPS_A_DAY, "steps seen": LENGTH},
    )


def _training(device: Any, days: int, width: int, unit: int) -> Training:
    import torch
    from torch import nn
    from torch.nn import functional

    series = torch.from_numpy(generated_series(days))
    split = int(0.8 * len(series))
    mean, deviation = series[:split].mean(0), series[:split].std(0)
    series = ((series - mean) / deviation).to(device)

    def samples(part: Any) -> tuple[Any, Any]:
        """Return windows, and the mean power of the hour after each."""
        seen = windows_of(part[:-AHEAD], LENGTH, device=device)
        after = part[LENGTH:, 0].unfold(0, AHEAD, 1).mean(1)
        return seen, after

    train, test = samples(series[:split]), samples(series[split:])

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(series.shape[1], width, batch_first=True)
            self.head = nn.Linear(width, 1)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][:, -1])[:, 0]

    def loss(net: Any, batch: Any) -> Any:
        seen, after = batch
        return functional.mse_loss(net(seen.contiguous()), after)

    def evaluate(net: Any) -> dict[str, float]:
        told = torch.cat([net(part.contiguous()) for part in test[0].split(4096)])
        left = ((told - test[1]) ** 2).mean() / test[1].var(unbiased=False)
        return {"r2": 1 - left.item()}

    def model(parameters: Mapping[str, Any]) -> Any:
        return Net()

    return Training(
        model=model,
        optimizer=lambda params, lr: torch.optim.Adam(params, lr=lr),
        loss=loss,
        data=FlexibleBatches(train, unit=unit, device=device, last="drop"),
        evaluate=evaluate,
        clip=1.0,
    )


def generated_series(days: int, seed: int = 0) -> Any:
    """Power and the other known columns, every quarter of an hour: (steps, 7) in float32.

    Columns: power (kW), voltage (V), three appliances metered apart (kW), sine and cosine of the
    time of day.
    """
    draw = np.random.default_rng(seed)
    steps = days * STEPS_A_DAY
    step = np.arange(steps)
    hour = step % STEPS_A_DAY / STEPS_A_DAY * 24
    weekend = step // STEPS_A_DAY % 7 >= 5
    season = np.cos(2 * np.pi * step / (365.25 * STEPS_A_DAY))
    # appliance: (power kW, mean duration in steps, starts a day, hours of preference, width)
    appliances = [
        (2.0, 3, 2.0, (7.0, 18.5), 1.5),
        (1.2, 6, 0.8, (10.0, 20.0), 3.0),
        (3.0, 4, 1.2, (6.5, 21.0), 1.0),
        (0.15, 4, 24.0, (12.0,), 12.0),
        (0.9, 10, 0.7, (19.0,), 2.0),
    ]
    loads = []
    for power_kw, mean_steps, starts, hours, width in appliances:
        wish = sum(np.exp(-0.5 * (((hour - h + 12) % 24 - 12) / width) ** 2) for h in hours)
        wish = wish * np.where(weekend, 1.3, 1.0)
        chance = np.clip(wish * starts * days / wish.sum(), 0, 1)
        begins = np.flatnonzero(draw.random(steps) < chance)
        lasting = draw.geometric(1 / mean_steps, len(begins))
        change = np.zeros(steps + 1)
        np.add.at(change, begins, 1.0)
        np.add.at(change, np.minimum(begins + lasting, steps), -1.0)
        loads.append(power_kw * np.minimum(np.cumsum(change[:-1]), 1.0))
    lights = 0.3 * (1 + 0.4 * season) * np.exp(-0.5 * ((hour - 20.5) / 2) ** 2)
    heating = 0.8 * np.maximum(season, 0) * (1 + 0.5 * np.cos(2 * np.pi * (hour - 5) / 24))
    standby = np.zeros(steps)
    kicks = 0.02 * draw.standard_normal(steps)
    for i in range(1, steps):
        standby[i] = 0.98 * standby[i - 1] + kicks[i]
    noise = 0.05 * draw.standard_normal(steps)
    power = 0.25 + sum(loads) + lights + heating + standby + noise
    power = np.maximum(power, 0.05)
    voltage = 240 - 1.5 * power + 0.8 * draw.standard_normal(steps)
    turn = 2 * np.pi * hour / 24
    columns = [power, voltage, *loads[:3], np.sin(turn), np.cos(turn)]
    return np.stack(columns, 1).astype(np.float32)
