"""Promises of results: the fields that programs rely on, and no joule counted twice."""

import json

from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, Missing, RunStatus, WindowResult
from wattloop.measure.session import RunResult


def run(*, counted: bool = True, energy_j: float | None = 10.0) -> RunResult:
    domain = DomainEnergy(
        name="cpu:0/package",
        scope=Scope.CPU,
        energy_j=energy_j,
        uncertainty_j=1.0,
        provenance=Provenance.MEASURED,
        source="test",
    )
    result = WindowResult(
        name="r",
        window_id=0,
        parent_id=None,
        begin_s=0.0,
        end_s=2.0,
        domains=(domain,),
        missing=(Missing("gpu:0", "lost", "reseat it"),),
    )
    return RunResult(
        run_id="20260101-000000-abcdef",
        status=RunStatus.FINISHED,
        exit_code=3,
        signal=None,
        started_wall_s=0.0,
        result=result,
        counted=counted,
        counted_by=None if counted else "other",
    )


def test_json_has_the_promised_fields() -> None:
    """The JSON follows the contract of `wattloop run --json`."""
    data = json.loads(json.dumps(run().to_dict()))
    promised = "run_id exit_code duration_s energy_j complete domains missing carbon_g cost labels"
    assert set(promised.split()) <= set(data)
    assert {"name", "energy_j", "provenance", "uncertainty_j", "source"} <= set(data["domains"][0])
    assert data["missing"] == [{"name": "gpu:0", "reason": "lost", "remedy": "reseat it"}]
    assert (data["exit_code"], data["energy_j"], data["complete"]) == (3, 10.0, False)


def test_run_that_does_not_count_has_no_energy_of_its_own() -> None:
    """Its devices are missing, with the run that counts them."""
    data = run(counted=False).to_dict()
    assert data["energy_j"] is None
    assert data["complete"] is False
    assert data["domains"] == []
    assert "other" in str(data["missing"])


def test_unread_domain_is_not_listed_with_zero() -> None:
    """A missing energy is None."""
    data = run(energy_j=None).to_dict()
    assert data["energy_j"] is None
    assert data["domains"] == []


def test_end_of_the_journal_gives_the_same_result_back() -> None:
    """The store imports the same result that the user saw."""
    end = json.loads(json.dumps(run().to_end_dict()))
    assert WindowResult.from_dict(end["result"]) == run().result
    assert (end["status"], end["exit_code"], end["wall_s"]) == ("finished", 3, 2.0)
