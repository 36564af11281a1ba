"""Promises of the energy card: every figure has its source, and unknown ones say so."""

import json
import xml.etree.ElementTree as ET

import pytest

from wattloop.accounting.carbon import Intensity, IntensityKind, IntensitySearch
from wattloop.core.errors import ConfigError
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, Missing, RunStatus, WindowResult
from wattloop.integrations.run_phases import Phase, StepTotals
from wattloop.measure.session import RunResult
from wattloop.report import card
from wattloop.report.card import Inference, card_markdown, card_of, card_svg, measured_inference
from wattloop.store.runs import RunRecord

FRANCE = IntensitySearch(Intensity(56.0, "FRA", IntensityKind.ANNUAL, "annual mean of France"))
NOWHERE = IntensitySearch(None, reason="set zone: to your country")


def gpu(number: int, joules: float) -> DomainEnergy:
    return DomainEnergy(
        f"gpu:{number}", Scope.GPU, joules, 10.0, Provenance.MEASURED, "NVML", device="H200"
    )


def trained(**changes: object) -> RunRecord:
    result = WindowResult(
        "resnet", 0, None, 0.0, 3_600.0,
        (gpu(0, 1.8e6), gpu(1, 1.8e6)),
        (Missing("dram", "no DRAM domain"),),
    )  # fmt: skip
    accounting = {"facility": {"energy_j": 4.5e6, "pue": 1.2, "provenance": "modelled"}}
    facts = {"run_id": "r1", "name": "resnet", "result": result, "accounting": accounting}
    return RunRecord(**{**facts, **changes})  # type: ignore[arg-type] # fields by name


ONE = Inference(
    900, 0.5, 0.01, 0.002, "measured", "start taken off", ("infer",), node_energy_j=0.75
)


def test_a_card_has_what_the_thesis_asks_for() -> None:
    """Promise: energy, time, hardware, inference, carbon with intensity and renewable share."""
    card = card_of(trained(), ONE, FRANCE, renewable_share=0.25)
    assert card.figure("training_energy").value == 3.6e6
    assert card.figure("training_time").value == 3_600.0
    assert card.figure("hardware_gpu").shown == "2 x H200"
    assert card.figure("inference_energy").value == 0.5
    assert card.figure("inference_latency").value == 0.002
    assert card.figure("training_carbon").value == pytest.approx(4.5e6 / 3.6e6 * 56)
    # 1,000 x 0.75 J of the node, x PUE
    assert card.figure("inference_carbon").value == pytest.approx(750 * 1.2 / 3.6e6 * 56)
    assert card.figure("carbon_intensity").note == "annual mean of France"
    assert card.figure("renewable_share").shown == "25% of the electricity"
    assert card.figure("missing_dram").note == "no DRAM domain"


def test_every_known_number_has_its_provenance() -> None:
    """Promise: every number has a provenance, and every unknown one a reason."""
    for each in (card_of(trained(), ONE, FRANCE), card_of(trained(result=None), None, NOWHERE)):
        for section in each.sections:
            for figure in section.figures:
                if isinstance(figure.value, float):
                    assert figure.provenance, figure
                elif figure.value is None:
                    assert figure.note or figure.key == "training_time", figure


def test_unknown_values_are_not_zero() -> None:
    """Promise: a run without readings has a card that says so; a missing value is null in JSON."""
    card = card_of(trained(result=None, accounting=None), None, NOWHERE)
    data = json.loads(json.dumps(card.to_dict(), allow_nan=False))
    for key in ("training_energy", "inference_energy", "training_carbon", "renewable_share"):
        assert data["figures"][key]["value"] is None
        assert data["figures"][key]["shown"] == "not known"
    assert data["figures"]["training_carbon"]["note"] == "set zone: to your country"
    assert "co2_eq_emissions" not in card_markdown(card)


def test_partial_and_simulated_runs_are_marked() -> None:
    """Promise: a crashed training, a rank, one node of a job and a simulation are marked."""
    died = card_of(trained(status=RunStatus.DIED, counted=False, counted_by="r0"), None, NOWHERE)
    assert "marked died" in died.notes[0]
    assert "run r0" in died.notes[1]
    assert "other nodes" in card_of(trained(job={"job_id": "7"}), None, NOWHERE).notes[0]


def test_what_was_only_estimated_is_named_with_its_share() -> None:
    """It stands next to a measured GPU and names its tool: it may be imported from another one."""
    cpu = DomainEnergy("cpu:0/package", Scope.CPU, 4e5, 1e5, Provenance.ESTIMATED, "codecarbon 2")
    result = WindowResult("bert", 0, None, 0.0, 60.0, (gpu(0, 3.6e6), cpu))
    (note,) = card_of(trained(result=result), None, NOWHERE).notes
    assert note.startswith("cpu:0/package: estimated (codecarbon 2), read from no sensor")
    assert note.endswith("10% of the joules")


def test_names_are_text_in_svg_and_markdown() -> None:
    """Promise: markup in a name is shown as text, and the SVG is well-formed."""
    card = card_of(trained(), ONE, FRANCE, model='<script>alert("1")</script> & | co')
    svg = card_svg(card)
    root = ET.fromstring(svg)
    assert root.attrib["role"] == "img"
    assert "<script" not in svg
    assert any("<script>" in "".join(text.itertext()) for text in root.iter() if "text" in text.tag)
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    markdown = card_markdown(card)
    assert "<script" not in markdown
    assert "emissions: 70" in markdown


def test_all_lines_of_the_svg_lie_inside_its_frame() -> None:
    """Promise: a long card is not cut at the bottom."""
    record = trained()
    assert record.result is not None
    many = tuple(Missing(f"part{i}", "a reason that takes some words " * 5) for i in range(12))
    card = card_of(trained(result=record.result._replace(missing=many)), ONE, FRANCE)
    root = ET.fromstring(card_svg(card))
    lowest = max(float(node.attrib["y"]) for node in root.iter() if node.tag.endswith("text"))
    assert lowest < float(root.attrib["height"]) - 10


def ran(joules: float | None, seconds: float) -> RunResult:
    domains = () if joules is None else (gpu(0, joules),)
    result = WindowResult("x", 0, None, 0.0, seconds, domains, (Missing("cpu", "no sensor"),))
    return RunResult(
        run_id="x", status=RunStatus.FINISHED, exit_code=0, signal=None, started_wall_s=0.0,
        result=result, accounting={"node": {"energy_j": joules and 2 * joules}},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "energy_j", "latency_s"),
    [
        ((1_000.0, 10.0), (10_000.0, 19.0), 10.0, 0.01),
        ((1_000.0, 10.0), (1_010.0, 10.1), None, None),
        ((1_000.0, 10.0), (1_005.0, 19.0), None, 0.01),
        ((None, 10.0), (None, 19.0), None, 0.01),
    ],
)
def test_the_start_of_the_program_is_subtracted(
    first: tuple[float | None, float], second: tuple[float | None, float],
    energy_j: float | None, latency_s: float | None, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Promise: the difference of 1,000 and 100 counts; an unclear difference is unknown."""
    asked: list[str] = []

    def measured(command: list[str], *_: object) -> RunResult:
        asked.append(command[1])
        return ran(*first) if command[1] == "100" else ran(*second)

    monkeypatch.setattr(card, "_ran", measured)
    found = measured_inference(["infer", "{n}"], 1_000, None)  # type: ignore[arg-type] # not used
    assert asked == ["100", "1000"]
    assert (found.energy_j, found.latency_s) == (
        pytest.approx(energy_j) if energy_j else None,
        pytest.approx(latency_s) if latency_s else None,
    )
    assert bool(found.reason) == (energy_j is None)
    assert found.node_energy_j == (pytest.approx(2 * energy_j) if energy_j else None)


def test_a_command_that_does_not_say_how_many_counts_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promise: without {n} the start of the program is included, and the card says so."""
    monkeypatch.setattr(card, "_ran", lambda *_: ran(500.0, 5.0))
    found = measured_inference(["infer"], 100, None)  # type: ignore[arg-type] # not used
    assert (found.energy_j, found.latency_s) == (5.0, 0.05)
    assert found.method == "with the start of the program"
    assert "{n}" in found.notes[0]


def test_a_command_that_fails_makes_no_card() -> None:
    """Promise: the energy of a partial run is not divided by all inferences."""
    from wattloop.core.settings import Settings

    with pytest.raises(ConfigError, match="--inference: no-such-program"):
        measured_inference(["no-such-program"], 10, Settings())


def test_steps_and_phases_are_on_the_card() -> None:
    """Promise: counts, joules per step, sample and token, phases with energy; a run without steps
    says so.
    """
    phases = (Phase("start-up", 6.0, 300.0, 1), Phase("waiting for data", 4.0, None, 3))
    totals = StepTotals(4, 1.0, 300.0, samples=32.0, tokens=1_200.0, phases=phases)
    made = card_of(trained(), None, NOWHERE, totals=totals)
    assert (made.figure("steps").value, made.figure("tokens").shown) == (4, "1,200")
    assert made.figure("step_j").provenance == "measured"
    assert (made.figure("sample_j").value, made.figure("token_j").value) == (37.5, 1.0)
    assert made.figure("tokens_per_j").unit == "1/J"
    assert made.figure("phase_start-up").note == "60% of the time"
    assert made.figure("phase_waiting_for_data").value is None
    assert "Energy per token" in card_svg(made)
    assert "| Start-up | **300 J** |" in card_markdown(made)
    without = card_of(trained(), None, NOWHERE)
    assert without.figure("steps").note == card.NO_STEPS
