"""One advice: the waste, the remedy, the expected saving and its source."""

from dataclasses import asdict, dataclass
from typing import Any

from wattloop.core.units import format_energy, format_mass


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Energy that a run wasted, and how to save it.

    Attributes:
        rule: who says so: `idle-gpu`, `cap-too-high`, ...
        saving_j: joules that a run like this one would save; None where only its carbon changes.
        saving_share: the same as a part of the run's energy, or of its carbon.
        time_change_share: how much longer (above 0) or shorter it would take; None: not known.
        evidence: the figures it rests on, each with its name.
        source: where the saving comes from: a sweep with its date, a prediction, this run itself.
        saving_g: grams of CO2e, for an advice that changes when and not what is run.
        upper_bound: whether the saving is the most that is possible, not what is expected.
    """

    rule: str
    title: str
    text: str
    saving_j: float | None
    saving_share: float
    time_change_share: float | None
    evidence: tuple[str, ...]
    source: str
    command: str = ""
    saving_g: float | None = None
    upper_bound: bool = False

    def __post_init__(self) -> None:
        """No advice without its source."""
        if not self.source or not self.evidence:
            raise ValueError(f"{self.rule}: an advice needs a source and its evidence")

    @property
    def line(self) -> str:
        what = "its carbon" if self.saving_j is None else "the run's energy"
        saves = f"{self._about} {self.saving_share:.0%} of {what}{self.time_words}"
        return f"{self.title}: {saves}, {self.source}"

    @property
    def saving_words(self) -> str:
        """`about 1.12 kJ (0.312 Wh), 12% of the run, +3% time`."""
        if self.saving_j is None:
            return (
                f"{self._about} {format_mass(self.saving_g or 0.0)} CO2e, {self.saving_share:.0%}"
            )
        saved = f"{self._about} {format_energy(self.saving_j)}, {self.saving_share:.0%} of the run"
        return saved + self.time_words

    @property
    def _about(self) -> str:
        return "at most" if self.upper_bound else "about"

    @property
    def time_words(self) -> str:
        """`, +3% time`; empty where it stays the same or is not known."""
        percent = round(100 * (self.time_change_share or 0.0))
        return f", {percent:+d}% time" if percent else ""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "evidence": list(self.evidence)}
