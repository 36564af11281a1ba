"""Networks of the collection of `collect_steps`, which the calibration's zoo does not have.

subject("swinv2_tiny@256")      as `wattloop.predict.calibrate.zoo.subject`, of either
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from predict_zoo import hugging_face
from wattloop.predict.calibrate import zoo
from wattloop.predict.calibrate.zoo import sequences
from wattloop.predict.calibrate.zoo.subject import HuggingFace, Inputs, Subject

__all__ = ["LATER", "subject"]

Tensor = Any
AS_MEASURED = "sdpa_of_5_17"
"""Transformers' name of attention as `_bias_as_measured` registers it."""


def subject(name: str) -> Subject:
    """Build the model of a name such as `swinv2_tiny@256`, on torch's default device."""
    kind, _, size = name.partition("@")
    if kind not in LATER:
        found = zoo.subject(name)
        if kind.startswith("t5_"):
            _bias_as_measured(found.model.net)
        return found
    model, inputs = LATER[kind](int(size))
    return Subject(name, model, inputs)


def _bias_as_measured(net: Any) -> None:
    """Hand T5's bias to attention as Transformers 5.17 did, with which its steps were measured.

    There it is a view whose keys are not next to each other, which no fused kernel reads; later
    versions make it contiguous, and attention is fused.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
        position_bias: Tensor | None = None, **more: Any,
    ) -> Any:  # fmt: skip
        if position_bias is not None and mask is None:  # its steps have no masks of their own
            mask = position_bias
            if module.is_causal:
                size = position_bias.shape[-2:]
                before, at = (torch.arange(places, device=key.device) for places in size[::-1])
                seen = (at[:, None] >= before[None]).view(1, 1, *size)
                mask = torch.where(seen, position_bias, torch.finfo(key.dtype).min)
        return sdpa_attention_forward(module, query, key, value, mask, **more)

    AttentionInterface.register(AS_MEASURED, attend)
    AttentionMaskInterface.register(AS_MEASURED, sdpa_mask)
    net.set_attn_implementation(AS_MEASURED)


class _Scored(nn.Module):
    """A network with cross entropy of its scores, or the mean square where they are no classes."""

    def __init__(self, net: nn.Module, *, classes: bool = True) -> None:
        super().__init__()
        self.net, self.classes = net, classes

    def forward(self, *inputs: Tensor) -> Tensor:
        *given, target = inputs
        scores = self.net(*given)
        if not self.classes:
            return nn.functional.mse_loss(scores, target)
        if scores.dim() == 3:
            scores, target = scores.flatten(0, 1), target.flatten()
        return nn.functional.cross_entropy(scores, target)


def _draw(*parts: tuple[int, tuple[int, ...]]) -> Inputs:
    """Inputs of a batch: normal numbers where a part's first number is 0, else indices below it."""

    def make(batch: int, device: Any) -> tuple[Any, ...]:
        return tuple(
            torch.randint(below, (batch, *shape), device=device)
            if below
            else torch.randn((batch, *shape), device=device)
            for below, shape in parts
        )

    return make


Made = tuple[nn.Module, Inputs]


def _text(config: str, network: str, words: int, labels: int = 0, **settings: Any) -> Any:
    """A Transformers model of word indices; `labels` classes of a whole input, or each word's."""

    def build(length: int) -> Made:
        target = (labels, ()) if labels else (words, (length,))
        more = {"num_labels": labels} if labels else {}
        net = _hugging_face(config, network, vocab_size=words, **more, **settings)
        return HuggingFace(net, "input_ids"), _draw((words, (length,)), target)

    return build


def _picture(config: str, network: str, **settings: Any) -> Any:
    def build(side: int) -> Made:
        net = _hugging_face(config, network, num_labels=1000, image_size=side, **settings)
        return HuggingFace(net, "pixel_values"), _draw((0, (3, side, side)), (1000, ()))

    return build


def _sound(config: str, network: str, **settings: Any) -> Any:
    def build(samples: int) -> Made:
        net = _hugging_face(config, network, num_labels=12, **settings)
        return HuggingFace(net, "input_values"), _draw((0, (samples,)), (12, ()))

    return build


def _hugging_face(config: str, network: str, **settings: Any) -> nn.Module:
    net: nn.Module = hugging_face(config, network, attention=None, **settings)()
    return net


def _series(cell: Any, inputs: int, width: int, layers: int, both: bool = False) -> Any:
    """Recurrent layers over a series, and a class of its last state."""

    def build(length: int) -> Made:
        recurrent = cell(inputs, width, layers, batch_first=True, bidirectional=both)
        head = nn.Linear(width * (1 + both), 20)
        net = sequences.RecurrentNetwork([], recurrent, [head], "last")
        return _Scored(net), _draw((0, (length, inputs)), (20, ()))

    return build


class Translator(nn.Module):
    """Encoder and decoder of recurrent layers with attention, as in arXiv 1508.04025."""

    def __init__(self, words: int = 16_000, width: int = 512, layers: int = 2) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder = nn.LSTM(width, width, layers, batch_first=True, dropout=0.2)
        self.decoder = nn.LSTM(width, width, layers, batch_first=True, dropout=0.2)
        self.score, self.join = nn.Linear(width, width, bias=False), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, state = self.encoder(self.source(source))
        y, _ = self.decoder(self.target(target), state)
        weights = torch.bmm(self.score(y), memory.transpose(1, 2)).softmax(-1)
        joined = torch.cat((torch.bmm(weights, memory), y), -1)
        return self.head(torch.tanh(self.join(joined)))


class _Attention(nn.Module):
    """Self-attention over the last but one dimension, with a bias for each pair of places."""

    def __init__(self, width: int, heads: int, places: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(heads, places, places))

    def forward(self, x: Tensor) -> Tensor:
        n, places, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q * (width // self.heads) ** -0.5) @ k.transpose(-2, -1) + self.bias
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, places, width)
        return x + self.out(y)


class _MaxVitBlock(nn.Module):
    """A convolution, attention within windows, attention over a grid: arXiv 2204.01697."""

    def __init__(self, before: int, width: int, stride: int, window: int = 7) -> None:
        super().__init__()
        wide = 4 * width
        self.window = window
        self.conv = nn.Sequential(
            nn.BatchNorm2d(before), nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide),
            nn.GELU(), nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide), nn.GELU(),
        )  # fmt: skip
        self.project = nn.Conv2d(wide, width, 1)
        self.pass_by = nn.Identity()
        if stride > 1 or before != width:
            self.pass_by = nn.Sequential(
                nn.AvgPool2d(stride) if stride > 1 else nn.Identity(), nn.Conv2d(before, width, 1)
            )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, wide // 16, 1), nn.SiLU(),
            nn.Conv2d(wide // 16, wide, 1), nn.Sigmoid(),
        )  # fmt: skip
        self.attend = nn.ModuleList(_Attention(width, width // 32, window**2) for _ in range(2))
        self.feed = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width)
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        x = self.pass_by(x) + self.project(y * self.squeeze(y))
        n, c, h, w = x.shape
        p, rows = self.window, h // self.window
        # windows of neighbours, then grids of places that are `rows` apart
        for split, order in (((rows, p, rows, p), (0, 2, 4, 3, 5, 1)),
                             ((p, rows, p, rows), (0, 3, 5, 2, 4, 1))):  # fmt: skip
            part = 0 if order[1] == 2 else 1
            y = x.view(n, c, *split).permute(order).reshape(-1, p * p, c)
            y = self.attend[part](y)
            y = y + self.feed[part](y)
            y = y.view(n, rows, rows, p, p, c)
            back = (0, 5, 1, 3, 2, 4) if part == 0 else (0, 5, 3, 1, 4, 2)
            x = y.permute(back).reshape(n, c, h, w)
        return x


def _maxvit(side: int) -> Made:
    blocks: list[nn.Module] = [
        nn.Conv2d(3, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.GELU(), nn.Conv2d(64, 64, 3, 1, 1)
    ]  # fmt: skip
    before = 64
    for width, depth in ((64, 2), (128, 2), (256, 5), (512, 2)):
        for number in range(depth):
            blocks.append(_MaxVitBlock(before, width, 2 if number == 0 else 1))
            before = width
    net = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    return _Scored(net), _draw((0, (3, side, side)), (1000, ()))


def _vgg13(side: int) -> Made:
    layers: list[nn.Module] = []
    width = 3
    for channels in (64, 128, 256, 512, 512):
        for _ in range(2):
            layers += [nn.Conv2d(width, channels, 3, padding=1), nn.BatchNorm2d(channels)]
            layers.append(nn.ReLU(inplace=True))
            width = channels
        layers.append(nn.MaxPool2d(2))
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * (side // 32) ** 2, 10))
    return _Scored(net), _draw((0, (3, side, side)), (10, ()))


class _Cifar(nn.Module):
    """ResNet-20 for small pictures, as in arXiv 1512.03385, section 4.2."""

    def __init__(self) -> None:
        super().__init__()
        from predict_nets import BasicBlock

        blocks: list[nn.Module] = []
        width = 16
        for planes in (16, 32, 64):
            for number in range(3):
                blocks.append(BasicBlock(width, planes, 2 if planes > 16 and not number else 1))
                width = planes
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16))
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(torch.relu(self.stem(x))).mean((2, 3)))


class _PointNet(nn.Module):
    """Layers over each point, then the largest over all points: arXiv 1612.00593."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, width in ((3, 64), (64, 64), (64, 128), (128, 1024)):
            layers += [nn.Conv1d(before, width, 1), nn.BatchNorm1d(width), nn.ReLU()]
        self.each = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 256),
            nn.Dropout(0.3), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 40),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.each(x).max(2).values)


def _autoencoder(side: int) -> Made:
    def down(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.LeakyReLU(0.2)]

    def up(before: int, after: int) -> list[nn.Module]:
        return [nn.ConvTranspose2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]

    net = nn.Sequential(
        *down(3, 64), *down(64, 128), *down(128, 256), *down(256, 512),
        *up(512, 256), *up(256, 128), *up(128, 64), nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    pictures = (0, (3, side, side))
    return _Scored(net, classes=False), _draw(pictures, pictures)


class _Residual(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return x + self.net(x)


def _edsr(side: int) -> Made:
    """Sixteen blocks of convolutions without norms, then four times the side: arXiv 1707.02921."""

    def block() -> nn.Module:
        return _Residual(
            nn.Sequential(nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1))
        )

    net = nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1), *[block() for _ in range(16)],
        nn.Conv2d(64, 256, 3, 1, 1), nn.PixelShuffle(2),
        nn.Conv2d(64, 256, 3, 1, 1), nn.PixelShuffle(2), nn.Conv2d(64, 3, 3, 1, 1),
    )  # fmt: skip
    return _Scored(net, classes=False), _draw((0, (3, side, side)), (0, (3, 4 * side, 4 * side)))


class _FieldTokens(nn.Module):
    """A token for each column of a table, and an encoder over them: arXiv 2106.11959."""

    def __init__(self, columns: int, width: int = 192) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns, width))
        self.bias = nn.Parameter(torch.zeros(columns, width))
        layer = nn.TransformerEncoderLayer(
            width, 8, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x[..., None] * self.weight + self.bias).mean(1))


class _FactorMachine(nn.Module):
    """Pairs of embeddings next to a perceptron over all of them: arXiv 1703.04247."""

    def __init__(self, fields: int, rows: int = 1_000_000, width: int = 16) -> None:
        super().__init__()
        self.wide, self.deep = nn.Embedding(rows, 1), nn.Embedding(rows, width)
        self.net = nn.Sequential(
            nn.Linear(fields * width, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(),
            nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 2),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        each = self.deep(x)
        pairs = (each.sum(1).pow(2) - each.pow(2).sum(1)).sum(-1, keepdim=True)
        return self.net(each.flatten(1)) + self.wide(x).sum(1) + pairs


def _dlrm(tables: int) -> Made:
    """A recommender with more and wider tables than the zoo's."""

    def make(batch: int, device: Any) -> tuple[Any, ...]:
        x = torch.randn((batch, 13), device=device)
        places = torch.randint(50_000, (batch, tables), device=device).float()
        return torch.cat((x, places), dim=1), torch.randint(2, (batch,), device=device)

    return _Scored(sequences.Recommender(tables, rows=50_000, width=128)), make


LATER: dict[str, Callable[[int], Made]] = {
    "mpnet_base": _text("MPNetConfig", "MPNetForSequenceClassification", 30_527, 3),
    "mobilebert": _text("MobileBertConfig", "MobileBertForSequenceClassification", 30_522, 2),
    "xlnet_base": _text(
        "XLNetConfig", "XLNetForSequenceClassification", 32_000, 2, d_model=768, n_layer=12,
        n_head=12, d_inner=3072,
    ),
    "deberta_small": _text(
        "DebertaV2Config", "DebertaV2ForSequenceClassification", 64_000, 2, hidden_size=768,
        num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072,
        relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm",
        share_att_key=True, pos_att_type="p2c|c2p", max_relative_positions=-1,
        type_vocab_size=0, position_biased_input=False,
    ),
    "gpt_neo_125m": _text(
        "GPTNeoConfig", "GPTNeoForCausalLM", 50_257, hidden_size=768, num_layers=12,
        attention_types=[[["global", "local"], 6]], num_heads=12,
    ),
    "gemma_200m": _text(
        "GemmaConfig", "GemmaForCausalLM", 32_000, hidden_size=768, intermediate_size=6144,
        num_hidden_layers=10, num_attention_heads=6, num_key_value_heads=1, head_dim=128,
    ),
    "bloom_small": _text(
        "BloomConfig", "BloomForCausalLM", 50_000, hidden_size=768, n_layer=12, n_head=12
    ),
    "wav2vec2_base": _sound("Wav2Vec2Config", "Wav2Vec2ForSequenceClassification"),
    "beit_base": _picture("BeitConfig", "BeitForImageClassification"),
    "dinov2_small": _picture(
        "Dinov2Config", "Dinov2ForImageClassification", hidden_size=384, num_attention_heads=6
    ),
    "swinv2_tiny": _picture("Swinv2Config", "Swinv2ForImageClassification", window_size=8),
    "focalnet_tiny": _picture("FocalNetConfig", "FocalNetForImageClassification"),
    "poolformer_s12": _picture("PoolFormerConfig", "PoolFormerForImageClassification"),
    "pvt_v2_b0": _picture("PvtV2Config", "PvtV2ForImageClassification"),
    "levit_128": _picture("LevitConfig", "LevitForImageClassification"),
    "maxvit_small": _maxvit,
    "lstm_stack": _series(nn.LSTM, 64, 512, 4),
    "lstm_long": _series(nn.LSTM, 16, 128, 1),
    "gru_wide": _series(nn.GRU, 256, 1024, 2),
    "bigru": _series(nn.GRU, 96, 256, 3, both=True),
    "translator": lambda length: (
        _Scored(Translator()),
        _draw((16_000, (length,)), (16_000, (length,)), (16_000, (length,))),
    ),
    "vgg13_bn": _vgg13,
    "resnet20_cifar": lambda side: (_Scored(_Cifar()), _draw((0, (3, side, side)), (10, ()))),
    "pointnet": lambda points: (_Scored(_PointNet()), _draw((0, (3, points)), (40, ()))),
    "autoencoder": _autoencoder,
    "edsr": _edsr,
    "ft_transformer": lambda columns: (
        _Scored(_FieldTokens(columns)), _draw((0, (columns,)), (10, ()))
    ),
    "deepfm": lambda fields: (
        _Scored(_FactorMachine(fields)), _draw((1_000_000, (fields,)), (2, ()))
    ),
    "dlrm_wide": _dlrm,
}  # fmt: skip
"""Network -> its module, which returns the loss, and its inputs, of a size."""
