"""Subject of a step: a model with its inputs and its loss, ready to train or to trace."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from wattloop.predict.calibrate.zoo import convnets, sequences

# Transformers of the zoo, from their public configurations, with random weights and SDPA
# attention.


class HuggingFace(nn.Module):
    """Transformers model that returns its own loss.

    Args:
        net: a model that takes labels.
        first: name of its first input, `input_ids` or `pixel_values`.
    """

    def __init__(self, net: nn.Module, first: str) -> None:
        super().__init__()
        self.net = net
        self.first = first

    def forward(self, x: Any, labels: Any) -> Any:
        return self.net(**{self.first: x, "labels": labels}).loss


class Configured(NamedTuple):
    """Configuration of a Transformers model.

    Attributes:
        config, network: names of its classes.
        settings: what differs from the configuration's defaults.
        words: size of its vocabulary; 0 where it takes pictures.
        labels: classes of a whole input; 0 where every word has a label.
    """

    config: str
    network: str
    settings: Mapping[str, object] = {}
    words: int = 0
    labels: int = 0

    @property
    def first(self) -> str:
        if self.network.startswith("Whisper"):
            return "input_features"
        return "input_ids" if self.words else "pixel_values"


CONFIGURED: dict[str, Configured] = {
    "swin_tiny": Configured(
        "SwinConfig", "SwinForImageClassification", {"num_labels": 1000}, labels=1000
    ),
    "deit_small": Configured(
        "ViTConfig", "ViTForImageClassification",
        {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536,
         "num_labels": 1000}, labels=1000,
    ),
    "segformer_b0": Configured(
        "SegformerConfig", "SegformerForImageClassification", {"num_labels": 1000}, labels=1000
    ),
    "mobilevit_small": Configured(
        "MobileViTConfig", "MobileViTForImageClassification", {"num_labels": 1000}, labels=1000
    ),
    "bert_base": Configured(
        "BertConfig", "BertForSequenceClassification", {"num_labels": 2}, 30522, 2
    ),
    "electra_small": Configured(
        "ElectraConfig", "ElectraForSequenceClassification", {"num_labels": 4}, 30522, 4
    ),
    "roberta_base": Configured(
        "RobertaConfig", "RobertaForMaskedLM",
        {"vocab_size": 50265, "max_position_embeddings": 514}, 50265,
    ),
    "opt_125m": Configured("OPTConfig", "OPTForCausalLM", {}, 50272),
    "t5_small": Configured(
        "T5Config", "T5ForConditionalGeneration", {"decoder_start_token_id": 0}, 32128
    ),
    "t5_gated": Configured(
        "T5Config", "T5ForConditionalGeneration",
        {"decoder_start_token_id": 0, "d_ff": 1024, "num_layers": 8, "num_heads": 6,
         "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, 32128,
    ),
    "bart_base": Configured(
        "BartConfig", "BartForConditionalGeneration",
        {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072,
         "decoder_ffn_dim": 3072, "encoder_attention_heads": 12, "decoder_attention_heads": 12},
        50265,
    ),
    "whisper_tiny": Configured("WhisperConfig", "WhisperForConditionalGeneration", {}, 51865),
    "gpt2_medium": Configured(
        "GPT2Config", "GPT2LMHeadModel", {"n_embd": 1024, "n_layer": 24, "n_head": 16}, 50257
    ),
    "pythia_160m": Configured(
        "GPTNeoXConfig", "GPTNeoXForCausalLM",
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
         "intermediate_size": 3072, "vocab_size": 50304}, 50304,
    ),
    "qwen2_500m": Configured(
        "Qwen2Config", "Qwen2ForCausalLM",
        {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
         "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
         "tie_word_embeddings": True}, 151936,
    ),
    "llama_300m": Configured(
        "LlamaConfig", "LlamaForCausalLM",
        {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16,
         "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32000,
         "max_position_embeddings": 4096}, 32000,
    ),
}  # fmt: skip
"""Short name -> configuration."""


def build_hf(name: str) -> nn.Module:
    import transformers

    chosen = CONFIGURED[name]
    config = getattr(transformers, chosen.config)(**chosen.settings)
    return HuggingFace(getattr(transformers, chosen.network)(config), chosen.first)


Inputs = Callable[[int, Any], tuple[Any, ...]]
"""Batch size and device -> inputs, labels last."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Model to train.

    Attributes:
        name: `model@size`; the size is the sequence length or the image's side.
        model: a module whose call on all inputs gives the loss.
        inputs: batch size and device -> inputs.
        optimizer: `sgd` with momentum for names that begin with resnet or vgg, else `adamw`.
    """

    name: str
    model: nn.Module
    inputs: Inputs

    @property
    def optimizer(self) -> str:
        """Return the optimizer by the rule of the project's first measurements."""
        return "sgd" if self.name.startswith(("resnet", "vgg")) else "adamw"


class _WithLoss(nn.Module):
    """Cross entropy of a network's scores; each position of a sequence or image counts."""

    def __init__(self, net: nn.Module, *, classes_last: bool = False) -> None:
        super().__init__()
        self.net = net
        self.classes_last = classes_last

    def forward(self, x: Any, target: Any) -> Any:
        scores = self.net(x)
        if self.classes_last:
            scores, target = scores.flatten(0, 1), target.flatten()
        return nn.functional.cross_entropy(scores, target)


def _inputs(
    shape: tuple[int, ...], classes: int, labelled: tuple[int, ...] = (), words: int = 0
) -> Inputs:
    """Return numbers, or indices of `words`, of this shape; labels of a sample have `labelled`."""

    def make(batch: int, device: Any) -> tuple[Any, ...]:
        if words:
            x = torch.randint(words, (batch, *shape), device=device)
        else:
            x = torch.randn((batch, *shape), device=device)
        return x, torch.randint(classes, (batch, *labelled), device=device)

    return make


def _columns(numbers: int, places: int, rows: int, classes: int) -> Inputs:
    """Return a table's numbers, then indices into other tables, as numbers too."""

    def make(batch: int, device: Any) -> tuple[Any, ...]:
        x = torch.randn((batch, numbers), device=device)
        if places:
            x = torch.cat((x, torch.randint(rows, (batch, places), device=device).float()), dim=1)
        return x, torch.randint(classes, (batch,), device=device)

    return make


_CONVNETS: dict[str, Callable[[], nn.Module]] = {
    **{
        maker.__name__: maker
        for maker in (
            convnets.mobilenet_v1, convnets.mobilenet_v2, convnets.efficientnet_b0,
            convnets.shufflenet_v2, convnets.convnext_tiny, convnets.resnet34, convnets.resnet101,
            convnets.resnext50, convnets.regnet_x_400mf, convnets.densenet121, convnets.alexnet,
            convnets.squeezenet, convnets.googlenet, convnets.darknet53, convnets.xception,
        )
    },
    "mixer_s16": sequences.MlpMixer,
    "wide_resnet28_4": convnets.wide_resnet,
}  # fmt: skip
_OTHERS: dict[str, Callable[[int], tuple[nn.Module, Inputs]]] = {
    "unet": lambda side: (
        _WithLoss(convnets.unet(10)), _inputs((3, side, side), 10, (side, side))
    ),
    "lstm_lm": lambda length: (
        _WithLoss(sequences.language_model(33278, 650, 2), classes_last=True),
        _inputs((length,), 33278, (length,), words=33278),
    ),
    "gru": lambda length: (
        _WithLoss(sequences.series_classifier(nn.GRU, 40, 256, 3, 35)), _inputs((length, 40), 35)
    ),
    "lstm_deep": lambda length: (
        _WithLoss(sequences.series_classifier(nn.LSTM, 128, 1024, 3, 100)),
        _inputs((length, 128), 100),
    ),
    "bilstm_tagger": lambda length: (
        _WithLoss(sequences.tagger(20_000, 100, 200, 17), classes_last=True),
        _inputs((length,), 17, (length,), words=20_000),
    ),
    "lstm_text": lambda length: (
        _WithLoss(sequences.text_classifier(25_000, 100, 300, 2)),
        _inputs((length,), 2, words=25_000),
    ),
    "gru_speech": lambda length: (
        _WithLoss(sequences.Speech(80, 512, 4, 500)), _inputs((length, 80), 500)
    ),
    "dlrm": lambda number: (
        _WithLoss(sequences.Recommender(number)), _columns(13, number, 20_000, 2)
    ),
    "tabular_resnet": lambda columns: (
        _WithLoss(sequences.tabular_resnet(columns)), _columns(columns, 0, 1, 10)
    ),
}  # fmt: skip
NAMES = (*_CONVNETS, *CONFIGURED, *_OTHERS)
"""Models of the zoo, without their size."""


def subject(name: str) -> Subject:
    """Build the model of a name such as `mobilenet_v2@224`, on torch's default device.

    Raises:
        KeyError: the zoo has no such model.
    """
    kind, _, size_text = name.partition("@")
    size = int(size_text)
    if kind in _CONVNETS:
        return Subject(name, _WithLoss(_CONVNETS[kind]()), _inputs((3, size, size), 1000))
    if kind in CONFIGURED:
        return Subject(name, build_hf(kind), _configured_inputs(kind, size))
    model, inputs = _OTHERS[kind](size)
    return Subject(name, model, inputs)


def _configured_inputs(kind: str, size: int) -> Inputs:
    chosen = CONFIGURED[kind]
    if chosen.first == "pixel_values":
        return _inputs((3, size, size), chosen.labels)
    if chosen.first == "input_features":  # half a minute of sound, and its transcript
        return _inputs((80, 3000), chosen.words, (size,))
    if chosen.labels:
        return _inputs((size,), chosen.labels, words=chosen.words)
    return _inputs((size,), chosen.words, (size,), words=chosen.words)
