"""Promises of files: one owner of a lock, whole writes, and no obedience to files that
another user can have written.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.inherited_files import program_with_copies_of

from wattloop.core import files
from wattloop.core.cache import FileCache
from wattloop.core.files import (
    FileLock,
    atomic_path,
    atomic_write,
    atomic_write_json,
    distrust,
    is_locked,
    is_trusted,
)
from wattloop.core.settings import Settings, find_config, load_settings

SRC = Path(__file__).parents[2] / "src"
STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user can enter, before any warning was given."""
    monkeypatch.setattr(files, "_warned", set())
    with tempfile.TemporaryDirectory(prefix="wattloop-owner-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def written(path: Path, text: str = "pue: 3\n", uid: int | None = None, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    if uid is not None:
        os.chown(path, uid, uid)
    return path


@pytest.mark.parametrize("mode", [0o646, 0o666])
def test_file_that_others_may_write_is_ignored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: int
) -> None:
    """The warning comes once, with the remedy; a file of that name elsewhere is used."""
    path = written(folder / "wattloop.yaml", mode=mode)
    usual = written(folder / "home" / ".config" / "wattloop" / "wattloop.yaml", "pue: 2\n")
    monkeypatch.chdir(folder)
    environment = {"HOME": str(folder / "home")}
    for _ in range(3):
        assert find_config(environment) == usual
    assert load_settings(environment).pue == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"wattloop: {path} is ignored: other users may write it; 'chmod go-w {path}' makes it yours"
    )
    assert load_settings({**environment, "WATTLOOP_CONFIG": str(path)}).pue == 3, "it was named"
    path.chmod(0o644)
    assert find_config(environment) == path


def test_group_of_the_user_alone_is_not_others(folder: Path) -> None:
    """Many systems give each user a private group whose members may write the user's files."""
    import grp
    import pwd

    me = pwd.getpwuid(os.geteuid())
    path = written(folder / "wattloop.yaml", mode=0o664)
    os.chown(path, -1, me.pw_gid)
    group = grp.getgrgid(me.pw_gid)
    private = group.gr_name == me.pw_name and set(group.gr_mem) <= {me.pw_name}
    assert (distrust(path) == "") == private


@as_root
def test_file_of_another_group_is_ignored(folder: Path) -> None:
    """Its members may write it."""
    path = written(folder / "wattloop.yaml", mode=0o664)
    os.chown(path, 0, STRANGER)
    assert "other users may write it" in distrust(path)


@as_root
@pytest.mark.parametrize("place", ["above", "here", "home"])
def test_root_obeys_only_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """In a parent folder, in the working directory, and in a home that `sudo` preserved."""
    here = folder / "a" / "b"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    home = folder / "home"
    path = {
        "above": folder / "a" / "wattloop.yaml",
        "here": here / "wattloop.yaml",
        "home": home / ".config" / "wattloop" / "wattloop.yaml",
    }[place]
    written(path, "store: /etc/passwd\n", STRANGER)
    assert load_settings({"HOME": str(home)}).store == Settings().store
    line = capsys.readouterr().err
    assert f"{path} is ignored: it belongs to user {STRANGER}, and root uses only files" in line
    assert "--config or WATTLOOP_CONFIG" in line


@as_root
def test_link_of_another_user_is_not_followed(folder: Path) -> None:
    """The owner of the link chooses the file."""
    target = written(folder / "mine.yaml")
    link = folder / "wattloop.yaml"
    link.symlink_to(target)
    assert is_trusted(link), "a link of one's own is"
    os.lchown(link, STRANGER, STRANGER)
    assert not is_trusted(link)


PROGRAM = """
# before it is a user who may not read them
import difflib, grp, json, os, pwd, yaml, wattloop.core.files, wattloop.core.yaml_spec
from wattloop.core.settings import load_settings
os.setgroups([]), os.setgid(23456), os.setuid(23456)
print(json.dumps([load_settings().pue, load_settings().pue]))
"""


@as_root
@pytest.mark.parametrize(
    ("owner", "obeyed"), [(STRANGER, False), (0, True), (23456, True)], ids=["other", "root", "own"]
)
def test_user_obeys_own_files_and_those_of_root(folder: Path, owner: int, obeyed: bool) -> None:
    """In a real process of a user; an ignored file is reported once."""
    (folder / ".git").mkdir()
    here = folder / "a" / "b"
    here.mkdir(parents=True)
    written(folder / "wattloop.yaml", uid=owner)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=here,
        env={"HOME": str(folder / "home"), "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)[0] == (3 if obeyed else 1)
    assert done.stderr.count("is ignored: it belongs to user 12345") == (not obeyed)


@as_root
def test_search_does_not_leave_the_folders_of_the_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of a home and a repository the search ends at the folders of another user."""
    here = folder / "others" / "mine" / "deep"
    here.mkdir(parents=True)
    os.chown(folder / "others", STRANGER, STRANGER)
    monkeypatch.chdir(here)
    environment = {"HOME": str(folder / "home")}
    written(folder / "others" / "wattloop.yaml")
    assert find_config(environment) is None
    path = written(folder / "others" / "mine" / "wattloop.yaml")
    assert find_config(environment) == path


def test_other_files_that_are_found_are_judged_as_well(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """GPUs and calibrations in the configuration, and what caches hold."""
    from wattloop.hardware.gpus import known_gpus, user_folder
    from wattloop.predict.models.kernels.constants import (
        SHIPPED,
        constants_for,
        user_constants_path,
    )

    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    written(user_folder() / "mine.yaml", "nonsense: [\n", mode=0o666)
    h200 = next(gpu for gpu in known_gpus() if gpu.name == "h200")
    own = user_constants_path("h200")
    own.parent.mkdir(parents=True)
    own.write_bytes((SHIPPED / "h200.json.gz").read_bytes())
    own.chmod(0o666)
    assert constants_for(h200)[1] == "shipped"
    own.chmod(0o644)
    assert constants_for(h200)[1] == "calibrated"
    cache = FileCache(folder, suffix=".n", most=3, load=int, dump=lambda n: b"%d" % n)
    assert cache.get(["a"], lambda: 7) == 7
    (cached,) = folder.glob("*.n")
    cached.chmod(0o666)
    assert cache.get(["a"], lambda: 8) == 8
    said = capsys.readouterr().err
    assert all(str(path) in said for path in (user_folder() / "mine.yaml", own, cached))


HOLDER = """
import sys, time
from pathlib import Path
from wattloop.core.files import FileLock

lock = FileLock(Path(sys.argv[1]))
assert lock.acquire(owner="the other process")
print("held", flush=True)
time.sleep(60)
"""


def test_lock_has_one_owner_and_is_free_when_its_process_is_killed(tmp_path: Path) -> None:
    """The kernel releases it, and the file still names the last owner."""
    path = tmp_path / "new" / "lock"
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
    )
    assert other.stdout is not None
    other.stdout.readline()
    lock = FileLock(path)
    assert not lock.acquire(wait_s=0.05)
    assert (is_locked(path), lock.owner(), lock.held) == (True, "the other process", False)
    other.kill()
    other.wait()
    other.stdout.close()
    assert lock.acquire(wait_s=5.0, owner="us")
    assert lock.owner() == "us"
    assert path.stat().st_mode & 0o777 == 0o600
    lock.release()
    assert not is_locked(path)


def test_lock_of_a_file_that_its_last_owner_removed_is_on_the_new_file(tmp_path: Path) -> None:
    """Otherwise two processes would have the lock, one of them on a file without a name."""
    path = tmp_path / "lock"
    first, second = FileLock(path), FileLock(path)
    assert first.acquire()
    assert not second.acquire()
    first.release(remove=True)
    assert not path.exists()
    with second:
        assert second.held
        assert is_locked(path)
    assert not is_locked(path)


def test_lock_survives_a_forked_child_that_drops_its_copy(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    with lock:
        child = os.fork()
        if child == 0:
            lock.release()
            os._exit(0)
        os.waitpid(child, 0)
        assert is_locked(lock.path)


def test_released_lock_is_free_while_a_program_has_a_copy_of_its_file(tmp_path: Path) -> None:
    """A program that another thread starts has a copy until it executes."""
    lock = FileLock(tmp_path / "lock")
    assert lock.acquire()
    with program_with_copies_of(lock.path):
        assert is_locked(lock.path)
        lock.release()
        assert not is_locked(lock.path)
        assert FileLock(lock.path).acquire()


def test_checking_a_lock_leaves_nothing_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds where a program starts while `is_locked` has the file open."""
    path = tmp_path / "lock"
    path.touch()
    try_lock = files.try_lock
    with ExitStack() as programs:

        def locked_before_a_start(*words: Any, **options: Any) -> bool:
            locked = try_lock(*words, **options)
            programs.enter_context(program_with_copies_of(path))
            return locked

        monkeypatch.setattr(files, "try_lock", locked_before_a_start)
        assert not is_locked(path)
        monkeypatch.undo()
        assert FileLock(path).acquire()


def test_write_is_whole_or_leaves_the_old_file(tmp_path: Path) -> None:
    """No temporary file stays behind."""
    path = tmp_path / "file"
    atomic_write(path, "text", durable=True)
    assert path.read_text() == "text"
    atomic_write(path, b"bytes", mode=0o600)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"bytes", 0o600)
    with pytest.raises(TypeError):
        atomic_write_json(path, {"a": object()})
    with pytest.raises(ZeroDivisionError), atomic_path(path) as temporary:
        temporary.write_text("half")
        1 / 0  # noqa: B018 - the program that writes the file fails
    assert path.read_bytes() == b"bytes"
    atomic_write_json(path, {"a": 1}, indent=1)
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError):
        atomic_write(tmp_path / "missing" / "file", "")


def test_permissions_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        atomic_write(tmp_path / "public", "", mode=0o644)
        atomic_write(tmp_path / "usual", "")
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("public", "usual")]
    assert modes == [0o644, 0o600]
