"""Promise: damage to a journal never loses a previous value without a message.

Under any damage to one of its two files, the previous value is restored. Where both are damaged it
is restored as well, or the uncertainty is reported and nothing is written.
"""

import itertools
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.conftest import Rig, eventually
from tests.control.test_session import LIMIT, SLEEPER, is_back
from wattloop.control.journal import (
    Journal,
    JournalEntry,
    journal_files,
    journal_path,
    read_journal,
)
from wattloop.control.lock import Owner
from wattloop.control.restore import RestoreStatus, restore
from wattloop.control.session import lever_session
from wattloop.core.errors import LeverError

DEAD = Owner(2**22 + 1, 1, Owner.this_process().boot_id, "sweep", "root", 0.0)

LINES = 4
"""Of the journal: header, first setting, that it is back, second setting."""


@pytest.fixture
def leftover(rig: Rig) -> list[Path]:
    """Return both files of a journal: 150 W before, then 90 W, restored, and 80 W at the kill."""
    lever = rig.lever(LIMIT)
    rig.state.mkdir()
    entry = JournalEntry(LIMIT, lever.device, "W", {"": 150.0})
    journal = Journal.create(journal_path(rig.state, DEAD), DEAD, {lever: entry}, lever.where())
    journal.about_to_set({LIMIT: {"": 90.0}})
    journal.done(LIMIT, "")
    journal.about_to_set({LIMIT: {"": 80.0}})
    journal.close()
    rig.put_limit_w(80)
    files = journal_files(journal.path)
    assert len(files) == 2
    assert files[0].parent != files[1].parent
    return files


def changed_bytes(data: bytes) -> Iterator[bytes]:
    """Return the bytes cut at every place, and with every byte changed: one bit, all bits, a
    newline.
    """
    for position in range(len(data)):
        yield data[:position]
        for other in (data[position] ^ 1, data[position] ^ 0xFF, 0x0A):
            yield data[:position] + bytes([other]) + data[position + 1 :]


def changed_lines(data: bytes) -> list[bytes | None]:
    """Return the file missing (None), empty, and with any set of lines missing or overwritten."""
    lines = data.splitlines(keepends=True)
    assert len(lines) == LINES
    changes: list[bytes | None] = [None, b""]
    for kinds in itertools.product(["keep", "drop", "rubbish"], repeat=LINES):
        kept = {"keep": lambda line: line, "drop": lambda _: b"", "rubbish": lambda _: b"rubbish\n"}
        changes.append(b"".join(kept[kind](x) for kind, x in zip(kinds, lines, strict=True)))
    return changes


def put(file: Path, data: bytes | None) -> None:
    file.parent.mkdir(exist_ok=True, mode=0o700)
    if data is None:
        file.unlink(missing_ok=True)
    else:
        file.write_bytes(data)
        file.chmod(0o644)


@pytest.mark.parametrize("damaged", [0, 1], ids=["journal", "copy"])
def test_no_change_of_one_file_loses_the_previous_value(leftover: list[Path], damaged: int) -> None:
    """At every byte the previous value is known, and that it has to be restored."""
    data = leftover[damaged].read_bytes()
    for change in changed_bytes(data):
        put(leftover[damaged], change)
        (entry,) = read_journal(leftover[0]).pending()
        assert entry.previous == {"": 150.0}
        assert 80.0 in entry.ours[""]


@pytest.mark.parametrize("damaged", [0, 1], ids=["journal", "copy"])
def test_damaged_lines_of_one_file_are_restored_from_the_other(
    rig: Rig, leftover: list[Path], damaged: int
) -> None:
    """Any lines missing or destroyed, or the whole file:

    150 W is restored, and both files are removed.
    """
    before = [file.read_bytes() for file in leftover]
    for change in changed_lines(before[0]):
        for file, data in zip(leftover, before, strict=True):
            put(file, data)
        put(leftover[damaged], change)
        rig.put_limit_w(80)
        assert [result.fate for result in restore(rig.state)] == [RestoreStatus.RESTORED], change
        assert rig.limit_w() == 150
        assert journal_files(leftover[0]) == []


def leaves_no_trace(before: bytes, *changes: bytes | None) -> bool:
    """Return true if both lack the last record without a trace while one looks whole, or all is
    missing.
    """
    last = before.splitlines()[-1]
    if any(change and (last in change or change.endswith(b"rubbish\n")) for change in changes):
        return False
    if not all(changes):
        return not any(changes)
    return any(change and before.startswith(change) for change in changes)


def test_damage_of_both_files_is_restored_or_said(rig: Rig, leftover: list[Path]) -> None:
    """It is never another value, and never 'nothing to do' while the lever is still set."""
    before = leftover[0].read_bytes()
    changes = changed_lines(before)
    fates = set()
    for one, other in itertools.product(changes[::5], changes[::7]):
        if leaves_no_trace(before, one, other):
            continue
        put(leftover[0], one)
        put(leftover[1], other)
        rig.put_limit_w(80)
        results = restore(rig.state)
        assert results, (one, other)
        fates |= {result.fate for result in results}
        if rig.limit_w() == 80:
            assert all(result.fate is RestoreStatus.FAILED and result.message for result in results)
        else:
            assert rig.limit_w() == 150
            assert [result.fate for result in results] == [RestoreStatus.RESTORED]
        for file in leftover:
            file.unlink(missing_ok=True)
    assert fates == {RestoreStatus.FAILED, RestoreStatus.RESTORED}


@pytest.mark.parametrize("moment", ["created", "removed"])
def test_killed_between_the_two_files(rig: Rig, moment: str) -> None:
    """Promise: a kill while files are created or removed leaves no uncertainty about unread
    levers.
    """
    lever = rig.lever(LIMIT)
    lever.reads_back = False
    rig.state.mkdir()
    entry = JournalEntry(LIMIT, lever.device, "W", {"": 150.0})
    journal = Journal.create(journal_path(rig.state, DEAD), DEAD, {lever: entry}, lever.where())
    first, second = reversed(journal_files(journal.path))
    if moment == "created":
        second.rename(second.with_suffix(".new"))
    else:
        journal._append({"ended": True})
        second.unlink()
    journal.close()
    assert not read_journal(journal.path).pending()
    assert not [result for result in restore(rig.state) if result.fate is RestoreStatus.FAILED]
    assert not first.exists()
    assert not list(rig.state.glob("*.new"))
    with lever_session([rig.lever(LIMIT)], guardian=False):
        pass


def test_doubt_stops_the_next_hold_until_it_is_decided(rig: Rig, leftover: list[Path]) -> None:
    """The lost value may be Wattloop's: the next session must not take it for the previous one."""
    for file in leftover:
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:3]) + b"rubbish\n")
    with pytest.raises(LeverError, match=r"is at 80 W, and its journal has lost a record.* 150"):
        lever_session([rig.lever(LIMIT)], guardian=False).__enter__()
    assert rig.limit_w() == 80
    assert [result.fate for result in restore(rig.state, force=True)] == [RestoreStatus.RESTORED]
    assert rig.limit_w() == 150
    with lever_session([rig.lever(LIMIT)], guardian=False) as held:
        assert held.previous == {LIMIT: 150.0}


def old_line(record: object) -> bytes:
    text = json.dumps(record).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def old_journal(rig: Rig) -> list[bytes]:
    """Return a journal as earlier versions wrote it: one file, records without numbers."""
    lever = rig.lever(LIMIT)
    known = {"name": LIMIT, "device": lever.device, "unit": "W", "previous": {"": 150.0}}
    header = {"version": 1, "owner": DEAD.to_dict(), "environment": dict(lever.where())}
    return [
        old_line({**header, "levers": [known]}),
        old_line({"set": {LIMIT: {"": 90.0}}}),
        old_line({"done": [LIMIT, ""]}),
        old_line({"set": {LIMIT: {"": 80.0}}}),
    ]


def test_journal_of_an_earlier_version_is_restored(rig: Rig) -> None:
    """One file without numbers, undamaged."""
    rig.state.mkdir()
    put(rig.state / "1-1-00000000.journal", b"".join(old_journal(rig)))
    rig.put_limit_w(80)
    assert [result.fate for result in restore(rig.state)] == [RestoreStatus.RESTORED]
    assert rig.limit_w() == 150
    assert rig.journals() == []


@pytest.mark.parametrize(("stands_w", "after_w"), [(90, 150), (80, 80), (150, 150)])
def test_last_record_of_an_earlier_version_destroyed(
    rig: Rig, stands_w: float, after_w: float
) -> None:
    """Earlier records then do not decide: a known value is restored, an unknown one reported."""
    rig.state.mkdir()
    lines = old_journal(rig)
    put(rig.state / "1-1-00000000.journal", b"".join(lines[:3]) + lines[3].replace(b"8", b"7"))
    rig.put_limit_w(stands_w)
    (result,) = restore(rig.state)
    assert rig.limit_w() == after_w
    assert result.fate.settled == (after_w == 150)
    assert len(rig.journals()) == (after_w != 150)


@pytest.mark.parametrize("deleted", ["journal", "copy", "folder"])
@pytest.mark.parametrize("guardian", ["1", "0"], ids=["guardian", "no guardian"])
def test_deleted_during_a_hold_and_killed(rig: Rig, deleted: str, guardian: str) -> None:
    """The other file is used: by the watchdog, or by the next `restore` after all was killed."""
    owner = rig.start(SLEEPER, WATTLOOP_GUARDIAN=guardian)
    (journal,) = rig.journals()
    files = journal_files(journal)
    assert {result.fate for result in restore(rig.state)} == {RestoreStatus.IN_USE}
    if deleted == "folder":
        shutil.rmtree(rig.state)
    else:
        files[deleted == "copy"].unlink()
    assert {result.fate for result in restore(rig.state)} == {RestoreStatus.IN_USE}, (
        "its owner lives"
    )
    owner.kill()
    owner.wait()
    if guardian == "0":
        assert {result.fate for result in restore(rig.state)} == {RestoreStatus.RESTORED}
    assert eventually(lambda: is_back(rig))
    assert eventually(lambda: journal_files(journal) == [])


def test_place_for_copies_that_cannot_be_used_is_said(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file is better than no session; the problem is reported once, with the remedy."""
    blocked = rig.folder / "file"
    blocked.touch()
    monkeypatch.setenv("WATTLOOP_STATE_COPY_DIR", str(blocked))
    said: list[str] = []
    for _ in range(2):
        with lever_session([rig.lever(LIMIT)], guardian=False, report=said.append) as held:
            held.set({LIMIT: 90.0})
            assert len(journal_files(rig.journals()[0])) == 1
    assert rig.limit_w() == 150
    (line,) = said
    assert "journaled once instead of twice" in line
    assert "WATTLOOP_STATE_COPY_DIR" in line


def test_folder_for_copies_is_for_this_user_only(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that others may write to, they could remove or replace the copy."""
    with lever_session([rig.lever(LIMIT)], guardian=False):
        copy = journal_files(rig.journals()[0])[1]
        assert copy.parent.stat().st_mode & 0o077 == 0
        assert copy.parent.stat().st_uid == os.geteuid()
    assert not copy.parent.exists(), "nothing is left behind"
    rig.copies.chmod(0o777)
    said: list[str] = []
    with lever_session([rig.lever(LIMIT)], guardian=False, report=said.append):
        assert len(journal_files(rig.journals()[0])) == 1
    assert "other users may write" in said[0] or "cannot be used" in said[0]
