"""A reservation as `scontrol show reservation -o` prints it."""

import re
from typing import NamedTuple

__all__ = ["Reservation", "reservations_from"]

FIELD = re.compile(r"(\w+)=(\S*)")


class Reservation(NamedTuple):
    """One reservation.

    Attributes:
        end_s: seconds since 1970.
        users: who may name it.
    """

    name: str
    nodes: str
    end_s: float
    users: tuple[str, ...]
    is_active: bool


def reservations_from(text: str) -> list[Reservation]:
    """Every reservation of the text."""
    found = []
    for line in text.splitlines():
        fields = dict(FIELD.findall(line))
        if "ReservationName" in fields:
            found.append(
                Reservation(
                    fields["ReservationName"],
                    fields.get("Nodes", ""),
                    _time_s(fields.get("EndTime", "")),
                    tuple(name for name in fields.get("Users", "").split(",") if name),
                    fields.get("State") == "ACTIVE",
                )
            )
    return found


def _time_s(text: str) -> float:
    return float(text) if text.isdigit() else 0.0
