"""Recurrent networks, an MLP mixer, and networks over tables of the zoo."""

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from wattloop.predict.calibrate.zoo.convnets import ResidualBlock


class RecurrentNetwork(nn.Module):
    """Layers before, recurrent ones, layers after; `over` picks what the latter see.

    Args:
        before, after: layers, called one after the other.
        recurrent: LSTM or GRU.
        over: of time: `all` states, the `last` or their `mean`.
    """

    def __init__(
        self, before: list[nn.Module], recurrent: nn.Module, after: list[nn.Module], over: str
    ) -> None:
        super().__init__()
        self.before, self.after = nn.ModuleList(before), nn.ModuleList(after)
        self.recurrent, self.over = recurrent, over

    def forward(self, x: Any) -> Any:
        for layer in self.before:
            x = layer(x)
        y, _ = self.recurrent(x)
        if self.over != "all":
            y = y[:, -1] if self.over == "last" else y.mean(1)
        for layer in self.after:
            y = layer(y)
        return y


def language_model(words: int, width: int, layers: int) -> nn.Module:
    """As in PyTorch's word-language-model example."""
    drop = nn.Dropout(0.2)
    lstm = nn.LSTM(width, width, layers, dropout=0.2, batch_first=True)
    return RecurrentNetwork(
        [nn.Embedding(words, width), drop], lstm, [drop, nn.Linear(width, words)], "all"
    )


def series_classifier(cell: Any, inputs: int, width: int, layers: int, classes: int) -> nn.Module:
    recurrent = cell(inputs, width, layers, batch_first=True)
    return RecurrentNetwork([], recurrent, [nn.Linear(width, classes)], "last")


def tagger(words: int, width: int, hidden: int, tags: int) -> nn.Module:
    """An LSTM in both directions and a tag for every word, as in arXiv 1508.01991."""
    drop = nn.Dropout(0.3)
    lstm = nn.LSTM(width, hidden, 2, batch_first=True, bidirectional=True)
    return RecurrentNetwork(
        [nn.Embedding(words, width), drop], lstm, [drop, nn.Linear(2 * hidden, tags)], "all"
    )


def text_classifier(words: int, width: int, hidden: int, classes: int) -> nn.Module:
    lstm = nn.LSTM(width, hidden, batch_first=True)
    head = nn.Sequential(nn.Dropout(0.5), nn.Linear(hidden, classes))
    return RecurrentNetwork([nn.Embedding(words, width)], lstm, [head], "mean")


class Speech(nn.Module):
    """Convolutions over time, then recurrent layers, in the manner of arXiv 1512.02595."""

    def __init__(self, bands: int, hidden: int, layers: int, classes: int) -> None:
        super().__init__()
        self.before = nn.Sequential(
            nn.Conv1d(bands, hidden, 11, 2, 5), nn.BatchNorm1d(hidden), nn.Hardtanh(0, 20),
            nn.Conv1d(hidden, hidden, 11, 1, 5), nn.BatchNorm1d(hidden), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.recurrent = nn.GRU(hidden, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Any) -> Any:
        y, _ = self.recurrent(self.before(x.transpose(1, 2)).transpose(1, 2))
        return self.head(y.mean(1))


class _Mixing(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(
            nn.Linear(tokens, width // 2), nn.GELU(), nn.Linear(width // 2, tokens)
        )
        self.within = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Any) -> Any:
        x = x + self.across(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.second(x))


class MlpMixer(nn.Module):
    """As in arXiv 2105.01601, S/16."""

    def __init__(self, side: int = 224, width: int = 512, depth: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        tokens = (side // 16) ** 2
        self.blocks = nn.Sequential(*[_Mixing(tokens, width) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1000))

    def forward(self, x: Any) -> Any:
        y = torch.flatten(self.patches(x), 2).transpose(1, 2)
        return self.head(self.blocks(y).mean(1))


class Recommender(nn.Module):
    """Embeddings of categories and a perceptron over numbers, joined by their products.

    As in arXiv 1906.00091, with small tables.
    """

    def __init__(self, tables: int, rows: int = 20_000, width: int = 64, numbers: int = 13) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for _ in range(tables)])
        self.below = _perceptron(numbers, 512, 256, width)
        pairs = (tables + 1) * tables // 2
        self.above = _perceptron(width + pairs, 1024, 512, 256)
        self.head = nn.Linear(256, 2)
        self.numbers = numbers

    def forward(self, x: Any) -> Any:
        """Return the scores of a click; `x` has numbers first, then indices into the tables."""
        dense = self.below(x[:, : self.numbers])
        places = x[:, self.numbers :].long()
        parts = [table(places[:, number]) for number, table in enumerate(self.tables)]
        joined = torch.stack([dense, *parts], dim=1)
        products = torch.bmm(joined, joined.transpose(1, 2))
        row, column = torch.tril_indices(joined.shape[1], joined.shape[1], -1, device=x.device)
        return self.head(self.above(torch.cat((dense, products[:, row, column]), dim=1)))


def tabular_resnet(columns: int, width: int = 512, blocks: int = 8, classes: int = 10) -> nn.Module:
    """As in arXiv 2106.11959."""
    layers: list[nn.Module] = [nn.Linear(columns, width)]
    for _ in range(blocks):
        body = nn.Sequential(
            nn.BatchNorm1d(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(2 * width, width), nn.Dropout(0.1),
        )  # fmt: skip
        layers.append(ResidualBlock(body))
    return nn.Sequential(*layers, nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, classes))


def _perceptron(*widths: int) -> nn.Sequential:
    pairs = pairwise(widths)
    return nn.Sequential(*[m for a, b in pairs for m in (nn.Linear(a, b), nn.ReLU())])
