"""Small models to trace."""

from collections import Counter
from typing import Any

import torch
from torch import nn

from wattloop.predict.workload import Kind, Workload


class Block(nn.Module):
    """A transformer block with attention through SDPA."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        split = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*split.unbind(0), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class Stack(nn.Module):
    """Blocks one after the other, which may be recomputed in the backward pass."""

    def __init__(self, depth: int, checkpoint: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(32, 50, bias=False)
        self.checkpoint = checkpoint

    def forward(self, ids: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        x = self.embed(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoint else layer(x)
        return self.head(x)


def cnn(groups: int = 8) -> nn.Module:
    """Return convolutions with and without bias, norm, pool, a depthwise one."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=groups),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )


def ids(batch: int = 2, length: int = 16) -> Any:
    """Return token numbers without values."""
    return torch.empty(batch, length, dtype=torch.long, device="meta")


def images(batch: int = 4, side: int = 16) -> Any:
    """Return pictures without values."""
    return torch.empty(batch, 3, side, side, device="meta")


def counted(workload: Workload) -> Counter[Any]:
    """Count operations by kind, in any module."""
    found: Counter[Any] = Counter()
    for op in workload.operations:
        found[op.phase, op.op, op.dtype, op.inputs, op.outputs, op.dims, op.flops] += op.count
    return found


def kernels(workload: Workload, phase: str) -> list[str]:
    """Return the names of operations that launch kernels, in order, with the module."""
    return [
        f"{op.module}:{op.op.removeprefix('aten.')}"
        for op in workload.operations
        if op.phase == phase and op.kind is not Kind.VIEW
    ]
