"""Promises of docs/card.md: each format is valid by its own rules, and no value is invented."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.report.test_card import FRANCE, NOWHERE, ONE, trained
from wattloop.core.errors import ConfigError
from wattloop.report.card import CardFigure, card_of
from wattloop.report.card_standards import FORMATS, STATEMENTS, _quality, parse_statements

BOAMPS = json.loads(Path(__file__).with_name("boamps_schema.json").read_text("utf-8"))


def written(name: str, *pairs: str, intensity=FRANCE) -> str:
    card = card_of(trained(), ONE, intensity)
    return FORMATS[name].render(card, parse_statements(list(pairs)))


def test_boamps_is_valid_with_and_without_statements() -> None:
    """Promise: a report passes the schema of BoAmps, bare or complete."""
    bare = json.loads(written("boamps", intensity=NOWHERE))
    jsonschema.validate(bare, BOAMPS)
    assert bare["task"]["taskFamily"] == "not stated"
    assert bare["environment"] == {"country": "not stated"}
    full = json.loads(
        written(
            "boamps", "task=text classification", "dataset=text", "parameters=8B",
            "infrastructure=onPremise", "publisher=Lab", "licence=CC-BY-4.0", "country=FRA",
        )
    )  # fmt: skip
    jsonschema.validate(full, BOAMPS)
    assert full["measures"][0]["powerConsumption"] == pytest.approx(1.0)  # 3.6 MJ
    assert full["measures"][0]["measurementDuration"] == 3_600.0
    assert full["task"]["algorithms"][0]["parametersNumber"] == 8.0
    assert full["environment"] == {"country": "FRA", "powerSourceCarbonIntensity": 56.0}
    assert full["infrastructure"]["components"] == [
        {"componentType": "gpu", "componentName": "H200", "nbComponent": 2}
    ]
    assert full["quality"] == "high"


def test_a_simulated_energy_is_of_low_quality() -> None:
    """Its interval is narrow, but says nothing about a machine."""
    energy = CardFigure("energy", "Energy", 3.6e6, "J", "3.60 MJ ± 0.1%", "simulated")
    assert _quality(energy) == "low"
    assert _quality(replace(energy, provenance="measured")) == "high"


def test_the_schema_can_fail() -> None:
    """The validation is not vacuous: it refuses a report without its measures."""
    report = json.loads(written("boamps"))
    del report["measures"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, BOAMPS)


def test_hugging_face_reads_its_own_fields() -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    text = written("hf", "training_type=fine-tuning", "location=Lyon: France", "base_model=a/b")
    data = hub.ModelCard(text + "\n# A model\n").data.to_dict()
    emissions = data["co2_eq_emissions"]
    assert emissions["emissions"] == pytest.approx(4.5e6 / 3.6e6 * 56)
    assert emissions["training_type"] == "fine-tuning"
    assert emissions["geographical_location"] == "Lyon: France"
    assert emissions["hardware_used"] == "2 x H200"
    assert data["base_model"] == "a/b"


def test_hugging_face_without_carbon_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="give --zone"):
        written("hf", intensity=NOWHERE)


def test_the_place_is_the_zone_unless_stated() -> None:
    head = yaml.safe_load(written("hf").strip("-\n"))
    assert head["co2_eq_emissions"]["geographical_location"] == "FRA"


def test_the_ai_act_has_compute_time_and_energy() -> None:
    """Annex XI, section 1, 2(d) and 2(e)."""
    text = written("ai-act", "parameters=8e9", "tokens=1T", "algorithm=transformer | decoder")
    assert "| Floating-point operations of the training, 2(d) | 4.8e+22 | estimated" in text
    assert "| Training time, 2(d) | 1 h" in text or "60 min" in text
    assert "2(e) | 3.6" in text or "1.00 kWh" in text
    assert "transformer \\| decoder" in text
    assert "not stated" in written("ai-act")
    assert "| 1e+23 | stated |" in written("ai-act", "flops=1e23")


def test_json_ld_has_a_property_per_number() -> None:
    data = json.loads(written("json-ld", "licence=apache-2.0"))
    assert data["@context"] == "https://schema.org"
    values = {each["propertyID"]: each for each in data["additionalProperty"]}
    assert values["training_energy"]["value"] == 3.6e6
    assert values["training_energy"]["unitCode"] == "JOU"
    assert values["training_carbon"]["unitCode"] == "GRM"
    assert values["training_energy"]["measurementTechnique"] == "measured"
    assert data["license"] == "apache-2.0"


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("colour=red", "keys are task"),
        ("task", "write key=value"),
        ("parameters=many", "8e9 or 8B"),
        ("parameters=1.2.3", "8e9 or 8B"),
        ("flops=-3", "8e9 or 8B"),
        ("dataset=cats", "use one of tabular"),
        ("infrastructure=moon", "use one of publicCloud"),
    ],
)
def test_a_wrong_statement_says_what_would_work(pair: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_statements([pair])


def test_control_characters_do_not_reach_a_file() -> None:
    for name in FORMATS:
        text = written(name, "location=x\x1b[31my\nz", *(f"{k}=a" for k in ("task", "licence")))
        assert "\x1b" not in text
        assert "[31my\nz" not in text
    assert set(STATEMENTS) >= {"location", "training_type"}
