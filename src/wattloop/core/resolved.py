"""What can be asked of anything that has a `WindowResult`: a measurement, a window, an epoch."""

from abc import ABC, abstractmethod

from wattloop.core.results import WindowResult

__all__ = ["Resolved"]


class Resolved(ABC):
    """The figures of its result, within reach."""

    __slots__ = ()

    @property
    @abstractmethod
    def result(self) -> WindowResult:
        """Energies, times, what is missing; so far, while it is open."""

    @property
    def energy_j(self) -> float | None:
        """Joules of everything that could be read, each device once; None when nothing could."""
        return self.result.energy_j

    @property
    def uncertainty_j(self) -> float:
        """Half-width of the 95% interval of `energy_j`."""
        return self.result.uncertainty_j

    @property
    def duration_s(self) -> float:
        """Seconds from beginning to end (or to now)."""
        return self.result.duration_s

    @property
    def power_w(self) -> float | None:
        """Mean power in watts."""
        return self.result.power_w
