"""Promises of `journal_writer`: a frame is in the file at once, or waits for the disk."""

import errno
import os
import resource
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.inherited_files import program_with_copies_of
from wattloop.store.journal import JournalWriter, journal_is_live, lock_journal, read_journal


def test_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    """Two writers cannot share a name."""
    JournalWriter(tmp_path / "a.journal", {"run_id": "r"}).close()
    data = (tmp_path / "a.journal").read_bytes()
    with pytest.raises(FileExistsError):
        JournalWriter(tmp_path / "a.journal", {})
    assert (tmp_path / "a.journal").read_bytes() == data


def test_full_disk_keeps_frames_in_memory_and_writes_them_later(tmp_path: Path) -> None:
    """A disk that fills up and is freed again loses no frame and has no torn frame."""
    path = tmp_path / "a.journal"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writer = JournalWriter(path, {"run_id": "r"})
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
        for i in range(20):
            writer.event({"type": "note", "text": f"{i} " + "x" * 60})
        during = read_journal(path)
        assert writer.fault is not None
        assert during is not None
        assert len(during.events) < 20
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    writer.end({"status": "finished"})
    writer.close()
    journal = read_journal(path)
    assert journal is not None
    assert [int(e["text"].split()[0]) for e in journal.events] == list(range(20))
    assert journal.end == {"status": "finished"}
    assert journal.torn_bytes == 0
    assert writer.fault is None


def test_disk_without_room_for_the_header_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """A run that cannot be stored says so at once."""
    path = tmp_path / "a.journal"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        with pytest.raises(OSError, match=r"a\.journal"):
            JournalWriter(path, {"run_id": "r"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert not path.exists()


def test_disk_that_stays_full_bounds_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest frames are dropped, and counted, rather than filling the memory."""
    from wattloop.store import journal as module

    monkeypatch.setattr(module, "BACKLOG_LIMIT_B", 4_000)
    writer = JournalWriter(tmp_path / "a.journal", {})
    full = os.open("/dev/full", os.O_WRONLY)
    kept, writer._fd = writer._fd, full
    for _ in range(100):
        writer.event({"text": "x" * 100})
    assert writer.fault is not None
    assert os.strerror(errno.ENOSPC) in writer.fault
    assert writer.dropped_frames > 50
    os.close(kept)
    writer.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write read-only folders")
def test_read_only_folder_is_an_oserror_for_ordinary_users(tmp_path: Path) -> None:
    """The session turns the error into a note."""
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        JournalWriter(tmp_path / "a.journal", {})


def test_folder_that_is_a_file_is_an_oserror(tmp_path: Path) -> None:
    """A store below a file cannot be created."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        JournalWriter(tmp_path / "file" / "a.journal", {})


def test_forked_child_lets_go_without_writing(tmp_path: Path) -> None:
    """`abandon` in a child neither writes nor releases the parent's lock."""
    writer = JournalWriter(tmp_path / "a.journal", {})
    pid = os.fork()
    if pid == 0:
        writer.abandon()
        writer.event({"type": "note", "text": "from the child"})
        os._exit(0)
    os.waitpid(pid, 0)
    assert journal_is_live(tmp_path / "a.journal")
    writer.close()
    journal = read_journal(tmp_path / "a.journal")
    assert journal is not None
    assert journal.events == []


def test_closed_journal_can_be_imported_while_a_program_has_a_copy_of_it(tmp_path: Path) -> None:
    """A program that another thread starts has a copy until it executes."""
    path = tmp_path / "a.journal"
    writer = JournalWriter(path, {})
    with program_with_copies_of(path):
        writer.close()
        assert not journal_is_live(path)
        with lock_journal(path) as refusal:
            assert refusal is None
    with ExitStack() as programs:
        with lock_journal(path):
            programs.enter_context(program_with_copies_of(path))
        again = JournalWriter.reopened(path)
        assert again is not None, "the importer's lock is free, too"
        again.close()


def test_record_is_in_the_file_when_the_call_returns(tmp_path: Path) -> None:
    """No record waits in a buffer: a killed writer loses only unrecorded data."""
    writer = JournalWriter(tmp_path / "a.journal", {})
    before = (tmp_path / "a.journal").stat().st_size
    writer.event({"type": "note", "time_s": time.monotonic()})
    assert (tmp_path / "a.journal").stat().st_size > before
    writer.close()
