"""Stores that are full, damaged, or of a newer release: an error in words, and nothing is lost."""

import json
import resource
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Machine, machine_in
from tests.tune.fault_search import begun, exit_code, in_child, paid_twice, search, trials, winner
from wattloop.cli.main import main
from wattloop.core.errors import StoreError, StoreUnwritable
from wattloop.tune.segment import Segment


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """This very process, on a machine where nothing can be read."""
    (tmp_path / "sys").mkdir()
    machine = machine_in(tmp_path, tmp_path / "sys")
    for name in ("HOME", *(n for n in machine.environment if n.startswith("WATTLOOP"))):
        monkeypatch.setenv(name, machine.environment[name])
    return machine


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system may be mounted here: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


def test_a_disk_that_fills_up(tmp_path: Path, disk: Path) -> None:
    """The current segment is still stored; then it stops with a message, and continues once
    there is room.
    """

    def fill(segment: Segment) -> None:
        if segment.key == "w3/2":
            _fill(disk)

    with pytest.raises(StoreUnwritable, match=r"make room on the disk .* 'wattloop tune resume'"):
        search(tmp_path, during=fill, disk=disk)
    ended = [t.key for t in trials(disk) if t.ended]
    assert "w3/2" in ended
    assert ended == begun(tmp_path), "all that was paid for"
    assert len(ended) < 15
    with pytest.raises(StoreUnwritable, match="make room on the disk"):
        search(tmp_path, disk=disk)
    (disk / "ballast").unlink()
    search(tmp_path, disk=disk)
    assert paid_twice(tmp_path) == []
    assert len(trials(disk)) == 15
    assert winner(tmp_path) == "w5"


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """A quota acts at any write: earlier writes are stored, and it continues afterwards."""

    def limited() -> None:
        def limit(segment: Segment) -> None:
            if segment.key == "w3/2":
                size = (tmp_path / "runs.db").stat().st_size
                resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))

        with pytest.raises(StoreUnwritable, match="make room on the disk"):
            search(tmp_path, during=limit)

    assert exit_code(in_child(limited)) == 0
    ended = [t.key for t in trials(tmp_path) if t.ended]
    assert ended[:2] == ["w1/2", "w2/2"]
    assert ended == begun(tmp_path)[: len(ended)]
    assert len(ended) < 15
    search(tmp_path)
    assert paid_twice(tmp_path) == []
    assert winner(tmp_path) == "w5"


@pytest.mark.parametrize("damage", ["text", "torn", "newer"])
def test_stores_that_cannot_be_read(
    here: Machine, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and what to do, whatever is asked of them; the file is left as it is."""
    search(here.folder)
    said, spoil = DAMAGES[damage]
    spoil(here.store)
    before = here.store.read_bytes()
    for words in (["list"], ["show", "last"], ["best"], ["resume"], ["export", "last"]):
        assert main(["tune", *words]) == 2, words
        message = capsys.readouterr().err
        assert str(here.store) in message
        assert said in message
    assert here.store.read_bytes() == before


def _text(path: Path) -> None:
    path.write_bytes(b"runs, kept by hand\n" * 1_000)


def _torn(path: Path) -> None:
    """Every page but the first holds something else."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    database.close()


DAMAGES = {
    "text": ("is not a SQLite database", _text),
    "torn": ("is damaged", _torn),
    "newer": ("pip install -U wattloop", _newer),
}


def test_trials_of_a_newer_release(here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown fields stay unchanged, and an unknown status is reported."""
    interrupted(here.folder)
    _edit(here.store, lambda body: body["outcome"]["curve"][0].update(carbon_g=1.0))
    _edit(here.store, lambda body: body["settings"]["segment"]["until"].update(carbon_g=1.0))
    assert main(["tune", "show", "last"]) == 0
    search(here.folder)
    assert winner(here.folder) == "w5"
    _edit(here.store, lambda body: body.update(status="hibernated"))
    capsys.readouterr()
    assert main(["tune", "show", "last"]) == 2
    message = capsys.readouterr().err
    assert "w1/2" in message
    assert "newer Wattloop" in message


def test_a_trial_that_was_edited_by_hand(here: Machine) -> None:
    """An unreadable trial is named, and no training is repeated in its place."""
    interrupted(here.folder)
    with sqlite3.connect(here.store) as database:
        database.execute("UPDATE trials SET body = '{' WHERE key = 'w1/2'")
    database.close()
    with pytest.raises(StoreError, match="w1/2"):
        search(here.folder)
    assert paid_twice(here.folder) == []


def interrupted(folder: Path) -> None:
    """The search, stopped after a few segments."""

    def stop(segment: Segment) -> None:
        if segment.key == "w4/2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(folder, during=stop)


def _edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the first trial as another release would have written it."""
    with sqlite3.connect(path) as database:
        (text,) = database.execute("SELECT body FROM trials WHERE key = 'w1/2'").fetchone()
        body = json.loads(text)
        change(body)
        database.execute("UPDATE trials SET body = ? WHERE key = 'w1/2'", (json.dumps(body),))
    database.close()


def _fill(disk: Path) -> None:
    with (disk / "ballast").open("ab", buffering=0) as file:
        for size in (65_536, 4_096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
