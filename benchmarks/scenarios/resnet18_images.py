"""ResNet-18 on generated images: ten classes of marks, turned, scaled, moved, among others.

Every class has four marks (smooth random patterns); an image shows one of them in any colour,
turned by up to 40 degrees, scaled and moved, besides a mark that belongs to no class, under noise.
Only the pattern determines the class, so the network has to learn all 40 in all positions. With
eight marks, two others and twice the noise, a rate of 0.1 failed for one seed of two.
"""

from collections.abc import Mapping
from typing import Any

from scenarios.scenario import Scenario
from wattloop.tune.executors.torch.batches import FlexibleBatches
from wattloop.tune.executors.torch.training import Training
from wattloop.tune.search_problem import EarlyStopping

__all__ = ["generated_images", "resnet18", "scenario"]

CLASSES, MARKS, OTHERS = 10, 4, 24
SIDE, MARK_SIDE = 32, 16
NOISE = 0.5
AT_ONCE = 5_000


def scenario(*, quick: bool = False) -> Scenario:
    """Return the scenario for a GPU; `quick` is a small network on few images."""
    images, tests, width = (64, 32, 2) if quick else (50_000, 10_000, 64)
    sizes = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    sizes = (32, 64) if quick else sizes
    return Scenario(
        name="resnet18",
        title="ResNet-18, images",
        metric="accuracy",
        maximize=True,
        batch_sizes=sizes,
        batch_size=128 if not quick else 64,
        rate=0.05,
        low=1e-3,
        high=1.0,
        optimizer="SGD, momentum 0.9, weight decay 5e-4",
        tolerance=0.01,
        stopping=EarlyStopping(patience=3, least_gain=1e-3, most_epochs=2 if quick else 20),
        training=lambda device: _training(device, images, tests, width, sizes[0]),
        facts={"training images": images, "test images": tests, "classes": CLASSES},
    )


def _training(device: Any, images: int, tests: int, width: int, unit: int) -> Training:
    import torch
    from torch.nn import functional

    cuda = device.type == "cuda"
    kind = torch.bfloat16 if cuda else torch.float32
    layout = torch.channels_last if cuda else torch.contiguous_format
    pictures, labels = generated_images(images, 1, device, kind)
    test_pictures, test_labels = generated_images(tests, 2, device, kind)

    def model(parameters: Mapping[str, Any]) -> Any:
        return resnet18(width).to(memory_format=layout)

    def loss(net: Any, batch: Any) -> Any:
        pictures, labels = batch
        return functional.cross_entropy(net(pictures.to(memory_format=layout)), labels)

    def evaluate(net: Any) -> dict[str, float]:
        right = torch.zeros((), device=device)
        for begin in range(0, tests, 1_000):
            part = test_pictures[begin : begin + 1_000].to(memory_format=layout)
            right += (net(part).argmax(1) == test_labels[begin : begin + 1_000]).sum()
        return {"accuracy": right.item() / tests}

    return Training(
        model=model,
        optimizer=lambda params, lr: torch.optim.SGD(
            params, lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True
        ),
        loss=loss,
        data=FlexibleBatches((pictures, labels), unit=unit, device=device, last="drop"),
        evaluate=evaluate,
        bf16=cuda,
    )


def generated_images(count: int, seed: int, device: Any, kind: Any) -> tuple[Any, Any]:
    """Return images (count, 3, 32, 32) and their classes; marks are the same for every seed."""
    import torch

    marks = _marks(device)
    draw = torch.Generator(device=device).manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=draw, device=device)
    parts = [_drawn(marks, part, draw, device).to(kind) for part in labels.split(AT_ONCE)]
    return torch.cat(parts), labels


def _marks(device: Any) -> Any:
    """Return smooth patterns of mean 0 within a disc: those of classes, then the others."""
    import torch
    from torch.nn import functional

    draw = torch.Generator().manual_seed(0)  # drawn on the host: the same on every device
    rough = torch.randn(CLASSES * MARKS + OTHERS, 1, 5, 5, generator=draw)
    smooth = functional.interpolate(rough, size=MARK_SIDE, mode="bicubic", align_corners=True)
    line = torch.linspace(-1, 1, MARK_SIDE)
    disc = (line[:, None] ** 2 + line**2 < 0.95).float()
    smooth = (smooth - (smooth * disc).sum((2, 3), keepdim=True) / disc.sum()) * disc
    size = (smooth**2).sum((2, 3), keepdim=True) / disc.sum()
    return (smooth / size.sqrt()).to(device)


def _drawn(marks: Any, labels: Any, draw: Any, device: Any) -> Any:
    import torch
    from torch.nn import functional

    count = len(labels)

    def uniform(low: float, high: float, *shape: int) -> Any:
        return low + (high - low) * torch.rand(*shape, generator=draw, device=device)

    def placed(which: Any) -> Any:
        angle, scale = uniform(-0.7, 0.7, count), uniform(1.4, 2.4, count)
        shift = uniform(-0.5, 0.5, count, 2) * scale[:, None]
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1)
        matrix = torch.cat([(turn * scale[:, None]).view(-1, 2, 2), shift[:, :, None]], 2)
        grid = functional.affine_grid(matrix, (count, 1, SIDE, SIDE), align_corners=False)
        shown = functional.grid_sample(marks[which], grid, align_corners=False)
        colour = functional.normalize(
            torch.randn(count, 3, 1, 1, generator=draw, device=device), dim=1
        )
        return shown * colour * 1.7

    own = torch.randint(MARKS, (count,), generator=draw, device=device)
    picture = placed(labels * MARKS + own)
    other = torch.randint(OTHERS, (count,), generator=draw, device=device)
    picture = picture + placed(CLASSES * MARKS + other)
    noise = torch.randn(count, 3, SIDE, SIDE, generator=draw, device=device)
    return picture + NOISE * noise


def resnet18(width: int = 64) -> Any:
    """ResNet-18 for small images: a 3x3 stem and no pooling before the blocks."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, into: int, out: int, stride: int) -> None:
            super().__init__()
            self.one = nn.Conv2d(into, out, 3, stride, 1, bias=False)
            self.norm_one = nn.BatchNorm2d(out)
            self.two = nn.Conv2d(out, out, 3, 1, 1, bias=False)
            self.norm_two = nn.BatchNorm2d(out)
            self.past = nn.Identity()
            if stride != 1 or into != out:
                self.past = nn.Sequential(
                    nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out)
                )

        def forward(self, x: Any) -> Any:
            inner = torch.relu(self.norm_one(self.one(x)))
            return torch.relu(self.norm_two(self.two(inner)) + self.past(x))

    layers: list[Any] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    ]
    into = width
    for stage in range(4):
        out = width * 2**stage
        layers += [Block(into, out, 1 if stage == 0 else 2), Block(out, out, 1)]
        into = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, CLASSES))
