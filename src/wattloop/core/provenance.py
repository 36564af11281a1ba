"""Where a number comes from."""

from collections.abc import Iterable
from enum import StrEnum

__all__ = ["Provenance"]


class Provenance(StrEnum):
    """How a reported quantity was obtained, strongest first."""

    MEASURED = "measured"
    """Read from a sensor of this machine."""
    MODELLED = "modelled"
    """Computed by a validated model from facts of this machine (DIMMs, capacity in use)."""
    ESTIMATED = "estimated"
    """A last resort, such as utilisation x TDP; its stated error is large."""
    REPLAYED = "replayed"
    """Read back from a recorded file."""
    SIMULATED = "simulated"
    """Produced by the virtual GPU: no hardware was involved."""

    @classmethod
    def weakest(cls, parts: Iterable["Provenance"]) -> "Provenance":
        """The provenance of a sum: it is only as good as its weakest part."""
        order = list(cls)
        return max(parts, key=order.index)
