"""`wattloop advise` on a real store, through the real entry point."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.virtual_runs import CardScript, RunScript, Work, write_run
from wattloop.cli.commands.run.execution import keep
from wattloop.cli.main import main
from wattloop.core.settings import Settings
from wattloop.measure.session import RunResult
from wattloop.store.database import open_store
from wattloop.store.runs import RunRecord, find_run, insert_run
from wattloop.virtual.gpu import IDLE, Activity

BUSY = CardScript([Work(1.0, Activity(1.0, 0.2, 1.0)), Work(39.0, IDLE)])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A healthy run, and one with an idle GPU."""
    path = str(tmp_path / "runs.db")
    monkeypatch.setenv("WATTLOOP_STORE", path)
    monkeypatch.chdir(tmp_path)
    with open_store(path) as store:
        for run_id, cards in (("healthy", (BUSY,)), ("wasteful", (BUSY, CardScript()))):
            script = RunScript(run_id=run_id, duration_s=40.0, interval_s=0.5, cards=cards)
            write_run(store, script)
    return path


@pytest.mark.usefixtures("place")
def test_advice_is_printed_with_evidence_source_and_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Promise: a person reads what, how much, how we know, and what to type."""
    assert main(["advise", "wasteful"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1. GPU 1 idle 100% of the time: about ")
    for word in ("seen: GPU 1: no work", "saving: by the readings", "try: CUDA_VISIBLE_DEVICES=0"):
        assert word in out


@pytest.mark.usefixtures("place")
def test_json_has_the_advice_and_the_rules_that_looked(capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: `--json -` is all of standard output, also when there is nothing to say."""
    assert main(["advise", "wasteful", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["run_id"], [one["rule"] for one in data["advice"]]) == ("wasteful", ["idle-gpu"])
    assert "cap-too-high" in data["rules"]
    assert main(["advise", "healthy", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["advice"], data["reason"]) == ([], "")
    assert {"rule": "idle-gpu", "lacked": ""} in data["silent"]


@pytest.mark.usefixtures("place")
def test_nothing_to_say_and_an_unknown_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Promise: silence is explained on standard error; an unknown run is exit code 2."""
    assert main(["advise", "healthy"]) == 0
    said = capsys.readouterr()
    assert (said.out, "nothing to advise" in said.err) == ("", True)
    assert "looked and found nothing: idle-gpu, " in said.err
    assert "the run is shorter than 60 s: compile-share, startup-share" in said.err
    assert main(["advise", "nowhere"]) == 2
    assert "no run 'nowhere'" in capsys.readouterr().err


def test_a_run_that_cannot_be_judged_says_why(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: a run without energy gets the reason instead of a list of rules."""
    with open_store(place) as store:
        insert_run(store, RunRecord(run_id="bare", command=["x"]))
    assert main(["advise", "bare", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["silent"], data["reason"]) == ([], "no energy was measured")


def test_a_run_without_readings_is_not_called_free_of_waste(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: where every rule lacks its data, the output says so."""
    with open_store(place) as store:
        insert_run(store, replace(find_run(store, "healthy"), run_id="total"))  # no samples
    assert main(["advise", "total"]) == 0
    said = capsys.readouterr().err
    assert "no rule had the readings it needs" in said
    assert not [line for line in said.splitlines() if line.endswith("-")]  # names stay whole
    assert main(["advise", "healthy"]) == 0
    assert "no rule found waste" in capsys.readouterr().err


@pytest.mark.usefixtures("place")
def test_a_name_is_the_newest_run_called_so_but_never_to_delete(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Promise: a user's name finds the run; commands that delete accept identifiers only."""
    assert main(["advise", "train", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["run_id"] in ("healthy", "wasteful")
    assert main(["runs", "show", "train"]) == 0
    assert main(["runs", "delete", "train", "--yes"]) == 2
    assert main(["runs", "show", "*"]) == 2


def test_the_summary_of_a_run_has_the_best_advice(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: for a stored run of 20 s and more, at most two lines and where the rest is."""
    with open_store(place) as store:
        from wattloop.store.runs import find_run

        record = find_run(store, "wasteful")
    assert record.result is not None
    run = RunResult(
        run_id="wasteful",
        status=record.status,
        exit_code=0,
        signal=None,
        started_wall_s=record.started_wall_s,
        result=record.result,
    )
    keep(Settings(store=place), run)
    said = capsys.readouterr().err
    assert "advice: GPU 1 idle 100% of the time: about" in said
    assert "wattloop advise wasteful" in said
    begin_s = record.result.begin_s
    short = run._replace(result=record.result._replace(end_s=begin_s + 5))
    keep(Settings(store=place), short)
    assert "advice" not in capsys.readouterr().err
