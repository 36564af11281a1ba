"""The energy card of a model: energy of its training and of one inference (thesis 6.4.3)."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from html import escape
from textwrap import wrap
from typing import Any

from wattloop.accounting.carbon import IntensitySearch, carbon_g
from wattloop.check.markdown import as_cell, table
from wattloop.check.measurement import redirect_stdout
from wattloop.core.errors import CommandError, ConfigError
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import Missing, WindowResult
from wattloop.core.settings import Settings
from wattloop.core.units import (
    format_duration,
    format_energy,
    format_error,
    format_mass,
    format_number,
    format_share,
)
from wattloop.integrations.run_phases import StepTotals
from wattloop.measure.command import run_command
from wattloop.measure.session import RunResult
from wattloop.store.runs import RunRecord
from wattloop.version import __version__

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

    @classmethod
    def unknown(cls, key: str, label: str, unit: str, reason: str) -> "CardFigure":
        return cls(key, label, None, unit, NOT_KNOWN, note=reason)


# What one inference takes, found by running a command that does many.
#
# A program spends time and energy before its first inference. Where the command says with `{n}`
# how many to do, it is run with two numbers and only the difference counts:
#
#     e = (E(n2) - E(n1)) / (n2 - n1)
PLACE = "{n}"
FEW = 10
"""The first of the two executions does a tenth of the inferences."""
CLEARLY = 0.1
"""Starting a program twice differs by some percent: what many inferences add must be more."""
MODELS = ("modelled", "estimated")
WHOLE = "with the start of the program"


@dataclass(frozen=True, slots=True)
class Inference:
    """Energy and time of one inference; None with `reason` where they are unknown.

    `node_energy_j` has the rest of the node with it, modelled where it is not measured.
    """

    inferences: int
    energy_j: float | None
    uncertainty_j: float
    latency_s: float | None
    provenance: str
    method: str
    command: tuple[str, ...]
    reason: str = ""
    notes: tuple[str, ...] = ()
    node_energy_j: float | None = None


def measured_inference(
    command: Sequence[str],
    inferences: int,
    settings: Settings,
    told: Callable[[str], None] | None = None,
) -> Inference:
    """Measure `command`, which does `inferences` inferences or replaces `{n}` by them.

    Raises:
        ConfigError: the command cannot be started, or failed.
    """
    if not any(PLACE in word for word in command) or inferences < 2:
        run = _ran(command, settings, told)
        return _of_whole(run, inferences, tuple(command))
    few = max(1, inferences // FEW)
    first = _ran([word.replace(PLACE, str(few)) for word in command], settings, told)
    second = _ran([word.replace(PLACE, str(inferences)) for word in command], settings, told)
    return _of_difference(first, second, few, inferences, tuple(command))


def _of_whole(run: RunResult, n: int, command: tuple[str, ...]) -> Inference:
    result = run.result
    note = f"write {PLACE} in the command of the inferences to have its start taken off"
    return Inference(
        inferences=n,
        energy_j=None if run.energy_j is None else run.energy_j / n,
        uncertainty_j=result.uncertainty_j / n,
        latency_s=result.duration_s / n,
        provenance="" if result.provenance is None else result.provenance.value,
        method=WHOLE,
        command=command,
        reason=_why(run),
        node_energy_j=None if (node_j := _node_j(run)) is None else node_j / n,
        notes=(*(() if PLACE in " ".join(command) else (note,)), *result.warnings),
    )


def _of_difference(
    first: RunResult, second: RunResult, few: int, many: int, command: tuple[str, ...]
) -> Inference:
    more = many - few
    found = replace(
        _of_whole(second, many, command),
        inferences=more,
        energy_j=None,
        node_energy_j=None,
        latency_s=None,
        method="start of the program taken off",
        reason=f"{many} inferences cannot be told from {few}; ask for more with --inferences",
    )
    longer_s = second.result.duration_s - first.result.duration_s
    if longer_s < CLEARLY * first.result.duration_s:
        return found
    found = replace(found, latency_s=longer_s / more)
    if first.energy_j is None or second.energy_j is None:
        return replace(found, reason=_why(second) or _why(first))
    more_j = second.energy_j - first.energy_j
    doubt_j = math.hypot(_random_j(first), _random_j(second))
    if more_j <= max(doubt_j, CLEARLY * first.energy_j):
        return found
    kinds = [r.result.provenance for r in (first, second) if r.result.provenance is not None]
    first_node_j, second_node_j = _node_j(first), _node_j(second)
    node_j = (
        None
        if first_node_j is None or second_node_j is None
        else (second_node_j - first_node_j) / more
    )
    return replace(
        found,
        energy_j=more_j / more,
        node_energy_j=node_j,
        uncertainty_j=math.hypot(doubt_j, _systematic(second) * more_j) / more,
        provenance=Provenance.weakest(kinds).value,
        reason="",
    )


def _node_j(run: RunResult) -> float | None:
    node: dict[str, float | None] = run.accounting.get("node") or {}
    return node.get("energy_j")


def _random_j(run: RunResult) -> float:
    """Return the uncertainty that differs from run to run: of sensors, not of models."""
    sensed = [d for d in run.result.counted if d.provenance.value not in MODELS]
    return math.hypot(*(d.uncertainty_j for d in sensed))


def _systematic(run: RunResult) -> float:
    """Return the relative error of models and estimates, equal in both runs."""
    energy_j = run.result.energy_j or 0.0
    modelled = [d for d in run.result.counted if d.provenance.value in MODELS]
    off_j = math.hypot(*(d.uncertainty_j for d in modelled))
    return off_j / energy_j if energy_j else 0.0


def _why(run: RunResult) -> str:
    if run.energy_j is not None:
        return ""
    return "; ".join(f"{m.name}: {m.reason}" for m in run.missing) or "nothing could be read"


def _ran(
    command: Sequence[str], settings: Settings, told: Callable[[str], None] | None
) -> RunResult:
    if told is not None:
        told(" ".join(command))
    try:
        with redirect_stdout():
            done = run_command(command, settings, tags={"card": "inference"})
    except CommandError as error:
        raise ConfigError(f"--inference: {error}") from None
    if done.outcome.exit_code != 0:
        raise ConfigError(
            f"--inference: {command[0]} failed with exit code {done.outcome.exit_code}; make it "
            "succeed first"
        )
    if done.run is None:
        raise ConfigError(f"--inference: {'; '.join(done.warnings)}")
    return done.run


NO_SHARE = "no source here tells it; state it with --renewable"
INFERENCES_SHOWN = 1_000


def carbon_figures(
    record: RunRecord,
    inference: Inference | None,
    intensity: IntensitySearch,
    renewable_share: float | None,
) -> Iterator[CardFigure]:
    """Return training, 1,000 inferences, intensity and renewable share, or why they are unknown."""
    found = intensity.found
    facility = (record.accounting or {}).get("facility") or {}
    grid_j, how = facility.get("energy_j"), str(facility.get("provenance") or "")
    if found is None or grid_j is None:
        reason = intensity.reason if found is None else "the energy of the training is not known"
        yield CardFigure.unknown("training_carbon", "Training", "g CO2e", reason)
    else:
        mass_g = carbon_g(grid_j, found.g_co2e_per_kwh)
        yield CardFigure(
            "training_carbon", "Training", mass_g, "g CO2e", f"{format_mass(mass_g)} CO2e", how,
            "energy from the grid x intensity",
        )  # fmt: skip
    if found and inference is not None and inference.node_energy_j is not None:
        pue = float(facility.get("pue") or 1.0)
        mass_g = carbon_g(inference.node_energy_j * INFERENCES_SHOWN * pue, found.g_co2e_per_kwh)
        yield CardFigure(
            "inference_carbon", f"{INFERENCES_SHOWN:,} inferences", mass_g, "g CO2e",
            f"{format_mass(mass_g)} CO2e", inference.provenance,
            f"whole node x PUE {pue:g}, intensity of the training",
        )  # fmt: skip
    if found is None:
        reason = intensity.reason
        yield CardFigure.unknown("carbon_intensity", "Intensity", "g CO2e/kWh", reason)
    else:
        text = f"{found.g_co2e_per_kwh:g} g CO2e/kWh" + (f", {found.zone}" if found.zone else "")
        yield CardFigure(
            "carbon_intensity", "Intensity", found.g_co2e_per_kwh, "g CO2e/kWh", text,
            found.kind.value, found.source,
        )  # fmt: skip
    if renewable_share is None:
        yield CardFigure.unknown("renewable_share", "Renewable", "", NO_SHARE)
    else:
        text = f"{renewable_share:.0%} of the electricity"
        yield CardFigure("renewable_share", "Renewable", renewable_share, "", text, "stated")


# The energy card of a model: what training it took, and what using it takes (thesis 6.4.3).
#
# Every figure carries where it comes from. What is not known is on the card as such, with the
# reason, so that two cards can be laid side by side.
FORMAT, VERSION = "wattloop-energy-card", 1
NO_INFERENCE = "not measured; give the command with --inference"
NO_STEPS = "the run has no training steps that Wattloop saw"
STEP_FIGURES: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "step_j": ("Energy per step", "J", format_energy),
    "step_s": ("Time per step", "s", format_duration),
    "sample_j": ("Energy per sample", "J", format_energy),
    "samples_per_j": ("Samples per joule", "1/J", lambda rate: format_number(rate, 3)),
    "token_j": ("Energy per token", "J", format_energy),
    "tokens_per_j": ("Tokens per joule", "1/J", lambda rate: format_number(rate, 3)),
}
"""Cost of `StepTotals.costs` -> label, unit and format."""


@dataclass(frozen=True, slots=True)
class CardSection:
    """Figures that belong together."""

    heading: str
    figures: tuple[CardFigure, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """The content of a card."""

    model: str
    run_id: str
    trained_wall_s: float
    sections: tuple[CardSection, ...]
    notes: tuple[str, ...]

    def figure(self, key: str) -> CardFigure:
        return next(f for section in self.sections for f in section.figures if f.key == key)

    def to_dict(self) -> dict[str, Any]:
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
    totals: StepTotals | None = None,
) -> Card:
    """Return the card of the model that `record` trained.

    Args:
        record: the run of the training.
        inference: what one inference takes, where it was measured.
        intensity: the carbon intensity of the training's electricity, or why there is none.
        model: its name; that of the run unless given.
        renewable_share: part of the electricity from renewable sources, as the user states it.
        totals: steps and phases of the training, where it had any.
    """
    sections = (
        CardSection("Training", tuple(_training(record))),
        CardSection("Steps and phases", tuple(_steps(record, totals))),
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
        yield CardFigure.unknown("training_energy", "Energy", "J", reason)
    else:
        covers = ", ".join(domain.name for domain in result.counted)
        shown = format_energy(result.energy_j)
        yield CardFigure(
            "training_energy", "Energy", result.energy_j, "J",
            f"{shown} ± {format_error(result.uncertainty_j, result.energy_j)}", _how(result),
            f"of {covers}",
        )  # fmt: skip
    facility = (record.accounting or {}).get("facility") or {}
    if facility.get("energy_j") is not None:
        yield CardFigure(
            "grid_energy", "From the grid", facility["energy_j"], "J",
            format_energy(facility["energy_j"]), str(facility.get("provenance") or ""),
            f"whole node x PUE {facility.get('pue', 1):g}",
        )  # fmt: skip
    duration_s = record.duration_s
    shown = NOT_KNOWN if duration_s is None else format_duration(duration_s)
    yield CardFigure(
        "training_time", "Time", duration_s, "s", shown, "" if duration_s is None else "measured"
    )


def _steps(record: RunRecord, totals: StepTotals | None) -> Iterator[CardFigure]:
    if totals is None or not totals.steps:
        yield CardFigure.unknown("steps", "Steps", "", NO_STEPS)
        return
    how = "" if record.result is None else _how(record.result)
    counts = (("steps", totals.steps), ("samples", totals.samples), ("tokens", totals.tokens))
    for key, count in counts:
        if count is not None:
            yield CardFigure(key, key.capitalize(), count, "", f"{count:,.0f}", "counted")
    for key, cost in totals.costs.items():
        label, unit, shown = STEP_FIGURES[key]
        yield CardFigure(key, label, cost, unit, shown(cost), "measured" if unit == "s" else how)
    whole_s = sum(phase.time_s for phase in totals.phases)
    for phase in totals.phases:
        key, label = f"phase_{phase.name.replace(' ', '_')}", phase.name.capitalize()
        time = f"{format_share(phase.time_s / whole_s, 0)} of the time" if whole_s > 0 else ""
        if phase.energy_j is None:
            yield CardFigure.unknown(key, label, "J", f"not read; {time}")
        else:
            shown_j = format_energy(phase.energy_j)
            yield CardFigure(key, label, phase.energy_j, "J", shown_j, how, time)


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
        text = "not in the energy"
        yield CardFigure(
            f"missing_{missing.name}", missing.name, None, "", text, note=missing.reason
        )


def _inference(inference: Inference | None) -> Iterator[CardFigure]:
    energy, latency = ("inference_energy", "Energy each"), ("inference_latency", "Latency")
    if inference is None:
        yield CardFigure.unknown(*energy, "J", NO_INFERENCE)
        yield CardFigure.unknown(*latency, "s", NO_INFERENCE)
        return
    of = f"mean of {inference.inferences:,}, {inference.method}"
    if inference.energy_j is None:
        yield CardFigure.unknown(*energy, "J", inference.reason)
    else:
        off = format_error(inference.uncertainty_j, inference.energy_j)
        shown = f"{format_energy(inference.energy_j)} ± {off}"
        yield CardFigure(*energy, inference.energy_j, "J", shown, inference.provenance, of)
    if inference.latency_s is None:
        yield CardFigure.unknown(*latency, "s", inference.reason)
    else:
        shown = format_duration(inference.latency_s)
        yield CardFigure(*latency, inference.latency_s, "s", shown, "measured", of)


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
    """Return which joules are only estimated, and how many they are."""
    named = [each for each in result.counted if each.provenance is Provenance.ESTIMATED]
    joules = sum(each.energy_j or 0.0 for each in named)
    share = (
        f", {format_share(joules / result.energy_j, 0)} of the joules" if result.energy_j else ""
    )
    names = ", ".join(each.name for each in named)
    sources = ", ".join(dict.fromkeys(each.source for each in named))
    return f"{names}: estimated ({sources}), read from no sensor{share}"


def _missing(result: WindowResult | None) -> tuple[Missing, ...]:
    return () if result is None else result.missing


def _how(result: WindowResult) -> str:
    return "" if result.provenance is None else result.provenance.value


HEADERS = ("", "figure", "how", "from")


def card_markdown(card: Card) -> str:
    day = datetime.fromtimestamp(card.trained_wall_s, UTC).strftime("%Y-%m-%d")
    lines = [f"## Energy card: {as_cell(card.model)}", "", f"Trained {day}, run `{card.run_id}`."]
    for section in card.sections:
        rows = [
            (figure.label, f"**{figure.shown}**", figure.provenance or "–", figure.note or "–")
            for figure in section.figures
        ]
        lines += ["", f"### {section.heading}", "", table(HEADERS, rows)]
    if card.notes:
        lines += ["", *(f"- {as_cell(note)}" for note in card.notes)]
    metadata = emission_lines(card)
    if metadata:
        head = "For the head of a model card on Hugging Face:"
        lines += ["", head, "", "```yaml", *metadata, "```"]
    return "\n".join(lines) + "\n"


def emission_lines(
    card: Card, training_type: str | None = None, place: str | None = None
) -> list[str]:
    """Return the `co2_eq_emissions` of a model card's head, in grams; empty where unknown."""
    carbon = card.figure("training_carbon")
    if carbon.value is None:
        return []
    fields = {
        "emissions": float(f"{carbon.value:.6g}"),
        "source": f"Wattloop, {carbon.provenance}; {card.figure('carbon_intensity').note}",
        "training_type": training_type,
        "geographical_location": place,
        "hardware_used": hardware_text(card),
    }
    # JSON's strings and numbers are YAML's
    stated = {key: json.dumps(value, ensure_ascii=False) for key, value in fields.items() if value}
    return ["co2_eq_emissions:", *(f"  {key}: {text}" for key, text in stated.items())]


def hardware_text(card: Card) -> str:
    figures = (figure for section in card.sections for figure in section.figures)
    return ", ".join(figure.shown for figure in figures if figure.key.startswith("hardware_"))


# A card as one SVG: plain text and rectangles, no font or file from elsewhere.
#
# The label on a package of food is the model: the few figures that matter, large, in one frame.
# Colours follow the reader's light or dark setting.
WIDTH, MARGIN = 460, 20
LINE, SMALL_LINE = 20, 14
NOTE_CHARACTERS = 66
"""What fits into the width at the small size, by the widest of common sans-serif fonts."""

STYLE = """
  svg { color-scheme: light dark; }
  .card { fill: #ffffff; stroke: #1b1f24; }
  text { fill: #1b1f24; font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
  .title { font-size: 22px; font-weight: 800; }
  .model { font-size: 15px; font-weight: 600; }
  .heading { font-size: 13px; font-weight: 700; letter-spacing: 0.4px; }
  .label { font-size: 13px; }
  .value { font-size: 14px; font-weight: 700; text-anchor: end; }
  .note { font-size: 10.5px; fill: #57606a; }
  .rule { stroke: #1b1f24; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #c9d1d9; }
    text { fill: #e6edf3; }
    .note { fill: #9ea7b3; }
    .rule { stroke: #c9d1d9; }
  }
"""


def card_svg(card: Card) -> str:
    page = _Page()
    day = datetime.fromtimestamp(card.trained_wall_s, UTC).strftime("%Y-%m-%d")
    page.text("title", "Energy card", 26)
    for line in wrap(card.model, 48)[:3] or [""]:
        page.text("model", line, 22)
    page.text("note", f"trained {day}, run {card.run_id}", SMALL_LINE)
    for section in card.sections:
        page.rule(5)
        page.text("heading", section.heading, 17)
        for figure in section.figures:
            _figure(page, figure)
    if card.notes:
        page.rule(2)
        for note in card.notes:
            for line in wrap(note, NOTE_CHARACTERS):
                page.text("note", line, SMALL_LINE)
    page.rule(1)
    page.text(
        "note", "made with Wattloop; operational energy only, without making the hardware", 15
    )
    return page.svg(_alternative(card))


def _figure(page: "_Page", figure: CardFigure) -> None:
    values = wrap(figure.shown, 36) or [""]
    page.pair(figure.label, values[0])
    for line in values[1:]:
        page.pair("", line)
    said = ": ".join(part for part in (figure.provenance, figure.note) if part)
    for line in wrap(said, NOTE_CHARACTERS):
        page.text("note", line, SMALL_LINE)


def _alternative(card: Card) -> str:
    return "; ".join(
        f"{section.heading}, {figure.label}: {figure.shown}"
        + (f" ({figure.provenance})" if figure.provenance else "")
        for section in card.sections
        for figure in section.figures
    )


class _Page:
    """Lines from top to bottom."""

    def __init__(self) -> None:
        self._y = float(MARGIN)
        self._parts: list[str] = []
        self._title = "Energy card"

    def text(self, kind: str, text: str, height: float) -> None:
        self._y += height
        self._parts.append(
            f'<text class="{kind}" x="{MARGIN}" y="{self._y:g}">{escape(text)}</text>'
        )

    def pair(self, label: str, value: str) -> None:
        self._y += LINE
        right = WIDTH - MARGIN
        if label:
            self._parts.append(
                f'<text class="label" x="{MARGIN}" y="{self._y:g}">{escape(label)}</text>'
            )
        self._parts.append(
            f'<text class="value" x="{right}" y="{self._y:g}">{escape(value)}</text>'
        )

    def rule(self, width: float) -> None:
        self._y += 10 + width / 2
        self._parts.append(
            f'<line class="rule" x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{self._y:g}" '
            f'y2="{self._y:g}" stroke-width="{width:g}"/>'
        )
        self._y += width / 2

    def svg(self, alternative: str) -> str:
        height = self._y + MARGIN
        body = "\n  ".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
            f'viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="card-title card-text">\n'
            f'  <title id="card-title">{self._title}</title>\n'
            f'  <desc id="card-text">{escape(alternative)}</desc>\n'
            f"  <style>{STYLE}</style>\n"
            f'  <rect class="card" x="2" y="2" width="{WIDTH - 4}" height="{height - 4:g}" rx="6" '
            f'stroke-width="2.5"/>\n  {body}\n</svg>\n'
        )
