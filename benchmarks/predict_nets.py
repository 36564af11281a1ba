"""Plain torch networks of the H200 steps: torchvision's CNNs and ViT, an LSTM, a language model.

Written here because torchvision need not be installed where a step is only predicted; parameter
for parameter the ones torchvision builds.
"""

from typing import Any

import torch
from torch import nn

__all__ = [
    "HouseholdLstm",
    "TransformerLm",
    "Vit",
    "mlp_4096x6",
    "resnet18",
    "resnet50",
    "vgg16",
]

Tensor = Any


def resnet18(classes: int) -> nn.Module:
    """ResNet-18, with the 7x7 stem whatever the size of the images."""
    return Resnet(BasicBlock, (2, 2, 2, 2), classes)


def resnet50(classes: int) -> nn.Module:
    """ResNet-50 (v1.5: the stride is in the 3x3 convolution)."""
    return Resnet(Bottleneck, (3, 4, 6, 3), classes)


def vgg16(classes: int) -> nn.Module:
    """VGG-16 without batch norm."""
    layers: list[nn.Module] = []
    width = 3
    for depth, channels in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(depth):
            layers += [nn.Conv2d(width, channels, 3, padding=1), nn.ReLU(inplace=True)]
            width = channels
        layers.append(nn.MaxPool2d(2, 2))
    head = (
        nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(4096, classes),
    )  # fmt: skip
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *head)


def mlp_4096x6() -> nn.Module:
    """Six layers of 4096 with ReLU, ten outputs."""
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(4096, 10))


class HouseholdLstm(nn.Module):
    """Two layers of 256 over a sequence of 7 features; one number from the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(7, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class TransformerLm(nn.Module):
    """Six encoder layers of width 512 between an embedding and an untied output (WikiText-2)."""

    def __init__(self, vocabulary: int = 33_278, width: int = 512) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 8, 2048, batch_first=True)
        # nested tensors are for inference with padding
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)))


class Resnet(nn.Module):
    """Stem, four stages of blocks, mean, linear."""

    def __init__(self, block: type, depths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        stages = []
        width = 64
        for stage, depth in enumerate(depths):
            blocks = []
            for index in range(depth):
                stride = 2 if stage and not index else 1
                blocks.append(block(width, 64 << stage, stride))
                width = (64 << stage) * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in self.stages:
            x = stage(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, width: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = shortcut(width, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, width: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(width, 4 * planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


def shortcut(width: int, out: int, stride: int) -> nn.Module | None:
    if stride == 1 and width == out:
        return None
    return nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class Vit(nn.Module):
    """ViT-B/16 at 224 x 224."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, 768, 16, 16)
        self.class_token = nn.Parameter(torch.zeros(1, 1, 768))
        self.pos_embedding = nn.Parameter(torch.zeros(1, 197, 768))
        self.layers = nn.Sequential(*(VitBlock() for _ in range(12)))
        self.ln = nn.LayerNorm(768, eps=1e-6)
        self.head = nn.Linear(768, classes)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        x = self.conv_proj(x).reshape(n, 768, 196).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(n, -1, -1), x], dim=1)
        x = self.ln(self.layers(x + self.pos_embedding))
        return self.head(x[:, 0])


class VitBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(768, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(768, 12, batch_first=True)
        self.ln_2 = nn.LayerNorm(768, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        y, _ = self.self_attention(y, y, y, need_weights=False)
        x = x + y
        return x + self.mlp(self.ln_2(x))
