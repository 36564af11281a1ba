"""Promises of `wattloop card`, tested by real processes on a machine of 50 W."""

import json
import sys

import pytest

from .conftest import POWER_W, Machine

NAP = f"{sys.executable} -c 'import time; time.sleep({{n}} / 60)'"


def test_a_card_of_a_run_and_its_inferences(machine: Machine) -> None:
    """Promise: three files; joules of an inference are power times latency, start taken off."""
    machine.wattloop("run", "--name", "tiny", "--zone", "FRA", "--", "true")
    for _ in range(2):  # the second time the last run is one of the first card's
        done = machine.wattloop(
            "card", "--inference", NAP, "--inferences", "100", "-o", "tiny", "--json", "-"
        )
        assert done.returncode == 0, done.stderr
    card = json.loads(done.stdout)
    assert card == json.loads((machine.folder / "tiny.json").read_text())
    assert card["model"] == "tiny"
    figures = card["figures"]
    assert figures["training_energy"]["provenance"] == "measured"
    assert figures["carbon_intensity"]["value"] == pytest.approx(56, rel=0.5)
    assert figures["renewable_share"]["value"] is None
    latency_s = figures["inference_latency"]["value"]
    assert machine.driver is not None
    # 100 inferences take a second at least, in which the counter may be late at both ends
    rel = 0.1 + 2 * machine.driver.longest_s
    assert figures["inference_energy"]["value"] == pytest.approx(POWER_W * latency_s, rel=rel)
    assert (machine.folder / "tiny.svg").read_text().startswith("<svg")
    assert "co2_eq_emissions:" in (machine.folder / "tiny.md").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nobody"], "no runs yet"),
        (["--renewable", "200%"], "at most 100%"),
        (["--renewable", "much"], "write a share"),
        (["--json", "none/x.json"], "no folder"),
    ],
)
def test_bad_input_is_said_with_exit_code_2(
    options: list[str], said: str, here: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: never a traceback."""
    from wattloop.cli.main import main

    assert main(["card", *options]) == 2
    assert said in capsys.readouterr().err


def test_an_inference_that_cannot_run_writes_nothing(machine: Machine) -> None:
    """Promise: a failed command leaves no half a card."""
    machine.wattloop("run", "--", "true")
    for command, said in (("false", b"exit code 1"), ("'", b"--inference"), ("", b"no command")):
        done = machine.wattloop("card", "--inference", command, "-o", "x")
        assert done.returncode == 2
        assert said in done.stderr
    assert not list(machine.folder.glob("x.*"))


def test_formats_for_others(machine: Machine) -> None:
    """Promise: a file per format; a wrong name is refused before anything is written."""
    machine.wattloop("run", "--name", "tiny", "--zone", "FRA", "--", "true")
    words = ["--format", "hf", "--format", "boamps", "--format", "ai-act", "--format", "json-ld"]
    done = machine.wattloop("card", *words, "--state", "parameters=8B", "-o", "tiny")
    assert done.returncode == 0, done.stderr
    for ending in ("hf.md", "boamps.json", "ai-act.md", "jsonld"):
        assert (machine.folder / f"tiny.{ending}").stat().st_size > 100
    refused = machine.wattloop("card", "--format", "pdf", "-o", "other")
    assert refused.returncode != 0
    assert "use hf, boamps, ai-act, json-ld" in refused.stderr.decode()
    assert not list(machine.folder.glob("other*"))
