"""Promises of the oracle section of a scenario file."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.schedule.estimates.clusters import VIT, thesis_cluster
from wattloop.schedule.estimates.noisy import NoisyOracle
from wattloop.schedule.estimates.spec import OracleSpec
from wattloop.schedule.jobs import JobKind


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_nothing_said_is_analytic_and_exact() -> None:
    """The default predicts without noise: policies get the true values."""
    spec = OracleSpec()
    truth = spec.truth(thesis_cluster())
    assert (truth.name, spec.seen(truth, 1)) == ("analytic", truth)


def test_noise_as_people_write_it() -> None:
    """10% is a share of 0.1, drawn from the seed of the simulation."""
    spec = OracleSpec.model_validate({"kind": "analytic", "noise": "10%"})
    seen = spec.seen(spec.truth(thesis_cluster()), 4)
    assert isinstance(seen, NoisyOracle)
    assert seen.share == pytest.approx(0.1)


def test_analytic_tables_are_kept_for_other_processes(tmp_path: Path) -> None:
    """Worker processes of a campaign find the options on disk."""
    OracleSpec().truth(thesis_cluster()).options(VIT)
    assert list((tmp_path / "wattloop" / "options").glob("*.json"))


def test_one_word_is_the_kind() -> None:
    """`oracle: table` is the shipped table, which every machine has."""
    spec = OracleSpec.model_validate("table")
    options = spec.truth(thesis_cluster()).options(
        JobKind("resnet-50", "", (1, 2, 4, 8), (32, 64), (1.0, 0.6))
    )
    assert len(options) == 2 * 4 * 2 * 2


def test_files_are_found_from_the_scenario() -> None:
    """Relative paths start at the scenario, absolute ones stay."""
    spec = OracleSpec.model_validate(
        {"kind": "table", "throughputs": "t.csv", "cap_curves": ["/c.csv"]}
    )
    assert [str(path) for path in spec.located(Path("/s")).files()] == ["/s/t.csv", "/c.csv"]


def test_a_folder_of_curves_is_its_files(tmp_path: Path) -> None:
    """A fingerprint of a scenario's inputs reads each of its files."""
    (tmp_path / "power_v100.csv").write_text("")
    (tmp_path / "notes.txt").write_text("")
    spec = OracleSpec.model_validate(
        {"kind": "table", "throughputs": "/t.csv", "cap_curves": str(tmp_path)}
    )
    assert spec.files() == [Path("/t.csv"), tmp_path / "power_v100.csv"]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"kind": "oracle"}, "analytic"),
        ({"noise": 1.5}, "less than 1"),
        ({"noise": "-3%"}, "greater than or equal to 0"),
        ({"noize": 0.1}, "noize"),
        ({"kind": "table", "estimator": "adept"}, "estimator is for kind: analytic"),
        ({"throughputs": "t.csv"}, "throughputs is for kind: table"),
        ({"kind": "table", "cap_curves": "c.csv"}, "cap_curves go with throughputs"),
        ({"kind": "table", "throughputs": "t", "nearest": {"a": "b"}}, "nearest chooses among"),
    ],
)  # fmt: skip
def test_faults_say_what_to_write(section: dict[str, Any], said: str) -> None:
    """Typing errors and fields of the other kind are refused, with the remedy."""
    with pytest.raises(ValidationError, match=said):
        OracleSpec.model_validate(section)
