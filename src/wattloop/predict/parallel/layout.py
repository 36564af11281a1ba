"""Layouts: how GPUs divide a model, its batch and its optimizer, and the links between them."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu
from wattloop.predict.communication import LINK_EFFICIENCY, PCIE_EFFICIENCY

if TYPE_CHECKING:
    from wattloop.predict.serving import DecoderShape

KEYS = "dp, fsdp, hsdp, zero, tp, pp, cp, sp, ep, interleave"
EXAMPLE = "such as fsdp=8 or tp=4,pp=2,dp=16"


@dataclass(frozen=True, slots=True)
class Layout:
    """Division of a training over GPUs.

    Neighbouring GPUs share layers (tensor parallel), then sequences (context), then the batch
    (data); stages of the pipeline are farthest apart. Experts are divided over GPUs of the same
    stage, whatever else these share.

    Attributes:
        dp: groups that work on different sequences.
        tp, pp, cp, ep: GPUs that share a layer, stages of the pipeline, GPUs that share a
            sequence, GPUs over which experts are divided.
        zero: what data parallel groups divide: 0 nothing, 1 the optimizer's state, 2 gradients as
            well, 3 weights as well (fully sharded).
        shard: GPUs of a group that divides; 0 is all that have the same weights. Fewer are hybrid
            sharding: others hold copies.
        sequence_parallel: tensor parallel groups divide norms and residuals as well.
        chunks: parts of a stage in the interleaved schedule; 1 is plain 1F1B.
        flat: weights are gathered layer by layer, as FSDP does, not one by one as ZeRO 3 does.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 0
    shard: int = 0
    sequence_parallel: bool = False
    chunks: int = 1
    flat: bool = True

    @property
    def gpus(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def replicas(self) -> int:
        """Return the GPUs with the same weights, which divide or copy them."""
        return self.dp * self.cp

    @property
    def shards(self) -> int:
        """Return the GPUs over which sharded state is divided."""
        return (self.shard or self.replicas) if self.zero else 1

    @property
    def expert_replicas(self) -> int:
        """Return the GPUs with the same experts."""
        if self.ep == 1:
            return self.replicas
        return max(self.replicas * self.tp // self.ep, 1)

    def __str__(self) -> str:
        named = []
        sharded = self.zero == 3
        fully = sharded and self.flat
        if fully and self.shard and self.shard < self.replicas:
            named.append(f"fsdp={self.shard},dp={self.replicas // self.shard // self.cp}")
        elif self.dp > 1 or self.gpus == 1:
            named.append(f"{'fsdp' if fully else 'dp'}={self.dp}")
        if 0 < self.zero < 3 or (sharded and not self.flat):
            named.append(f"zero={self.zero}")
        named += [
            f"{name}={value}"
            for name, value in (("tp", self.tp), ("pp", self.pp), ("cp", self.cp), ("ep", self.ep))
            if value > 1
        ]
        if self.sequence_parallel:
            named.append("sp")
        if self.chunks > 1:
            named.append(f"interleave={self.chunks}")
        return ",".join(named)

    @classmethod
    def parse(cls, text: str, gpus: int | None = None) -> "Layout":
        """Read `tp=4,pp=2,dp=16`; data parallelism takes the rest of `gpus` where it is not given.

        `dp` and `fsdp` without a size take the rest as well.

        Raises:
            ConfigError: an unknown key, a value that is not a size, or GPUs left over.
        """
        given = dict(_pairs_of(text))
        if given.get("dp") == "all":
            del given["dp"]
        sizes = {key: _size(text, key, given.pop(key)) for key in ("tp", "pp", "cp", "ep")
                 if key in given}  # fmt: skip
        zero = _size(text, "zero", given.pop("zero", "0"), least=0)
        if zero > 3:
            raise ConfigError(f"parallel {text}: zero is 0 (copies) to 3 (all divided)")
        chunks = _size(text, "interleave", given.pop("interleave", "1"))
        sequence_parallel = _flag(text, given.pop("sp", "0"))
        rest = math.prod(sizes.get(key, 1) for key in ("tp", "pp", "cp"))
        shard, copies, flat = 0, None, zero < 3 or "fsdp" in given or "hsdp" in given
        if "hsdp" in given:
            shard, copies = _hybrid(text, given.pop("hsdp"))
            zero = 3
        if "fsdp" in given:
            whole, zero = given.pop("fsdp"), 3
            shard = 0 if whole == "all" else _size(text, "fsdp", whole)
        if "dp" in given:
            copies = _size(text, "dp", given.pop("dp"))
        if given:
            raise ConfigError(
                f"parallel {text}: {next(iter(given))} is not known; use {KEYS}, {EXAMPLE}"
            )
        if gpus is not None and gpus % rest:
            raise ConfigError(
                f"parallel {text}: tp x pp x cp = {rest} does not divide {gpus} GPUs; "
                f"{_counts(rest)} would work"
            )
        if shard and copies is None:
            copies = 1 if gpus is None else max(gpus // rest // shard, 1)
        if copies is None:
            copies = 1 if gpus is None else gpus // rest
        dp = copies * (shard or 1)
        layout = cls(
            dp=dp,
            **sizes,
            zero=zero,
            # A fully sharded group is the whole of the data parallel one unless there are copies.
            shard=shard * sizes.get("cp", 1) if shard and copies > 1 else 0,
            sequence_parallel=sequence_parallel,
            chunks=chunks,
            flat=flat,
        )
        if gpus is not None and layout.gpus != gpus:
            raise ConfigError(
                f"parallel {text}: is for {layout.gpus} GPUs, and gpus is {gpus}; leave out dp, or "
                f"write dp={gpus // rest // (shard or 1) or 1}"
            )
        return layout


def _pairs_of(text: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, re.split(r"[,\s]+", text.strip())):
        key, _, value = part.partition("=")
        yield key.lower(), value or ("all" if key.lower() in ("dp", "fsdp") else "1")


def _size(text: str, key: str, value: str, least: int = 1) -> int:
    if not value.isdecimal() or int(value) < least:
        raise ConfigError(f"parallel {text}: {key}={value} is not a whole number from {least} on")
    return int(value)


def _flag(text: str, value: str) -> bool:
    if value not in ("0", "1"):
        raise ConfigError(f"parallel {text}: sp is on (sp) or left out; it divides over tp")
    return value == "1"


def _hybrid(text: str, value: str) -> tuple[int, int | None]:
    shard, _, copies = value.partition("x")
    return _size(text, "hsdp", shard), _size(text, "hsdp", copies) if copies else None


def _counts(rest: int) -> str:
    return ", ".join(str(rest * n) for n in (1, 2, 4, 8))


def check_layout(layout: Layout, shape: "DecoderShape", *, seq: int, per_replica: int) -> None:
    """Refuse a layout that does not divide the model or the batch.

    Args:
        layout: to check.
        shape: of the model.
        seq: tokens of a sequence.
        per_replica: micro-batches of a step in each data parallel group.

    Raises:
        ConfigError: what does not divide, and what would work.
    """
    tp, pp, cp, ep = layout.tp, layout.pp, layout.cp, layout.ep
    if shape.heads % tp:
        raise ConfigError(
            f"parallel tp={tp}: does not divide the {shape.heads} heads of {shape.name}; choose "
            f"{_divisors(shape.heads, 64)}"
        )
    inner = shape.expert_inner if shape.experts and not shape.dense_layers else shape.inner
    if ep == 1 and inner % tp:
        raise ConfigError(
            f"parallel tp={tp}: does not divide the inner width {inner} of {shape.name}; choose "
            f"{_divisors(math.gcd(inner, shape.heads), 64)}"
        )
    if layout.sequence_parallel and tp == 1:
        raise ConfigError("parallel sp: divides norms over a tensor parallel group; add tp=2")
    places = pp * layout.chunks
    # Embedding and loss may take the place of a layer each, and so may further tokens' layer.
    spares = (0, 2, 3) if shape.dense_layers else (0, 2)
    if shape.layers < places or all((shape.layers + spare) % places for spare in spares):
        whole = [n for n in _all_divisors(shape.layers) if n <= 64]
        raise ConfigError(
            f"parallel pp={pp}{f',interleave={layout.chunks}' if layout.chunks > 1 else ''}: does "
            f"not divide the {shape.layers} layers of {shape.name}; pp x interleave may be "
            f"{', '.join(map(str, whole))}"
        )
    if layout.chunks > 1 and pp == 1:
        raise ConfigError("parallel interleave: needs a pipeline; add pp=2 or leave it out")
    if seq % (2 * cp) and cp > 1:
        raise ConfigError(
            f"parallel cp={cp}: a sequence of {seq} tokens is not divisible into {2 * cp} parts; "
            f"use --seq {max(seq // (2 * cp), 1) * 2 * cp}"
        )
    if ep > 1 and not shape.experts:
        raise ConfigError(f"parallel ep={ep}: {shape.name} has no experts; leave ep out")
    if ep > 1 and (shape.experts % ep or (layout.replicas * tp) % ep):
        size = layout.replicas * tp
        fitting = [n for n in _all_divisors(shape.experts) if size % n == 0]
        raise ConfigError(
            f"parallel ep={ep}: has to divide the {shape.experts} experts of {shape.name} and the "
            f"{size} GPUs of a stage; choose {', '.join(map(str, fitting))}"
        )
    if layout.shard and layout.replicas % layout.shard:
        raise ConfigError(
            f"parallel {layout}: groups of {layout.shard} do not divide the {layout.replicas} GPUs "
            f"with the same weights; choose {_divisors(layout.replicas, layout.replicas)}"
        )
    if per_replica < pp:
        raise ConfigError(
            f"parallel {layout}: the {per_replica} micro-batches of a data parallel group are "
            f"fewer than the {pp} stages of the pipeline; take {pp} or more (--accumulate {pp}, "
            f"or a --global-batch {pp / per_replica:.3g} times as large), or a smaller pp"
        )
    if layout.chunks > 1 and per_replica % pp:
        raise ConfigError(
            f"parallel {layout}: the interleaved schedule needs a multiple of {pp} micro-batches "
            f"in each data parallel group, not {per_replica}; "
            f"{max(round(per_replica / pp), 1) * pp} would work"
        )


def _all_divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _divisors(number: int, most: int) -> str:
    return ", ".join(str(n) for n in _all_divisors(number) if n <= most)


# Links. A ring of GPUs runs at the pace of its slowest hop; groups of the same kind run at the same
# time and share what leaves a node.

LINK_HOP_S, NETWORK_HOP_S = 3.4e-6, 14e-6
"""Latency of a hop of NCCL's ring, Simple protocol, over NVLink and over a network (the constants
of its own tuning model, `src/graph/tuning.cc`).
"""
NETWORK_EFFICIENCY = 0.85
"""Share of the network's bandwidth that NCCL reaches between nodes."""
NODE_NETWORK_BYTES_S = {"volta": 50e9, "ampere": 200e9, "hopper": 400e9, "blackwell": 400e9}
"""A node of 8 by architecture: adapters of 4 x 100, 8 x 200 and 8 x 400 Gbit/s (NVIDIA's DGX)."""


@dataclass(frozen=True, slots=True)
class Links:
    """Links inside and between nodes.

    Attributes:
        gpus_per_node: GPUs that the link inside a node joins.
        link_bytes_s: what one GPU sends to its neighbour in a ring, reached.
        network_bytes_s: what a node sends to another, reached.
        hop_s, network_hop_s: latency of a hop inside a node, and between nodes.
    """

    gpus_per_node: int
    link_bytes_s: float
    network_bytes_s: float
    hop_s: float = LINK_HOP_S
    network_hop_s: float = NETWORK_HOP_S

    @classmethod
    def of(
        cls,
        gpu: Gpu,
        *,
        gpus_per_node: int | None = None,
        network_bytes_s: float | None = None,
        link_bytes_s: float | None = None,
        hop_s: float | None = None,
    ) -> "Links":
        """Return the links of nodes with `gpu`; what is not given is that of the maker's nodes."""
        per_node = gpus_per_node or max(gpu.link_gpus, 8)
        if link_bytes_s is None:
            linked = min(per_node, 8) <= gpu.link_gpus
            link_bytes_s = (
                LINK_EFFICIENCY * gpu.link_bytes_s / 2
                if linked
                else PCIE_EFFICIENCY * gpu.pcie_bytes_s
            )
        if network_bytes_s is None:
            eight = NODE_NETWORK_BYTES_S.get(gpu.architecture, 25e9)
            network_bytes_s = eight * per_node / 8
        links = cls(per_node, link_bytes_s, NETWORK_EFFICIENCY * network_bytes_s)
        if hop_s is None:
            return links
        return replace(links, hop_s=hop_s, network_hop_s=max(hop_s, NETWORK_HOP_S))

    def group(self, size: int, stride: int = 1) -> "Group":
        """Return a group of `size` GPUs, `stride` apart, next to others of its kind."""
        together = max(min(size, self.gpus_per_node // max(stride, 1)), 1)
        nodes = math.ceil(size / together)
        # As many groups leave a node as it has GPUs outside of this one.
        own = self.network_bytes_s / self.gpus_per_node
        bytes_s, latency_s = self.link_bytes_s, (size - 1) * self.hop_s
        if nodes > 1:
            bytes_s = min(bytes_s, together * own)
            latency_s = (size - nodes) * self.hop_s + (nodes - 1) * self.network_hop_s
        return Group(size, together, bytes_s, latency_s, self.link_bytes_s, own)


class Group(NamedTuple):
    """GPUs that communicate with each other.

    Attributes:
        size, together: GPUs in all, and on one node.
        bytes_s, latency_s: of the ring that they form: slowest hop, sum of all hops.
        link_bytes_s, network_bytes_s: of one GPU towards others of its node, and of other nodes.
    """

    size: int
    together: int
    bytes_s: float
    latency_s: float
    link_bytes_s: float
    network_bytes_s: float

    def gather_s(self, size_bytes: float, messages: int = 1) -> float:
        """Return the time of all-gathers or reduce-scatters of `size_bytes` in all."""
        if self.size <= 1:
            return 0.0
        # (N - 1) / N x bytes: each GPU receives the parts of the others
        return messages * self.latency_s + size_bytes * (self.size - 1) / self.size / self.bytes_s

    def reduce_s(self, size_bytes: float) -> float:
        """Return the time of an all-reduce: a reduce-scatter and an all-gather."""
        return 2 * self.gather_s(size_bytes)

    def exchange_s(self, row_bytes: float, choices: int) -> float:
        """Return the time of an all-to-all in which each GPU sends rows to `choices` of all.

        A row crosses the network once per node that needs it, and is handed out there.
        """
        if self.size <= 1:
            return 0.0
        nodes = self.size / self.together
        reached = nodes * (1 - (1 - 1 / nodes) ** choices) if nodes > 1 else 1.0
        outside = row_bytes * reached * (nodes - 1) / nodes / self.network_bytes_s
        inside = row_bytes * choices * (self.together - 1) / self.together / self.link_bytes_s
        return self.latency_s / self.size + max(inside, outside)

    def send_s(self, size_bytes: float) -> float:
        """Return the time in which each GPU sends to the next one of the group."""
        if self.size <= 1:
            return 0.0
        own = self.network_bytes_s if self.size > self.together else self.link_bytes_s
        return self.latency_s / max(self.size - 1, 1) + size_bytes / own
