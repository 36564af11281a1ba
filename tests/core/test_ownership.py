"""Promise: a file that another user can have written is not obeyed unless it is named."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from wattloop.core import ownership
from wattloop.core.config_file import find_config, load_settings
from wattloop.core.ownership import distrust, is_trusted
from wattloop.core.settings import Settings

SRC = Path(__file__).parents[2] / "src"
STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One that every user can enter; nothing was said yet."""
    monkeypatch.setattr(ownership, "_said", set())
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
    """It is named once, with the command that mends it; a file of that name elsewhere is used."""
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
    """Many systems give each user a group of their own, and files that it may write."""
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
    """In a parent folder, in the working directory, and in a home that `sudo` kept."""
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
import difflib, grp, json, os, pwd, yaml  # before it is a user who may not read them
from wattloop.core.config_file import load_settings
os.setgroups([]), os.setgid(23456), os.setuid(23456)
print(json.dumps([load_settings().pue, load_settings().pue]))
"""


@as_root
@pytest.mark.parametrize(
    ("owner", "obeyed"), [(STRANGER, False), (0, True), (23456, True)], ids=["other", "root", "own"]
)
def test_user_obeys_own_files_and_those_of_root(folder: Path, owner: int, obeyed: bool) -> None:
    """In a real process of a user; what is ignored is said once."""
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
    """Outside of a home and a repository it ends where the folders of another user begin."""
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
    from wattloop.predict.models.kernels.lookup import SHIPPED, constants_for, user_constants_path
    from wattloop.schedule.estimates.cached import _read

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
    cached = written(folder / "cache.json", "{}", mode=0o666)
    assert _read(cached) is None
    said = capsys.readouterr().err
    assert all(str(path) in said for path in (user_folder() / "mine.yaml", own, cached))
