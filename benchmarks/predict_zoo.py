"""The twelve networks of the H200 steps, rebuilt without downloads, and their measured rows.

    for row in rows(path):
        entry = ZOO[row.model]
        model, inputs = entry.factory(), entry.inputs(row.batch)

Each entry has exactly the parameters that were measured. Facts outside the table follow from its
memory and times; remaining guesses are in `guessed`.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ZOO", "Entry", "Row", "hugging_face", "row_of", "rows", "tokens"]

Inputs = tuple[Any, ...] | dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One network of the table.

    Attributes:
        group: the network without its input size; the group of leave-one-model-out.
        family: `transformer`, `convolutional`, `depthwise` or `other`.
        parameters: as measured.
        factory: builds the module.
        inputs: arguments of the module for one batch, in order or by name.
        loss: of the module's output, as `predict.trace` takes it; None when it has its own.
        guessed: facts that neither memory nor time determines.
    """

    group: str
    family: str
    parameters: int
    factory: Callable[[], Any]
    inputs: Callable[[int], Inputs]
    loss: str | None = None
    guessed: str = ""


@dataclass(frozen=True)
class Row:
    """One measured training step."""

    model: str
    batch: int
    precision: str
    optimizer: str
    step_s: float
    power_w: float
    energy_j: float
    peak_bytes: float
    clock_mhz: float
    parameters: int


def rows(path: Path) -> Iterator[Row]:
    """Read the measured steps of a file of JSON lines."""
    for line in path.read_text().splitlines():
        yield row_of(json.loads(line))


def row_of(raw: Mapping[str, Any]) -> Row:
    """Return a row from the columns of the table."""
    return Row(
        raw["model"], raw["batch"], raw["precision"], raw["optimizer"], raw["step_s"],
        raw["avg_power_w"], raw["energy_j_per_step"], raw["peak_mem_gib"] * 2**30,
        raw["sm_clock_mhz"], raw["params"],
    )  # fmt: skip


def _net(name: str, *arguments: object) -> Callable[[], Any]:
    """Return a plain torch network; torch is loaded when it is built."""

    def build() -> Any:
        import predict_nets

        return getattr(predict_nets, name)(*arguments)

    return build


def hugging_face(
    config: str, network: str, attention: str = "sdpa", **settings: object
) -> Callable[[], Any]:
    """A network of transformers with random weights, attention as `attn_implementation` says."""

    def build() -> Any:
        with _without_this_folder():
            import transformers

            make_config, make = getattr(transformers, config), getattr(transformers, network)
        return make(make_config(**settings, attn_implementation=attention))

    return build


@contextmanager
def _without_this_folder() -> Iterator[None]:
    """Remove this folder from the path: transformers would take its kernels.py for a package."""
    here = str(Path(__file__).resolve().parent)
    before = list(sys.path)
    sys.path[:] = [p for p in before if str(Path(p or ".").resolve()) != here]
    try:
        yield
    finally:
        sys.path[:] = before


def _floats(*shape: int) -> Callable[[int], Inputs]:
    def make(batch: int) -> Inputs:
        import torch

        return (torch.zeros(batch, *shape),)

    return make


def tokens(length: int, labels: str = "") -> Callable[[int], Inputs]:
    """Return token ids; with `labels` `token` or `sequence` also the targets of Hugging Face's
    loss.
    """

    def make(batch: int) -> Inputs:
        import torch

        ids = torch.zeros(batch, length, dtype=torch.long)
        if not labels:
            return (ids,)
        return {"input_ids": ids, "labels": ids if labels == "token" else ids[:, 0]}

    return make


_TINYLLAMA = {
    "vocab_size": 32_000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 2048,
}  # fmt: skip
_ALBERT = {
    "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_labels": 2,
    "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.1,
}  # fmt: skip

ZOO: dict[str, Entry] = {
    "albert_base_v2@256": Entry(
        "albert", "transformer", 11_685_122,
        hugging_face("AlbertConfig", "AlbertForSequenceClassification", **_ALBERT),
        tokens(256, labels="sequence"),
    ),
    "distilbert_base@256": Entry(
        "distilbert", "transformer", 66_955_010,
        hugging_face("DistilBertConfig", "DistilBertForSequenceClassification", num_labels=2),
        tokens(256, labels="sequence"), guessed="dropout as in its configuration",
    ),
    "resnet50@224": Entry(
        "resnet50", "convolutional", 25_557_032, _net("resnet50", 1000), _floats(3, 224, 224),
        "cross_entropy",
    ),
    "resnet50@32": Entry(
        "resnet50", "convolutional", 23_528_522, _net("resnet50", 10), _floats(3, 32, 32),
        "cross_entropy",
    ),
    "vgg16@224": Entry(
        "vgg16", "convolutional", 138_357_544, _net("vgg16", 1000), _floats(3, 224, 224),
        "cross_entropy",
    ),
    "vit_b_16@224": Entry(
        "vit", "transformer", 86_567_656, _net("Vit"), _floats(3, 224, 224), "cross_entropy"
    ),
    "tinyllama_1b@512": Entry(
        "tinyllama", "transformer", 1_100_048_384,
        hugging_face("LlamaConfig", "LlamaForCausalLM", **_TINYLLAMA),
        tokens(512, labels="token"),
    ),
    "resnet18@32": Entry(
        "resnet18", "convolutional", 11_181_642, _net("resnet18", 10), _floats(3, 32, 32),
        "cross_entropy",
    ),
    "lstm_household@60": Entry(
        "lstm", "other", 797_953, _net("HouseholdLstm"), _floats(60, 7), "mse"
    ),
    "transformer_lm@128": Entry(
        "transformer_lm", "transformer", 53_024_254, _net("TransformerLm"),
        tokens(128), "cross_entropy", guessed="8 heads, ReLU, norm after the sum",
    ),
    "gpt2@1024": Entry(
        "gpt2", "transformer", 124_439_808, hugging_face("GPT2Config", "GPT2LMHeadModel"),
        tokens(1024, labels="token"),
    ),
    "mlp_4096x6": Entry(
        "mlp", "other", 100_728_842, _net("mlp_4096x6"), _floats(4096), "cross_entropy"
    ),
}  # fmt: skip
