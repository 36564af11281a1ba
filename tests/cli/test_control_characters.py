"""Texts of others are shown by a terminal, never obeyed; cells of exports are not formulas."""

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from tests.store.test_job_queries import record
from wattloop.cli.output import TerminalText, print_rows, say
from wattloop.core.table import csv_text
from wattloop.core.text import escaped, replaced, replaced_in_json
from wattloop.store.database import open_store
from wattloop.store.runs import find_run, insert_run
from wattloop.store.schema import runs

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\rok\x08\u202e"
CONTROLS = {chr(n) for n in (*range(0x20), *range(0x7F, 0xA0), 0x202E)} - {"\n", "\t"}


def _in_terminal(*words: str) -> str:
    """Return the bytes that a verb sends to a pseudo-terminal."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "wattloop", *words]
    process = subprocess.Popen(command, stdout=follower, stderr=follower, stdin=follower)
    os.close(follower)
    parts = []
    while True:
        try:
            part = os.read(leader, 65_536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(leader)
    process.wait()
    return b"".join(parts).decode()


def _evil_store(path: Path) -> str:
    """A run whose texts an earlier release stored as they came."""
    with open_store(path) as store:
        insert_run(store, record(1))
        found = find_run(store, "last")
        with store.writing() as connection:
            body = json.loads(connection.execute(select(runs.c.body)).scalar_one())
            body |= {"name": EVIL, "command": ["python", EVIL], "tags": {"project": EVIL}}
            values = {"body": json.dumps(body), "name": EVIL}
            connection.execute(update(runs).values(**values))
    return found.run_id


@pytest.mark.parametrize("verb", [("list",), ("show", "last")])
def test_a_terminal_obeys_nothing_that_is_stored(tmp_path: Path, verb: tuple[str, ...]) -> None:
    """Only our own styles and line ends reach it."""
    path = tmp_path / "runs.db"
    _evil_store(path)
    text = _in_terminal("runs", *verb, "--store", str(path)).replace("\r\n", "\n")
    for style in ("\x1b[1m", "\x1b[3m", "\x1b[0m"):
        text = text.replace(style, "")
    assert "ok" in text
    assert not CONTROLS & set(text), ascii(text)


def test_what_is_stored_and_read_has_no_control_characters(tmp_path: Path) -> None:
    """On the way in, and on the way out of a store of an earlier release."""
    with open_store(tmp_path / "new.db") as store:
        insert_run(store, record(1, name=EVIL, tags={"project": EVIL}, command=[EVIL, "a\nb"]))
        with store.reading() as connection:
            name, body = connection.execute(select(runs.c.name, runs.c.body)).one()
        assert not CONTROLS & set(name + json.dumps(json.loads(body), ensure_ascii=False))
        assert find_run(store, "last").command == [replaced(EVIL), "a\nb"]
    run_id = _evil_store(tmp_path / "old.db")
    with open_store(tmp_path / "old.db") as store:
        assert find_run(store, run_id).name == replaced(EVIL)


def test_json_keeps_everything_else() -> None:
    r"""A backslash before `u001b` is text, and stays."""
    for text in ("C:\\u001b", "\\\x1b", "\\\\\x1b\\", "\n\t é 😀", EVIL, "\\r", "\r"):
        assert json.loads(replaced_in_json(json.dumps(text))) == replaced(text)


def test_every_message_and_table_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Escaped where it is printed, whatever prints it."""
    say(EVIL)
    print_rows(("name\x1b[2J",), [(EVIL,), ("two\nlines",)], title=EVIL)
    found = capsys.readouterr()
    assert not CONTROLS & set(found.out + found.err)
    assert "\\x1b[2J" in found.out and "two\\nlines" in found.out
    stream = io.StringIO()
    TerminalText(stream).write(f"\x1b[1mbold\x1b[0m\r\x1b[2K{EVIL}")
    assert stream.getvalue().startswith("\x1b[1mbold\x1b[0m\r\x1b[2K\\x1b]0;owned\\x07\\x1b[2J")
    assert escaped("plain é\n") == "plain é\n"


@pytest.mark.parametrize("text", ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "=cmd|' /C calc'!A0"])
def test_no_cell_is_a_formula(text: str) -> None:
    """Of every export: they share one writer. Numbers stay numbers."""
    rows: list[Any] = [{"a": text, "b": -1.5}, {"a": "-1.5", "b": None}]
    header, first, second = csv.reader(io.StringIO(csv_text(["a", "b", text], rows)))
    assert header == ["a", "b", f"'{text}"]
    assert first[:2] == [f"'{text}", "-1.5"]
    assert second[:2] == ["-1.5", ""]


def test_all_exports_share_the_writer() -> None:
    """No verb writes CSV by itself; job tables and replays are files that Wattloop reads again."""
    source = Path(__file__).parents[2] / "src" / "wattloop"
    own = {"core/table.py", "schedule/jobs/table.py", "meters/replay.py"}
    found = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if "csv.writer(" in (text := path.read_text()) or "csv.DictWriter(" in text
    }
    assert found == own
