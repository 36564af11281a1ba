"""The rows that the authors of NeuSight measured, and the networks behind them rebuilt.

    for row in read_rows(folder):
        workload = traced(row, read_networks(folder))

The work is known from their table and from the program that measured it (neusight/Tracing/trace.py
of sitar-lab/NeuSight): float32 with TF32 off for products and convolutions, eager attention, no
compilation; inference without gradients, where BERT has a classifier in place of its language
head; training in two timed parts, forward and backward, with the loss computed between them and no
optimizer. Time is the mean of the 5 quickest of 25 passes.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from predict_zoo import hugging_face

__all__ = ["PEERS", "Network", "Row", "read_networks", "read_rows", "traced"]

PEERS = {"NeuSight": "neusight", "roofline": "roofline", "Habitat": "habitat", "Li": "li"}
"""Peers with predictions: name, and the prefix of their columns."""


@dataclass(frozen=True)
class Row:
    """One measured latency.

    Attributes:
        gpu: as the driver prints it, with underscores.
        peers: seconds predicted by others, by name.
    """

    gpu: str
    network: str
    training: bool
    length: int
    batch: int
    seconds: float
    peers: Mapping[str, float]

    @property
    def name(self) -> str:
        """Return network, length, batch and task."""
        mode = "forward and backward" if self.training else "forward"
        return f"{self.network} {self.length} x {self.batch}, {mode}"

    @property
    def work(self) -> tuple[str, bool, int, int]:
        """Return the work, independent of the GPU."""
        return (self.network, self.training, self.length, self.batch)


@dataclass(frozen=True)
class Network:
    """Sizes of a network, as `models.csv` gives them."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    inner: int
    vocabulary: int
    positions: int
    activation: str


def read_rows(folder: Path) -> list[Row]:
    """Read rows of `e2e.csv` without a flag, not compiled, on one GPU in float32."""
    with (folder / "e2e.csv").open(newline="") as file:
        return [
            Row(
                gpu=line["gpu"],
                network=line["model"],
                training=line["mode"] == "train",
                length=int(line["seq_len"]),
                batch=int(line["batch"]),
                seconds=float(line["measured_ms"]) / 1e3,
                peers={
                    name: float(line[f"{column}_pred_ms"]) / 1e3
                    for name, column in PEERS.items()
                    if line[f"{column}_pred_ms"]
                },
            )
            for line in csv.DictReader(file)
            if not line["flag"]
            and line["fusion"] == "0"
            and line.get("parallel") in (None, "", "none")
            and line.get("precision") in (None, "", "fp32")
        ]


def read_networks(folder: Path) -> dict[str, Network]:
    """Read networks of `models.csv` by name; mixtures of experts are left out."""
    with (folder / "models.csv").open(newline="") as file:
        return {
            line["model"]: Network(
                architecture=line["arch"],
                layers=int(line["layers"]),
                hidden=int(line["hidden"]),
                heads=int(line["heads"]),
                inner=int(line["ffn"]),
                vocabulary=int(line["vocab"]),
                positions=int(float(line["max_pos"])),
                activation=line["act"],
            )
            for line in csv.DictReader(file)
            if line["max_pos"]
        }


def traced(row: Row, networks: Mapping[str, Network]) -> Any:
    """Trace the workload of a row: forward, or forward and backward, without loss and optimizer."""
    import torch

    from wattloop.predict import trace
    from wattloop.predict.workload import Kind, Phase

    network = networks[row.network]
    shape = (row.batch, row.length)
    inputs = {"input_ids": torch.empty(shape, dtype=torch.int64, device="meta")}
    if network.architecture.startswith("Bert"):
        # Their release of transformers always adds the mask of a padded batch.
        inputs["attention_mask"] = torch.empty(row.batch, 1, 1, row.length, device="meta")
    else:
        inputs["use_cache"] = False
    workload = trace(
        _module(network, training=row.training),
        inputs,
        loss=_loss if row.training else None,
        precision="fp32",
        optimizer=None,
        training=row.training,
        name=row.name,
    )
    timed = [
        op
        for op in workload.operations
        if op.module or op.phase is not Phase.FORWARD or op.kind not in (Kind.LOSS, Kind.SOFTMAX)
    ]
    return replace(workload, operations=_alike_together(timed))


def _alike_together(operations: Sequence[Any]) -> tuple[Any, ...]:
    """Merge the same work of all layers into one operation with a count: it is fitted many
    times.
    """
    counts: dict[str, int] = {}
    firsts = {}
    for op in operations:
        bare = replace(op, module="", count=1)
        key = repr(bare)
        firsts.setdefault(key, bare)
        counts[key] = counts.get(key, 0) + op.count
    return tuple(replace(op, count=counts[key]) for key, op in firsts.items())


def _module(network: Network, *, training: bool) -> Callable[[], Any]:
    if network.architecture.startswith("GPT2"):
        return hugging_face(
            "GPT2Config",
            "GPT2LMHeadModel",
            "eager",
            n_embd=network.hidden,
            n_layer=network.layers,
            n_head=network.heads,
            n_inner=network.inner,
            n_positions=network.positions,
            vocab_size=network.vocabulary,
            activation_function=network.activation,
        )
    sizes = {
        "hidden_size": network.hidden,
        "num_hidden_layers": network.layers,
        "num_attention_heads": network.heads,
        "max_position_embeddings": network.positions,
        "vocab_size": network.vocabulary,
    }
    if network.architecture.startswith("OPT"):
        sizes |= {"ffn_dim": network.inner, "word_embed_proj_dim": network.hidden}
        act = {"activation_function": network.activation}
        return hugging_face("OPTConfig", "OPTForCausalLM", "eager", **sizes, **act)
    head = "BertForPreTraining" if training else "BertForSequenceClassification"
    sizes["intermediate_size"] = network.inner
    return hugging_face("BertConfig", head, "eager", **sizes, hidden_act=network.activation)


def _loss(output: Any) -> Any:
    import torch

    logits = getattr(output, "prediction_logits", None)
    logits = output.logits if logits is None else logits
    targets = torch.zeros(logits.shape[:-1], dtype=torch.int64)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
