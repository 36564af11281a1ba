"""Transformers from their public configurations, recurrent networks and a mixer."""

from typing import Any

import torch
from torch import nn

__all__ = ["HuggingFace", "MlpMixer", "RecurrentClassifier", "RecurrentLanguageModel", "build_hf"]


class HuggingFace(nn.Module):
    """A transformers model whose call gives its own loss.

    Args:
        net: a model that takes labels.
        first: name of its first input, `input_ids` or `pixel_values`.
    """

    def __init__(self, net: nn.Module, first: str) -> None:
        super().__init__()
        self.net = net
        self.first = first

    def forward(self, x: Any, labels: Any) -> Any:
        """The loss."""
        return self.net(**{self.first: x, "labels": labels}).loss


def build_hf(name: str) -> nn.Module:
    """The model of a short name, with random weights and SDPA attention."""
    import transformers as hf

    def image(kind: Any, config: Any) -> nn.Module:
        return HuggingFace(kind(config), "pixel_values")

    def text(kind: Any, config: Any) -> nn.Module:
        return HuggingFace(kind(config), "input_ids")

    if name == "swin_tiny":
        config = hf.SwinConfig(num_labels=1000)
        return image(hf.SwinForImageClassification, config)
    if name == "deit_small":
        config = hf.ViTConfig(
            hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=1000
        )
        return image(hf.ViTForImageClassification, config)
    if name == "bert_base":
        return text(hf.BertForSequenceClassification, hf.BertConfig(num_labels=2))
    if name == "roberta_base":
        config = hf.RobertaConfig(vocab_size=50265, max_position_embeddings=514)
        return text(hf.RobertaForMaskedLM, config)
    if name == "opt_125m":
        return text(hf.OPTForCausalLM, hf.OPTConfig())
    if name == "t5_small":
        return text(hf.T5ForConditionalGeneration, hf.T5Config(decoder_start_token_id=0))
    if name == "gpt2_medium":
        return text(hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=1024, n_layer=24, n_head=16))
    config = hf.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16,
        num_key_value_heads=8, vocab_size=32000, max_position_embeddings=4096,
    )  # fmt: skip
    return text(hf.LlamaForCausalLM, config)


class RecurrentLanguageModel(nn.Module):
    """Embedding, LSTM and a vocabulary, as the word-language-model example of PyTorch has them."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.drop = nn.Dropout(0.2)
        self.recurrent = nn.LSTM(width, width, layers, dropout=0.2, batch_first=True)
        self.decoder = nn.Linear(width, words)

    def forward(self, x: Any) -> Any:
        """Scores of the next word."""
        y, _ = self.recurrent(self.drop(self.embedding(x)))
        return self.decoder(self.drop(y))


class RecurrentClassifier(nn.Module):
    """A stack of recurrent layers and a linear one on its last state."""

    def __init__(self, cell: Any, inputs: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.recurrent = cell(inputs, width, layers, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Any) -> Any:
        """Scores."""
        y, _ = self.recurrent(x)
        return self.head(y[:, -1])


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
        """Scores."""
        y = torch.flatten(self.patches(x), 2).transpose(1, 2)
        return self.head(self.blocks(y).mean(1))
