"""Energy cards in formats that others ask for: Hugging Face, BoAmps, the EU AI Act, JSON-LD.

Each is made from a `Card`. What a run cannot know (task, licence, number of parameters) the user
states. The rest is left out, or marked as not stated where the format requires a value.
"""

import json
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

from wattloop.core.errors import ConfigError
from wattloop.core.text import plain
from wattloop.core.units import J_PER_KWH
from wattloop.report.card import Card, CardFigure, emission_lines, hardware_text
from wattloop.version import __version__

NOT_STATED = "not stated"
STATEMENTS: dict[str, str] = {
    "task": "text classification",
    "training_type": "pre-training or fine-tuning",
    "location": "Quebec, Canada",
    "country": "CAN",
    "algorithm": "transformer",
    "base_model": "meta-llama/Llama-3.1-8B",
    "parameters": "8e9",
    "tokens": "15e12",
    "flops": "7.2e23",
    "dataset": "text",
    "infrastructure": "onPremise, publicCloud, privateCloud or other",
    "publisher": "Example University",
    "licence": "CC-BY-4.0",
}
"""What a user may state about a model -> an example."""
NUMBERS = ("parameters", "tokens", "flops")
DATA_TYPES = (
    *("tabular", "audio", "boolean", "image", "video", "object", "text", "token", "word", "other"),
)
INFRASTRUCTURES = ("publicCloud", "privateCloud", "onPremise", "other")


class CardFormat(NamedTuple):
    """A format: ending of its file, and the text of a card."""

    ending: str
    render: Callable[[Card, Mapping[str, Any]], str]


def parse_statements(pairs: list[str]) -> dict[str, Any]:
    """Parse `key=value` statements.

    Raises:
        ConfigError: unknown key, or a value that is not a number where one is needed.
    """
    stated: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not separator or key not in STATEMENTS:
            raise ConfigError(f"--state {pair}: write key=value; keys are {', '.join(STATEMENTS)}")
        value = plain(value).strip()
        stated[key] = _number(value, pair) if key in NUMBERS else value
    for key, allowed in (("dataset", DATA_TYPES), ("infrastructure", INFRASTRUCTURES)):
        if stated.get(key) not in (None, *allowed):
            raise ConfigError(f"--state {key}={stated[key]}: use one of {', '.join(allowed)}")
    return stated


def _number(text: str, pair: str) -> float:
    match = re.fullmatch(r"([\d.]+(?:e\d+)?)\s*([kMBT]?)", text.replace(",", ""))
    try:
        value = float(match[1]) if match else float("nan")
    except ValueError:
        value = float("nan")
    if match is None or not 0 < value < 1e40:
        raise ConfigError(f"--state {pair}: write a number such as 8e9 or 8B")
    return value * {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[match[2]]


# Hugging Face: the `co2_eq_emissions` block of a model card's head.


def _hugging_face(card: Card, stated: Mapping[str, Any]) -> str:
    """https://huggingface.co/docs/hub/model-cards-co2: grams, source, type, place, hardware."""
    lines = emission_lines(card, stated.get("training_type"), _location(card, stated))
    if not lines:
        why = card.figure("training_carbon").note
        raise ConfigError(
            f"--format hf: the carbon of the training is not known ({why}); give --zone"
        )
    if stated.get("base_model"):
        lines.append(f"base_model: {json.dumps(stated['base_model'], ensure_ascii=False)}")
    return "\n".join(["---", *lines, "---", ""])


# BoAmps: the report of Boavizta (https://github.com/Boavizta/BoAmps), format 1.1.


def _boamps(card: Card, stated: Mapping[str, Any]) -> str:
    began = datetime.fromtimestamp(card.trained_wall_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    energy = card.figure("training_energy")
    if energy.value is None:
        raise ConfigError(f"--format boamps: the energy is not known ({energy.note})")
    algorithm = {
        "algorithmName": stated.get("algorithm") or NOT_STATED,
        "foundationModelName": stated.get("base_model"),
        "parametersNumber": stated["parameters"] / 1e9 if "parameters" in stated else None,
        "trainingType": stated.get("training_type"),
    }
    report: dict[str, Any] = {
        "header": {
            "licensing": stated.get("licence"),
            "formatVersion": "1.1.0",
            "formatVersionSpecificationUri": "https://github.com/Boavizta/BoAmps/tree/main/model",
            "reportId": str(uuid5(NAMESPACE_URL, f"wattloop:{card.run_id}")),
            "reportDatetime": began,
            "reportStatus": "draft",
            "publisher": {"name": stated.get("publisher"), "confidentialityLevel": "public"},
        },
        "task": {
            "taskStage": stated.get("training_type") or "training",
            "taskFamily": stated.get("task") or NOT_STATED,
            "algorithms": [_without_none(algorithm)],
            "dataset": [{"dataUsage": "input", "dataType": stated.get("dataset") or "other"}],
            "taskDescription": card.model,
        },
        "measures": [
            {
                "measurementMethod": f"wattloop ({energy.provenance})",
                "version": __version__,
                "cpuTrackingMode": _tracking(card, "cpu"),
                "gpuTrackingMode": _tracking(card, "gpu"),
                "powerConsumption": float(energy.value) / J_PER_KWH,
                "measurementDuration": _value(card, "training_time"),
                "measurementDateTime": began,
            }
        ],
        "system": {"os": platform.system() or NOT_STATED},
        "software": {"language": "python", "version": platform.python_version()},
        "infrastructure": {
            "infraType": stated.get("infrastructure") or "other",
            "components": list(_components(card)),
        },
        "environment": {
            "country": _location(card, stated) or NOT_STATED,
            "powerSourceCarbonIntensity": card.figure("carbon_intensity").value,
        },
        "quality": _quality(energy),
    }
    return json.dumps(_without_none(report), indent=2, ensure_ascii=False) + "\n"


def _quality(energy: CardFigure) -> str | None:
    """BoAmps' three classes: within 10, 25 and 50 percent; what is simulated is of no hardware."""
    if energy.provenance == "simulated":
        return "low"
    match = re.search(r"±\s*(?:<\s*)?([\d.]+)\s*%", energy.shown)
    if match is None:
        return None
    share = float(match[1])
    return "high" if share <= 10 else "medium" if share <= 25 else "low"


def _components(card: Card) -> Iterator[dict[str, Any]]:
    found = False
    for kind in ("gpu", "cpu"):
        figure = _figure(card, f"hardware_{kind}")
        if figure is None:
            continue
        for part in str(figure.value).split(", "):
            count, _, name = part.partition(" x ")
            found = True
            yield {
                "componentType": kind,
                "componentName": name or part,
                "nbComponent": int(count) if count.isdigit() else 1,
            }
    if not found:
        yield {"componentType": NOT_STATED, "nbComponent": 1}


def _tracking(card: Card, kind: str) -> str | None:
    """Return how this kind of device was read, where the card has one."""
    return card.figure("training_energy").provenance if _figure(card, f"hardware_{kind}") else None


# EU AI Act: the fields of Annex XI, section 1, points 1 and 2 (d) and (e).


def _ai_act(card: Card, stated: Mapping[str, Any]) -> str:
    """Regulation (EU) 2024/1689, Annex XI: compute, training time and energy of the training."""
    energy, grid = card.figure("training_energy"), _figure(card, "grid_energy")
    flops, how = _flops(stated)
    parameters = f"{stated['parameters']:,.0f}" if "parameters" in stated else NOT_STATED
    rows = [
        ("Model", card.model, "stated"),
        ("Parameters, 1(d)", parameters, "stated"),
        ("Architecture, 1(d)", stated.get("algorithm") or NOT_STATED, "stated"),
        ("Licence, 1(f)", stated.get("licence") or NOT_STATED, "stated"),
        ("Floating-point operations of the training, 2(d)", flops, how),
        ("Training time, 2(d)", card.figure("training_time").shown, "measured"),
        ("Hardware, 2(d)", hardware_text(card) or NOT_STATED, "measured"),
        ("Energy of the training, 2(e)", energy.shown, _sourced(energy)),
    ]
    if grid is not None:
        rows.append(("Energy from the grid, 2(e)", grid.shown, _sourced(grid)))
    rows.append(("Place of the training", _location(card, stated) or NOT_STATED, "stated"))
    lines = [
        "# Training compute and energy",
        "",
        "For the technical documentation of a general-purpose AI model: Regulation (EU) 2024/1689, "
        "Annex XI, section 1. The other points of the annex are not about energy and are not here.",
        "",
        "| point | value | source |",
        "|---|---|---|",
        *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows),
        "",
        f"Run {card.run_id}, recorded by Wattloop {__version__}. The energy is that of this run "
        "alone: earlier attempts and searches are not in it.",
        *(f"\n- {_cell(note)}" for note in card.notes),
    ]
    return "\n".join(lines) + "\n"


def _flops(stated: Mapping[str, Any]) -> tuple[str, str]:
    if "flops" in stated:
        return f"{stated['flops']:.3g}", "stated"
    if "parameters" in stated and "tokens" in stated:
        # 6 N D: Kaplan et al. 2020, arXiv 2001.08361
        product = 6 * stated["parameters"] * stated["tokens"]
        return f"{product:.3g}", "estimated: 6 x parameters x tokens"
    return NOT_STATED, "give --state flops=..., or parameters= and tokens="


def _sourced(figure: CardFigure) -> str:
    return "; ".join(part for part in (figure.provenance, figure.note) if part) or NOT_STATED


def _cell(text: Any) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


# JSON-LD: schema.org, for search engines and registries.

UNIT_CODES = {"J": "JOU", "s": "SEC", "g": "GRM"}
"""Codes of UN/CEFACT for the units of a card."""


def _json_ld(card: Card, stated: Mapping[str, Any]) -> str:
    figures = [f for s in card.sections for f in s.figures if isinstance(f.value, int | float)]
    data = {
        "@context": "https://schema.org",
        "@type": "SoftwareApplication",
        "applicationCategory": "Machine-learning model",
        "name": card.model,
        "identifier": card.run_id,
        "license": stated.get("licence"),
        "dateCreated": datetime.fromtimestamp(card.trained_wall_s, UTC).date().isoformat(),
        "additionalProperty": [
            _without_none(
                {
                    "@type": "PropertyValue",
                    "propertyID": figure.key,
                    "name": figure.label,
                    "value": figure.value,
                    "unitCode": UNIT_CODES.get(figure.unit.partition(" ")[0]),
                    "unitText": figure.unit or None,
                    "measurementTechnique": figure.provenance or None,
                    "description": figure.note or None,
                }
            )
            for figure in figures
        ],
    }
    return json.dumps(_without_none(data), indent=2, ensure_ascii=False) + "\n"


FORMATS: dict[str, CardFormat] = {
    "hf": CardFormat("hf.md", _hugging_face),
    "boamps": CardFormat("boamps.json", _boamps),
    "ai-act": CardFormat("ai-act.md", _ai_act),
    "json-ld": CardFormat("jsonld", _json_ld),
}


def _figure(card: Card, key: str) -> CardFigure | None:
    return next((f for s in card.sections for f in s.figures if f.key == key), None)


def _value(card: Card, key: str) -> Any:
    figure = _figure(card, key)
    return None if figure is None else figure.value


def _location(card: Card, stated: Mapping[str, Any]) -> str | None:
    """Return the stated place, or the zone of the carbon intensity."""
    zone = card.figure("carbon_intensity").shown.partition("/kWh, ")[2]
    return stated.get("location") or stated.get("country") or zone or None


def _without_none(value: Any) -> Any:
    """Drop keys without a value: a report has no field that says nothing."""
    if isinstance(value, Mapping):
        kept = {key: _without_none(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value
