import json
import os

import pytest

from tests.accounting.windows import domain, window
from wattloop.accounting.idle import IdleRecord, fit_idle, idle_path, load_idle, save_idle
from wattloop.core.errors import StoreError, StoreTooNew, StoreUnwritable

DAY_S = 86_400


@pytest.fixture
def record():
    fit = fit_idle(lambda s: window(s, domain("gpu:0", 3 + 40 * s + s % 3)), (1, 2, 4, 8))
    return IdleRecord("abc", "node1", "6.1.0", 1_700_000_000.0, fit.lines)


def test_lines_come_back_as_they_were_saved(tmp_path, record):
    """Coefficients, uncertainty, source, provenance, date and kernel survive."""
    path = idle_path(str(tmp_path / "deep" / "runs.db"), "abc")
    save_idle(path, record)
    assert path == tmp_path / "deep" / "idle" / "abc.json"
    assert load_idle(path) == record
    assert [p.name for p in path.parent.iterdir()] == ["abc.json"]


def test_a_machine_without_lines_has_none(tmp_path):
    """A missing file is not an error."""
    assert load_idle(tmp_path / "none.json") is None


def test_a_name_cannot_leave_the_directory(tmp_path):
    """A host name with slashes stays a file name."""
    assert idle_path(str(tmp_path / "runs.db"), "../../etc/x").parent == tmp_path / "idle"


def test_a_database_url_keeps_lines_in_the_data_directory(monkeypatch, tmp_path):
    """A PostgreSQL store has no directory of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = idle_path("postgresql://host/db", "abc")
    assert path == tmp_path / "wattloop" / "idle" / "abc.json"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"version": 1, "machine_id": "a"}', "\x00\x01", '"x"'],
)
def test_a_damaged_file_says_what_to_do(tmp_path, text):
    """The error shows no traceback of the JSON library."""
    path = tmp_path / "abc.json"
    path.write_text(text)
    with pytest.raises(StoreError, match="run 'wattloop idle'"):
        load_idle(path)


def test_a_line_without_enough_points_is_damage(tmp_path, record):
    """A file edited by hand cannot lead to a division by zero later."""
    path = tmp_path / "abc.json"
    save_idle(path, record)
    data = json.loads(path.read_text())
    data["domains"]["gpu:0"]["points"] = 2
    path.write_text(json.dumps(data))
    with pytest.raises(StoreError, match="too few points"):
        load_idle(path)


def test_a_file_of_a_newer_version_is_left_alone(tmp_path):
    """The error names the version instead of misreading the file."""
    path = tmp_path / "abc.json"
    path.write_text('{"version": 99}')
    with pytest.raises(StoreTooNew, match="newer Wattloop"):
        load_idle(path)


def test_a_directory_in_the_place_of_the_file_is_reported(tmp_path, record):
    """Reading and writing both name the path and the reason, and leave no temporary file."""
    path = tmp_path / "abc.json"
    path.mkdir()
    with pytest.raises(StoreError, match="cannot be read"):
        load_idle(path)
    with pytest.raises(StoreUnwritable, match="cannot be written"):
        save_idle(path, record)
    assert [p.name for p in tmp_path.iterdir()] == ["abc.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path, record, monkeypatch):
    """The replacement is atomic: until it happens the old lines are there."""
    path = tmp_path / "abc.json"
    save_idle(path, record)

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnwritable, match="No space left"):
        save_idle(path, record._replace(host="other"))
    assert load_idle(path) == record
    assert [p.name for p in tmp_path.iterdir()] == ["abc.json"]


def test_results_say_how_old_the_line_is(record):
    """The age is always shown; an old line or another kernel asks for a new fit."""
    start = record.fitted_wall_s
    assert record.note(start + 3 * DAY_S) == "idle line fitted 2023-11-14 (3 days ago)"
    assert "old, run 'wattloop idle'" in record.note(start + 200 * DAY_S)
    assert "on kernel 6.1.0, now 6.9" in record.note(start, "6.9")
    assert "(0 days ago)" in record.note(start - DAY_S)
