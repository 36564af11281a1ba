"""Ways in which a virtual card can fail, and what it says when it does."""

import random
from enum import IntEnum

from wattloop.virtual.timeline import Segment

__all__ = ["Fault", "refusal_to_read", "refusal_to_set"]


class Fault(IntEnum):
    """What is wrong with a card.

    `NO_PERMISSION` and `UNSUPPORTED` hold for reading and setting, `SET_FORBIDDEN` and
    `SET_UNSUPPORTED` for setting only; with `SET_IGNORED` a setting is accepted and has no effect.
    """

    NONE = 0
    LOST = 1
    NO_PERMISSION = 2
    UNSUPPORTED = 3
    UNKNOWN_ERROR = 4
    SET_FORBIDDEN = 5
    SET_UNSUPPORTED = 6
    SET_IGNORED = 7


def refusal_to_read(now: Segment) -> tuple[str, bool]:
    """(why it cannot be read, whether nobody should wait for it); "" when it can."""
    match Fault(int(now.fault)):
        case Fault.LOST:
            return "the virtual GPU has fallen off the bus", True
        case Fault.NO_PERMISSION:
            return "permission denied", True
        case Fault.UNSUPPORTED:
            return "the virtual GPU does not support the call", True
        case Fault.UNKNOWN_ERROR if random.random() < now.fault_probability:
            return "unknown error", False
    return "", False


def refusal_to_set(now: Segment) -> str:
    """Why it cannot be set; "" when it can."""
    match Fault(int(now.fault)):
        case Fault.SET_FORBIDDEN:
            return "permission denied"
        case Fault.SET_UNSUPPORTED:
            return "the virtual GPU does not support the call"
    return refusal_to_read(now)[0]
