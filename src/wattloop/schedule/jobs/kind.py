"""Jobs alike in everything but size, owner and time."""

from dataclasses import dataclass

__all__ = ["JobKind"]


@dataclass(frozen=True, slots=True)
class JobKind:
    """What a job trains and how it may run: the key of all that an oracle answers.

    A rigid job is one with a single choice everywhere.

    Attributes:
        model: name the oracle knows: `hf:google/vit-base-patch16-224`, a row of a table, ...
        precision: `fp32`, `tf32`, `bf16`, `fp16`; empty where the oracle's table has one only.
        gpus: GPU counts it may run on.
        batches: samples per GPU and step it may run with.
        caps: power limits it may run under, as shares of the GPU's TDP.
        types: names of GPU types it may run on; empty is any.
        sequence: tokens of a sample, where that is a choice of the model.
        may_spread: may take GPUs of one node's worth from several nodes, over the network.
    """

    model: str
    precision: str = ""
    gpus: tuple[int, ...] = (1,)
    batches: tuple[int, ...] = (1,)
    caps: tuple[float, ...] = (1.0,)
    types: tuple[str, ...] = ()
    sequence: int | None = None
    may_spread: bool = False

    @property
    def label(self) -> str:
        """For people: `vit-base-patch16-224 fp32`."""
        return f"{self.model.rpartition('/')[2].removeprefix('hf:')} {self.precision}".strip()
