"""A Transformer language model of the source text of Python's own standard library.

Words are identifiers, numbers, single signs and the white space that begins a line; the most common
8,191 have numbers of their own, the rest is one word. Every tenth file is held back for the test.

There are two scenarios. One is trained by SGD, which suits the rates of Geißler et al., 0.001 to 1:
its text names no optimizer, but AdamW would be lost at nearly all of them. The other is trained by
AdamW, as most would do it today, with rates that suit that.
"""

import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios.scenario import Scenario
from wattloop.tune.executors.torch.batches import FlexibleBatches
from wattloop.tune.executors.torch.training import Training
from wattloop.tune.search_problem import EarlyStopping

__all__ = ["scenario", "scenario_adamw", "words_of_the_library"]

WORDS = re.compile(r"\n[ \t]*|[A-Za-z_]\w*|\d+|[^\w\s]")


@dataclass(frozen=True, kw_only=True)
class _Optimizer:
    """An optimizer, and the rates that suit it."""

    name: str
    title: str
    said: str
    rate: float
    low: float
    high: float
    make: Callable[[Iterable[Any], float], Any]


def scenario(*, quick: bool = False) -> Scenario:
    """Return the scenario with SGD for a GPU; `quick` is a small network on little text."""

    def make(params: Iterable[Any], lr: float) -> Any:
        import torch

        return torch.optim.SGD(params, lr=lr, momentum=0.9)

    return _scenario(
        _Optimizer(
            name="transformer",
            title="Transformer, source text",
            said="SGD, momentum 0.9, gradients clipped to 1",
            rate=0.1,
            low=1e-3,
            high=1.0,
            make=make,
        ),
        quick=quick,
    )


def scenario_adamw(*, quick: bool = False) -> Scenario:
    """Return the scenario with AdamW for a GPU; `quick` is a small network on little text."""

    def make(params: Iterable[Any], lr: float) -> Any:
        import torch

        return torch.optim.AdamW(params, lr=lr, weight_decay=0.01)

    return _scenario(
        _Optimizer(
            name="transformer-adamw",
            title="Transformer by AdamW",
            said="AdamW, gradients clipped to 1",
            rate=5e-4,
            low=1e-5,
            high=1e-2,
            make=make,
        ),
        quick=quick,
    )


def _scenario(by: _Optimizer, *, quick: bool) -> Scenario:
    most, vocabulary, width, layers, length = (
        (16_000, 256, 16, 1, 16) if quick else (1_500_000, 8_192, 256, 4, 128)
    )
    sizes = (128, 256) if quick else (16, 32, 64, 128, 256, 512, 1024, 2048)
    return Scenario(
        name=by.name,
        title=by.title,
        metric="perplexity",
        maximize=False,
        batch_sizes=sizes,
        batch_size=128 if quick else 32,
        rate=by.rate,
        low=by.low,
        high=by.high,
        optimizer=by.said,
        tolerance=0.3,
        stopping=EarlyStopping(
            patience=4, least_gain=0.02, maximize=False, most_epochs=2 if quick else 30
        ),
        training=lambda device: _training(
            device, by, most, vocabulary, width, layers, length, sizes[0]
        ),
        facts={"words": most, "vocabulary": vocabulary, "words seen": length},
    )


def words_of_the_library(most: int, vocabulary: int) -> tuple[list[int], list[int]]:
    """Return numbers of words for training and for the test, `most` and a tenth of that."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(
        path
        for path in root.rglob("*.py")
        if not {"site-packages", "dist-packages", "test", "tests", "idlelib"} & set(path.parts)
    )
    # Files in an order that has nothing to do with their names: packages are in both parts.
    files.sort(key=lambda path: sum(map(ord, path.name)) * 2_654_435_761 % 2**32)
    train: list[str] = []
    test: list[str] = []
    for number, path in enumerate(files):
        part, limit = (test, most // 10) if number % 10 == 9 else (train, most)
        if len(part) < limit:
            part += WORDS.findall(path.read_text(encoding="utf-8", errors="replace"))
    train, test = train[:most], test[: most // 10]
    common = Counter(train).most_common(vocabulary - 1)
    number_of = {word: number for number, (word, _) in enumerate(common, start=1)}
    return [number_of.get(w, 0) for w in train], [number_of.get(w, 0) for w in test]


def _training(
    device: Any,
    by: _Optimizer,
    most: int,
    vocabulary: int,
    width: int,
    layers: int,
    length: int,
    unit: int,
) -> Training:
    import torch
    from torch import nn
    from torch.nn import functional

    def sequences(words: list[int]) -> Any:
        count = (len(words) - 1) // length
        numbers = torch.tensor(words[: count * length + 1], dtype=torch.int64)
        return numbers.unfold(0, length + 1, length).clone()

    train, test = (sequences(part) for part in words_of_the_library(most, vocabulary))
    test = test.to(device)
    ahead = nn.Transformer.generate_square_subsequent_mask(length, device=device)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(vocabulary, width)
            self.places = nn.Parameter(0.02 * torch.randn(length, width))
            layer = nn.TransformerEncoderLayer(
                width, max(1, width // 64), 4 * width, dropout=0.1, activation="gelu",
                batch_first=True, norm_first=True,
            )  # fmt: skip
            self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.norm = nn.LayerNorm(width)
            nn.init.normal_(self.words.weight, std=0.02)

        def forward(self, x: Any) -> Any:
            inner = self.layers(self.words(x) + self.places, mask=ahead, is_causal=True)
            return functional.linear(self.norm(inner), self.words.weight)

    def loss(net: Any, batch: Any) -> Any:
        told = net(batch[:, :-1])
        return functional.cross_entropy(told.flatten(0, 1), batch[:, 1:].flatten())

    def evaluate(net: Any) -> dict[str, float]:
        total = torch.zeros((), device=device)
        for part in test.split(256):
            total += loss(net, part).float() * len(part)
        return {"perplexity": (total / len(test)).exp().item()}

    def model(parameters: Mapping[str, Any]) -> Any:
        return Net()

    return Training(
        model=model,
        optimizer=by.make,
        loss=loss,
        data=FlexibleBatches(train, unit=unit, device=device, last="drop"),
        evaluate=evaluate,
        bf16=device.type == "cuda",
        clip=1.0,
    )
