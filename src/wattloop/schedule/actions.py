"""What a policy may ask for."""

from typing import NamedTuple


class Start(NamedTuple):
    """Start a waiting job on a placement: a row of its kind's options."""

    job: int
    option: int


class Preempt(NamedTuple):
    """Stop a running job and put it back into the queue."""

    job: int


class Recap(NamedTuple):
    """Go on with a running job under another power limit: an option of the same shape and batch."""

    job: int
    option: int


class Wake(NamedTuple):
    """Ask again at this time, even if nothing happens until then."""

    at_s: float


Action = Start | Preempt | Recap | Wake
