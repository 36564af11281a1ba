"""Promises of the lock folder: one for all users, and no user can redirect it."""

import os
import stat
from pathlib import Path

import pytest

from tests.support.inherited_files import program_with_copies_of
from wattloop.control import journal
from wattloop.control.lock import DeviceLock, Owner, holder, lock_path
from wattloop.core.errors import LeverError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Move the machine's lock folder to another place."""
    path = tmp_path / "control"
    monkeypatch.setattr(journal, "DEFAULT_PLACE", path)
    monkeypatch.delenv(journal.STATE_VARIABLE, raising=False)
    return path


def test_machines_place_is_for_everybody(default: Path) -> None:
    """Under any umask every user may lock there, with files of their own."""
    before = os.umask(0o077)
    try:
        assert journal.state_directory() == default
        lock = DeviceLock.take("cpu", default, Owner.this_process())
    finally:
        os.umask(before)
    assert mode(default) == 0o1777
    assert mode(lock_path("cpu", default)) == 0o600
    lock.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_root_takes_the_place_over(default: Path) -> None:
    """A user who created the folder first cannot remove root's files in it."""
    default.mkdir()
    os.chown(default, 12345, 12345)
    journal.state_directory()
    assert default.stat().st_uid == 0


def test_link_is_not_followed(default: Path, tmp_path: Path) -> None:
    """A link planted by another user would redirect the write."""
    (tmp_path / "elsewhere").mkdir()
    default.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LeverError, match="so nothing is set"):
        journal.state_directory()


def test_place_that_cannot_be_made_is_said(
    default: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the variable that sets another folder."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(journal.STATE_VARIABLE, str(tmp_path / "file" / "state"))
    with pytest.raises(LeverError, match="name a writable directory with WATTLOOP_STATE_DIR"):
        journal.state_directory()


def test_owner_of_a_lock_can_be_read_by_others(tmp_path: Path) -> None:
    """The lock names process, its start, command and user; no owner once it is released."""
    lock = DeviceLock.take("nvidia:GPU-1", tmp_path, Owner.this_process())
    owner = holder("nvidia:GPU-1", tmp_path)
    assert owner is not None
    assert (owner.pid, owner.alive) == (os.getpid(), True)
    lock.release()
    assert holder("nvidia:GPU-1", tmp_path) is None


def test_released_device_is_free_while_a_program_has_a_copy_of_its_lock(tmp_path: Path) -> None:
    """A program that another thread starts has a copy until it executes."""
    lock = DeviceLock.take("cpu", tmp_path, Owner.this_process())
    with program_with_copies_of(lock_path("cpu", tmp_path)):
        lock.release()
        DeviceLock.take("cpu", tmp_path, Owner.this_process()).release()


def test_owner_with_a_reused_number_is_dead() -> None:
    """The start time and the boot distinguish a process from a later one with its number."""
    me = Owner.this_process()
    assert me.alive
    assert not Owner(me.pid, me.started - 1, me.boot_id, "", "", 0.0).alive
    assert not Owner(me.pid, me.started, "another", "", "", 0.0).alive
