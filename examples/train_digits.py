"""Train a small network on handwritten digits and print what every epoch costs.

    python examples/train_digits.py

Needs PyTorch and scikit-learn.
"""

import sys

from wattloop.core.units import format_duration, format_energy, format_power
from wattloop.integrations.records import EpochRecord
from wattloop.integrations.torch_loop import EnergyMeter

EPOCHS = 5


def main() -> int:
    try:
        import torch
        from sklearn.datasets import load_digits
    except ImportError as error:
        print(f"{error}; run 'pip install torch scikit-learn'", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32, device=device)
    y = torch.tensor(labels, device=device)
    train = torch.utils.data.TensorDataset(x[:1500], y[:1500])
    loader = torch.utils.data.DataLoader(train, batch_size=32, shuffle=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 2048),
        torch.nn.ReLU(),
        torch.nn.Linear(2048, 1024),
        torch.nn.ReLU(),
        torch.nn.Linear(1024, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    with EnergyMeter("digits") as meter:
        for _ in range(EPOCHS):
            with meter.epoch():
                for batch, target in loader:
                    with meter.step() as step:
                        optimizer.zero_grad()
                        loss = torch.nn.functional.cross_entropy(model(batch), target)
                        loss.backward()
                        optimizer.step()
                        step.loss = loss
                with torch.no_grad():
                    right = model(x[1500:]).argmax(1) == y[1500:]
                meter.log(accuracy=right.float().mean())
            if meter.last_epoch is not None:
                print(line(meter.last_epoch))
    if meter.run is not None:
        print(meter.run.summary)
    return 0


def line(epoch: EpochRecord) -> str:
    accuracy = f"accuracy {100 * epoch.metrics['accuracy']:.1f} %"
    time = format_duration(epoch.duration_s)
    if epoch.energy_j is None or epoch.power_w is None:
        return f"epoch {epoch.index}: {accuracy}, {time}, no sensor ('wattloop devices' says why)"
    energy = f"{format_energy(epoch.energy_j)} ±{format_energy(epoch.uncertainty_j)}"
    return f"epoch {epoch.index}: {accuracy}, {time}, {energy}, {format_power(epoch.power_w)}"


if __name__ == "__main__":
    sys.exit(main())
