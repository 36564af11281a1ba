"""Promise: sweeps, searches and campaigns are listed and named alike."""

import json
from pathlib import Path

import pytest

from wattloop.cli.main import main
from wattloop.store.database import open_store
from wattloop.store.experiments import Experiment, create_experiment

KINDS = {"sweep": "sweep", "tune": "search", "simulate": "campaign"}
PLURALS = {"sweep": "sweeps", "tune": "searches", "simulate": "campaigns"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own."""
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "runs.db"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "runs.db"


def keep(place: Path, verb: str, end: str, created_wall_s: float) -> str:
    """One experiment called `caps`."""
    kind = KINDS[verb]
    kept = Experiment(
        experiment_id=f"{kind}-20260101-000000-{end}",
        kind=kind,
        name="caps",
        created_wall_s=created_wall_s,
        status="interrupted",
    )
    with open_store(place) as store:
        create_experiment(store, kept)
    return kept.experiment_id


@pytest.mark.parametrize("verb", KINDS)
def test_a_list_is_newest_first_as_a_table_and_as_json(
    place: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty one says how to begin."""
    assert main([verb, "list"]) == 0
    assert f"no {KINDS[verb]} yet; try: wattloop {verb}" in capsys.readouterr().err
    assert main([verb, "list", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == {PLURALS[verb]: []}
    ids = [keep(place, verb, end, at_s) for end, at_s in (("aaaa", 1.0), ("bbbb", 2.0))]
    assert main([verb, "list"]) == 0
    said = capsys.readouterr().out
    assert said.index("bbbb") < said.index("aaaa")
    assert main([verb, "list", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)[PLURALS[verb]]
    assert [next(v for v in row.values() if v in ids) for row in rows] == ids[::-1]


@pytest.mark.parametrize("verb", KINDS)
def test_of_one_name_the_newest_is_shown_and_the_others_are_named(
    place: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, so that JSON stays JSON; by its identifier each is meant alone."""
    older, newer = (keep(place, verb, end, at_s) for end, at_s in (("aaaa", 1.0), ("bbbb", 2.0)))
    main([verb, "show", "caps"])
    said = capsys.readouterr().err
    assert f"2 are called 'caps'; this is the newest, {newer}" in said
    assert f"the end of it: {older} (1970-01-01T00:00:01" in said
    main([verb, "show", "aaaa"])
    assert "are called" not in capsys.readouterr().err
