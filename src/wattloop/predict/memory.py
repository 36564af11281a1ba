"""Memory that a training step needs on a GPU, and whether it fits."""

from dataclasses import dataclass

from wattloop.core.units import format_bytes
from wattloop.hardware.gpus import Gpu
from wattloop.predict.workload.workload import Workload

CONTEXT_BYTES = 0.75e9
"""0.5 to 1 GB: context and loaded kernels 0.5 GB, workspaces the rest."""
FRAGMENTATION = 0.05
"""Relative overhead of torch's allocator."""
RESERVED_SHARE = 0.01
"""Share of the GPU's memory that the driver reserves: torch sees 143156 of an H200's 143771 MiB,
81050 of an A100's 81920.
"""
TIGHT = 0.95
"""Above this share it may or may not fit: the limit of the estimate's precision."""


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Memory of one GPU.

    Attributes:
        needed_bytes, available_bytes: on each GPU.
        largest_batch: samples per pass that would fit; 0 when not even one does, None when it is
            not known what grows with the batch.
    """

    needed_bytes: float
    available_bytes: float
    largest_batch: int | None = None

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.available_bytes

    @property
    def tight(self) -> bool:
        """Return whether it fits by less than the error of the estimate."""
        return self.fits and self.needed_bytes > TIGHT * self.available_bytes

    @property
    def short_bytes(self) -> float:
        return max(0.0, self.needed_bytes - self.available_bytes)

    @property
    def words(self) -> str:
        need = f"{format_bytes(self.needed_bytes)} of {format_bytes(self.available_bytes)}"
        if self.tight:
            return f"{need}: may not fit, less than {1 - TIGHT:.0%} is left"
        if self.fits:
            return need
        short = f"does not fit: needs {need}, {format_bytes(self.short_bytes)} too much"
        if self.largest_batch is None:
            return short
        if self.largest_batch == 0:
            return f"{short}; parameters, gradients and optimizer alone leave no room for a sample"
        return f"{short}; about {self.largest_batch} samples per pass would"


GATHERED_SHARE = 0.1
"""Share of the weights that FSDP holds gathered at once: two of about twenty blocks or more."""


def memory_fit(workload: Workload, gpu: Gpu, gpus: int = 1, zero: int = 0) -> MemoryFit:
    """Return the memory that `workload` needs on each of `gpus` GPUs that train together.

    `zero` is what they divide: 1 the optimizer's state, 2 gradients as well, 3 weights as well.
    """
    available = gpu.memory_bytes * (1 - RESERVED_SHARE)
    whole = workload.parameter_bytes + workload.gradient_bytes + workload.optimizer_bytes
    divided = (workload.optimizer_bytes, workload.gradient_bytes, workload.parameter_bytes)
    saved = sum(divided[:zero]) * (1 - 1 / gpus)
    if zero == 3 and gpus > 1:
        saved -= GATHERED_SHARE * workload.parameter_bytes
    kept = whole - saved
    peak = max(workload.peak_bytes, whole) - saved
    # DistributedDataParallel holds gradients a second time, in buckets.
    buckets = workload.gradient_bytes if gpus > 1 and workload.training and zero < 2 else 0.0
    fixed = CONTEXT_BYTES + buckets
    needed = peak * (1 + FRAGMENTATION) + fixed
    return MemoryFit(
        needed, available, _largest_batch(workload, peak - kept, kept, available - fixed)
    )


def _largest_batch(workload: Workload, grows: float, kept: float, room: float) -> int | None:
    """Return the largest batch: activations and temporary memory grow with the batch."""
    if grows <= 0 or workload.batch <= 0:
        return None
    left = room / (1 + FRAGMENTATION) - kept
    return max(0, int(left / (grows / workload.batch)))
