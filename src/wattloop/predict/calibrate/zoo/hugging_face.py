"""Transformers of the zoo, from their public configurations, with random weights and SDPA
attention.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn


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
        """Return the name of the first input."""
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
    """Build the model of a short name."""
    import transformers

    chosen = CONFIGURED[name]
    config = getattr(transformers, chosen.config)(**chosen.settings)
    return HuggingFace(getattr(transformers, chosen.network)(config), chosen.first)
