"""A job that runs, as a policy sees it."""

from dataclasses import dataclass

__all__ = ["Running"]


@dataclass(slots=True, eq=False)
class Running:
    """One job on its machines.

    Attributes:
        job: its number.
        option: row of its kind's options.
        type_index, gpus: of the placement.
        nodes: (node, bit mask of its GPUs there), in the order they were taken.
        started_s: when this stretch began.
        power_w: drawn by its GPUs, as measured.
        expected_end_s: when it is believed to end, by the estimate at its start or last recap.
        work_at_start: samples to go when this stretch began.
    """

    job: int
    option: int
    type_index: int
    gpus: int
    nodes: tuple[tuple[int, int], ...]
    started_s: float
    power_w: float
    expected_end_s: float
    work_at_start: float

    @property
    def is_done(self) -> bool:
        """Its work is done and its GPUs are about to be free: no longer to be stopped or capped."""
        return False
