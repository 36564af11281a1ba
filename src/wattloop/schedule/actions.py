"""Actions that a policy may return: start, preempt, resize, change a power cap, wake."""

from typing import NamedTuple


class Start(NamedTuple):
    """Start a waiting job on a placement: a row of its kind's options."""

    job: int
    option: int


class Preempt(NamedTuple):
    """Stop a running job and put it back into the queue."""

    job: int


class Recap(NamedTuple):
    """Change the power cap of a running job: an option of the same shape and batch."""

    job: int
    option: int


class Resize(NamedTuple):
    """Continue a running job on other GPUs or with another batch, at the cost of a checkpoint."""

    job: int
    option: int


class Wake(NamedTuple):
    """Call the policy again at this time, even without an event."""

    at_s: float


Action = Start | Preempt | Recap | Resize | Wake
