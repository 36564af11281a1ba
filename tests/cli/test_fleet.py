"""Promises of `wattloop fleet`: secrets are shown once, mistakes are exit code 2."""

import json
import stat
from pathlib import Path

import pytest

from wattloop.cli.main import main
from wattloop.store.database import open_store
from wattloop.store.journal_import import import_orphaned
from wattloop.testing.journals import close_journal, ended, header, write_journal


def test_tokens_are_made_listed_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For many nodes at once, into files that only their owner reads."""
    file, out = str(tmp_path / "tokens.json"), tmp_path / "secrets"
    nodes = ["--node", "n1", "--node", "n2"]
    assert main(["fleet", "tokens", "add", "--file", file, *nodes, "--out", str(out)]) == 0
    made = sorted(out.iterdir())
    assert [path.name for path in made] == ["n1.token", "n2.token"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in made)
    assert stat.S_IMODE(Path(file).stat().st_mode) == 0o600
    reader = ["--role", "reader", "--name", "ada", "--json", "-"]
    capsys.readouterr()
    assert main(["fleet", "tokens", "add", "--file", file, *reader]) == 0
    secret = json.loads(capsys.readouterr().out)[0]["token"]
    assert main(["fleet", "tokens", "list", "--file", file, "--json", "-"]) == 0
    listed = capsys.readouterr().out
    assert [(t["name"], t["role"]) for t in json.loads(listed)] == [
        *(("n1", "node"), ("n2", "node"), ("ada", "reader")),
    ]
    assert secret not in listed
    assert main(["fleet", "tokens", "revoke", "n1", "--file", file]) == 0
    assert "n1" not in Path(file).read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["--role", "king", "--name", "x"],
        ["--role", "node", "--name", "x"],
        ["--role", "reader", "--node", "n1"],
        ["--node", "../n1"],
        ["--role", "reader"],
    ],
)
def test_tokens_that_make_no_sense_are_refused(tmp_path: Path, words: list[str]) -> None:
    """Exit code 2, and no file."""
    file = tmp_path / "tokens.json"
    assert main(["fleet", "tokens", "add", "--file", str(file), *words]) == 2
    assert not file.exists()


def test_a_name_is_given_once(tmp_path: Path) -> None:
    """A second token of the same name would make logs say less than they seem to."""
    words = ["fleet", "tokens", "add", "--file", str(tmp_path / "t.json"), "--node", "n1"]
    assert (main(words), main(words)) == (0, 2)


def test_what_would_go_is_said_before_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--dry-run` counts the same as what then happens."""
    place = str(tmp_path / "runs.db")
    with open_store(place) as store:
        head = {**header("r1"), "started_wall_s": 1_700_000_000.0}
        write_journal(store.journals, "r1", seconds=60, head=head, end=ended())
        import_orphaned(store, close_journal)
    found = []
    for extra in (["--dry-run"], []):
        words = ["fleet", "retain", "--samples", "0s", "--store", place, "--json", "-", *extra]
        assert main([*words]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] | {"dry_run": False} == found[1]
    assert found[1]["samples"] == 1
    assert main(["fleet", "retain", "--samples", "soon", "--store", place]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--samples", "x"], "--samples: 'x' is not an age; write 12h, 30d, 1y or forever"),
        (["--samples", "1d", "--runs", "y"], "--runs: 'y' is not an age"),
        (["--samples", "1d,runs=1d"], "--samples: '1d,runs=1d' is not an age"),
        (["--samples", "1y", "--levels", "1d"], "--samples 1y --levels 1d: retention: samples go"),
    ],
)
def test_an_age_that_is_none_is_named_by_its_option(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong `--samples` is not reported as `--retain`, which this command does not have."""
    place = str(tmp_path / "runs.db")
    open_store(place).close()
    assert main(["fleet", "retain", *words, "--store", place]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "--retain" not in told


def test_how_long_things_are_kept_may_stand_in_the_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """File, then environment, then options; a mistake is named with its place, nothing goes."""
    place, config = str(tmp_path / "runs.db"), tmp_path / "wattloop.yaml"
    with open_store(place) as store:
        head = {**header("r1"), "started_wall_s": 1_700_000_000.0}
        write_journal(store.journals, "r1", seconds=60, head=head, end=ended())
        import_orphaned(store, close_journal)

    def would_go(*words: str) -> dict[str, int]:
        given = ["fleet", "retain", "--dry-run", "--store", place, "--json", "-", *words]
        assert main([*given, "--config", str(config)]) == 0
        found: dict[str, int] = json.loads(capsys.readouterr().out)
        return {name: count for name, count in found.items() if name in ("samples", "runs")}

    config.write_text("retain: samples=1d\n")
    assert would_go() == {"samples": 1, "runs": 0}
    monkeypatch.setenv("WATTLOOP_RETAIN", "runs=1d,levels=1d,samples=1d")
    assert would_go() == {"samples": 0, "runs": 1}
    assert would_go("--samples", "1d") == {"samples": 1, "runs": 0}
    monkeypatch.delenv("WATTLOOP_RETAIN")
    config.write_text("pue: 1.2\nretain: samples=soon\n")
    assert main(["fleet", "retain", "--store", place, "--config", str(config)]) == 2
    assert "wattloop.yaml:2" in capsys.readouterr().err
    config.write_text("pue: 1.2\n")
    assert main(["fleet", "retain", "--store", place, "--config", str(config)]) == 2
    assert "retain: samples=30d" in capsys.readouterr().err
