"""Networks over tables: a recommender with many embeddings, and a residual perceptron."""

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from wattloop.predict.calibrate.zoo.blocks import Residual

__all__ = ["Recommender", "tabular_resnet"]


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
        """Scores of a click; `x` has numbers first, then places in the tables."""
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
        layers.append(Residual(body))
    return nn.Sequential(*layers, nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, classes))


def _perceptron(*widths: int) -> nn.Sequential:
    pairs = pairwise(widths)
    return nn.Sequential(*[m for a, b in pairs for m in (nn.Linear(a, b), nn.ReLU())])
