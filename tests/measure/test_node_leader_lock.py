"""Promises of the node lock: one process per job and node counts, and the kernel frees it."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from wattloop.core.files import runtime_folder
from wattloop.measure.node_leader import NodeLock

HOLDER = (
    "import sys, time; from pathlib import Path; from wattloop.measure.node_leader import NodeLock;"
    "c = NodeLock('job', Path(sys.argv[1]));"
    "print(c.take({'pid': 1, 'run_id': 'first'}), flush=True);"
    "time.sleep(60)"
)


def holder(directory: Path) -> "subprocess.Popen[bytes]":
    src = str(Path(__file__).parents[2] / "src")
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": src},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"True\n"
    child.stdout.close()
    return child


def test_second_process_gets_the_lock_only_when_the_first_is_killed(tmp_path: Path) -> None:
    """`kill -9` of the leader frees the lock at once."""
    child = holder(tmp_path)
    claim = NodeLock("job", tmp_path)
    try:
        assert not claim.take({"run_id": "second"})
        assert claim.owner() == {"pid": 1, "run_id": "first"}
    finally:
        child.kill()
        child.wait()
    assert claim.take({"run_id": "second"})
    assert claim.held
    assert claim.owner() == {"run_id": "second"}
    claim.release()


def test_jobs_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Two jobs on one node both count, each for itself."""
    one, other = NodeLock("job 1", tmp_path), NodeLock("job/2 ../x", tmp_path)
    assert one.take({})
    assert other.take({})
    one.release()
    other.release()


def test_taking_again_changes_nothing(tmp_path: Path) -> None:
    """The owner may ask repeatedly."""
    claim = NodeLock("job", tmp_path)
    assert claim.take({"run_id": "a"})
    assert claim.take({"run_id": "b"})
    assert claim.owner() == {"run_id": "a"}
    claim.release()
    assert not claim.held


def test_without_a_shared_folder_every_process_counts(tmp_path: Path) -> None:
    """An energy counted twice and visible is better than one lost."""
    (tmp_path / "file").write_text("")
    assert NodeLock("job", tmp_path / "file").take({})


def test_folder_belongs_to_the_user_alone(tmp_path: Path) -> None:
    """Other users can neither read nor block a lock."""
    claim = NodeLock("job", tmp_path / "claims")
    claim.take({})
    assert stat.S_IMODE((tmp_path / "claims").stat().st_mode) == 0o700
    claim.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_a_link_that_another_user_made_is_not_followed(tmp_path: Path) -> None:
    """Root writes nothing to its target, and the run is still measured."""
    victim, link = tmp_path / "victim", tmp_path / "wattloop-0"
    victim.mkdir()
    link.symlink_to(victim)
    os.lchown(link, 65_534, 65_534)
    claim = NodeLock("job", link)
    assert claim.take({"pid": 1})
    claim.release()
    assert list(victim.iterdir()) == []


def test_folder_is_local_to_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's runtime folder, else the temporary one; never a home on a shared disk."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_folder() == tmp_path / "wattloop"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert runtime_folder().name == f"wattloop-{os.getuid()}"


def test_torn_owner_file_is_no_owner(tmp_path: Path) -> None:
    """A torn description of the owner is read as no owner."""
    claim = NodeLock("job", tmp_path)
    claim.take({"run_id": "a"})
    next(tmp_path.glob("*.claim")).write_text('{"run_')
    assert claim.owner() is None
    claim.release()


def test_old_locks_of_ended_jobs_are_removed(tmp_path: Path) -> None:
    """The folder does not grow without limit; a lock in use stays, however old."""
    held = NodeLock("long job", tmp_path)
    assert held.take({"run_id": "held"})
    ended = NodeLock("old job", tmp_path)
    assert ended.take({"run_id": "ended"})
    ended.release()
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    fresh = NodeLock("new job", tmp_path)
    assert fresh.take({"run_id": "fresh"})
    fresh.release()
    left = {json.loads(p.read_text())["run_id"] for p in tmp_path.glob("*.claim")}
    assert left == {"held", "fresh"}
    held.release()


def test_old_locks_are_checked_once_an_hour(tmp_path: Path) -> None:
    """The end of a run does not get slower with the number of runs of the day."""
    first = NodeLock("first", tmp_path)
    assert first.take({"run_id": "first"})
    first.release()  # checks, and notes the time of the check
    (old,) = tmp_path.glob("*.claim")
    os.utime(old, (0, 0))
    for asked_s, there in ((0, True), (3601, False)):
        note = tmp_path / "tidied"
        os.utime(note, (note.stat().st_mtime - asked_s,) * 2)
        second = NodeLock("second", tmp_path)
        assert second.take({"run_id": "second"})
        second.release()
        assert old.exists() is there


def test_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In /tmp another user may own it: nothing is written there, and the process counts."""
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    claim = NodeLock("job", tmp_path)
    assert claim.take({})
    assert not claim.held
    assert list(tmp_path.iterdir()) == []


def test_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    """Another user's file is not overwritten."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    claim = NodeLock("job", tmp_path)
    assert claim.take({})
    (path,) = tmp_path.glob("*.claim")
    claim.release()
    path.unlink()
    path.symlink_to(victim)
    assert claim.take({"run_id": "x"})
    assert victim.read_text() == "precious"


def test_the_next_leader_reads_who_led_before(tmp_path: Path) -> None:
    """It also reads the last note of the earlier leader, the time up to which it counted."""
    first, second = NodeLock("job", tmp_path), NodeLock("job", tmp_path)
    assert first.take({"run_id": "first"})
    assert not second.take({"run_id": "second"})
    first.release(until_s=5.0)
    assert second.take({"run_id": "second"})
    assert second.before == {"run_id": "first", "until_s": 5.0}
    second.release()
