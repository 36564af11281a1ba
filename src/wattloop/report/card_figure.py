"""One line of an energy card."""

from dataclasses import dataclass

__all__ = ["NOT_KNOWN", "CardFigure"]

NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class CardFigure:
    """One line of a card.

    `value` is in `unit` (SI), None where it is not known; `shown` is for people; `provenance` is
    empty for what needs none, such as the name of a device; `note` says the source or the reason.
    """

    key: str
    label: str
    value: float | str | None
    unit: str
    shown: str
    provenance: str = ""
    note: str = ""
