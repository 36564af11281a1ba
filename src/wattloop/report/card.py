"""The energy card of a model: what training it took, and what using it takes (thesis 6.4.3).

Every figure carries where it comes from. What is not known is on the card as such, with the
reason, so that two cards can be laid side by side.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from wattloop.accounting.carbon import IntensitySearch
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import Missing, WindowResult
from wattloop.core.units import format_duration, format_energy
from wattloop.report.card_carbon import carbon_figures
from wattloop.report.card_figure import NOT_KNOWN, CardFigure
from wattloop.report.card_inference import Inference
from wattloop.store.runs import RunRecord
from wattloop.version import __version__

__all__ = ["Card", "CardSection", "card_of"]

FORMAT, VERSION = "wattloop-energy-card", 1
NO_INFERENCE = "not measured; give the command with --inference"


@dataclass(frozen=True, slots=True)
class CardSection:
    """Figures that belong together."""

    heading: str
    figures: tuple[CardFigure, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """Everything that is on a card."""

    model: str
    run_id: str
    trained_wall_s: float
    sections: tuple[CardSection, ...]
    notes: tuple[str, ...]

    def figure(self, key: str) -> CardFigure:
        """The line of this key."""
        return next(f for section in self.sections for f in section.figures if f.key == key)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "run_id": self.run_id,
            "trained_wall_s": self.trained_wall_s,
            "figures": {
                figure.key: {**asdict(figure), "section": section.heading}
                for section in self.sections
                for figure in section.figures
            },
            "notes": list(self.notes),
            "wattloop": __version__,
        }


def card_of(
    record: RunRecord,
    inference: Inference | None,
    intensity: IntensitySearch,
    *,
    model: str = "",
    renewable_share: float | None = None,
) -> Card:
    """The card of the model that `record` trained.

    Args:
        record: the run of the training.
        inference: what one inference takes, where it was measured.
        intensity: the carbon intensity of the training's electricity, or why there is none.
        model: its name; that of the run unless given.
        renewable_share: part of the electricity from renewable sources, as the user states it.
    """
    sections = (
        CardSection("Training", tuple(_training(record))),
        CardSection("Hardware", tuple(_hardware(record))),
        CardSection("Inference", tuple(_inference(inference))),
        CardSection("Carbon", tuple(carbon_figures(record, inference, intensity, renewable_share))),
    )
    return Card(
        model=model or record.name or record.run_id,
        run_id=record.run_id,
        trained_wall_s=record.started_wall_s,
        sections=sections,
        notes=tuple(_notes(record, inference)),
    )


def _training(record: RunRecord) -> Iterator[CardFigure]:
    result = record.result
    if result is None or result.energy_j is None:
        reason = "; ".join(f"{m.name}: {m.reason}" for m in _missing(result)) or "no reading"
        yield CardFigure("training_energy", "Energy", None, "J", NOT_KNOWN, "", reason)
    else:
        covers = ", ".join(domain.name for domain in result.counted)
        yield CardFigure(
            "training_energy",
            "Energy",
            result.energy_j,
            "J",
            f"{format_energy(result.energy_j)} ± {_percent(result.uncertainty_j, result.energy_j)}",
            _how(result),
            f"of {covers}",
        )
    facility = (record.accounting or {}).get("facility") or {}
    if facility.get("energy_j") is not None:
        yield CardFigure(
            "grid_energy",
            "From the grid",
            facility["energy_j"],
            "J",
            format_energy(facility["energy_j"]),
            str(facility.get("provenance") or ""),
            f"whole node x PUE {facility.get('pue', 1):g}",
        )
    duration_s = record.duration_s
    shown = NOT_KNOWN if duration_s is None else format_duration(duration_s)
    yield CardFigure(
        "training_time", "Time", duration_s, "s", shown, "" if duration_s is None else "measured"
    )


def _hardware(record: RunRecord) -> Iterator[CardFigure]:
    domains = () if record.result is None else record.result.domains
    for scope, label in ((Scope.GPU, "GPUs"), (Scope.CPU, "CPUs")):
        devices = {(d.name.partition("/")[0], d.device) for d in domains if d.scope is scope}
        if not devices:
            continue
        named = Counter(device or "unnamed" for _, device in devices)
        text = ", ".join(f"{count} x {device}" for device, count in named.most_common())
        yield CardFigure(f"hardware_{scope.value}", label, text, "", text)
    for missing in _missing(record.result):
        yield CardFigure(
            f"missing_{missing.name}",
            missing.name,
            None,
            "",
            "not in the energy",
            "",
            missing.reason,
        )


def _inference(inference: Inference | None) -> Iterator[CardFigure]:
    keys = (("inference_energy", "Energy each", "J"), ("inference_latency", "Latency", "s"))
    if inference is None:
        for key, label, unit in keys:
            yield CardFigure(key, label, None, unit, NOT_KNOWN, "", NO_INFERENCE)
        return
    of = f"mean of {inference.inferences:,}, {inference.method}"
    if inference.energy_j is None:
        yield CardFigure(*keys[0][:2], None, "J", NOT_KNOWN, "", inference.reason)
    else:
        off = _percent(inference.uncertainty_j, inference.energy_j)
        shown = f"{format_energy(inference.energy_j)} ± {off}"
        yield CardFigure(*keys[0][:2], inference.energy_j, "J", shown, inference.provenance, of)
    if inference.latency_s is None:
        yield CardFigure(*keys[1][:2], None, "s", NOT_KNOWN, "", inference.reason)
    else:
        shown = format_duration(inference.latency_s)
        yield CardFigure(*keys[1][:2], inference.latency_s, "s", shown, "measured", of)


def _notes(record: RunRecord, inference: Inference | None) -> Iterator[str]:
    if record.status.value != "finished":
        yield f"the run of the training is marked {record.status.value}: it may not be complete"
    if not record.counted:
        yield f"its devices are counted by run {record.counted_by}; make the card of that run"
    if record.job:
        yield "the run is part of a job: other nodes of that job are not on this card"
    if record.result is not None and record.result.provenance is not None:
        if record.result.provenance.value == "simulated":
            yield "simulated: no hardware was involved"
        elif record.result.provenance.value == "estimated":
            yield _guessed(record.result)
    if inference is not None:
        yield from inference.notes


def _guessed(result: WindowResult) -> str:
    """Which joules are only estimated, and how many they are."""
    named = [each for each in result.counted if each.provenance is Provenance.ESTIMATED]
    joules = sum(each.energy_j or 0.0 for each in named)
    share = f", {joules / result.energy_j:.0%} of the joules" if result.energy_j else ""
    names = ", ".join(each.name for each in named)
    sources = ", ".join(dict.fromkeys(each.source for each in named))
    return f"{names}: estimated ({sources}), read from no sensor{share}"


def _missing(result: WindowResult | None) -> tuple[Missing, ...]:
    return () if result is None else result.missing


def _how(result: WindowResult) -> str:
    return "" if result.provenance is None else result.provenance.value


def _percent(part: float, whole: float) -> str:
    return "?" if not whole else f"{abs(part / whole):.1%}"
