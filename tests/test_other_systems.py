"""Promises on macOS and Windows, tested with an interpreter without Linux's interfaces.

`tests/support/other_systems` removes modules (`fcntl`, `resource`), names of `os`, `signal` and
`time`, and the trees /proc, /sys and /dev/shm. It shows that no module needs them, but not how the
real systems behave.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.environment import without

ROOT = Path(__file__).parents[1]
STAND_IN = ROOT / "tests" / "support" / "other_systems"
CHOOSES_BY_SYSTEM = "click typer rich.console sqlalchemy pydantic yaml numpy uvicorn colorama"
IMPORT_ALL = """
import importlib, sys
from pathlib import Path
ABSENT = tuple("torch jax cupy tensorflow keras lightning transformers numba ray".split())
sys.modules.update(dict.fromkeys(ABSENT))  # they choose their parts by the system, too
import wattloop
root = Path(wattloop.__file__).parent
faults = []
for path in sorted(root.rglob("*.py")):
    name = ".".join(("wattloop", *path.relative_to(root).with_suffix("").parts))
    if path.name in ("__init__.py", "__main__.py"):
        continue
    try:
        importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ABSENT and "pip install" not in str(error):
            faults.append(f"{name}: {error}")
    except Exception as error:
        faults.append(f"{name}: {type(error).__name__}: {error}")
print("\\n".join(faults) or f"imported on {sys.platform}")
"""
COMMANDS = """
import sys
from wattloop.cli.main import main
for words in (["run", "--", "true"], ["run", "--", "false"], ["runs", "list"],
              ["devices", "--all"], ["doctor"], ["set", "cpu/governor=powersave"],
              ["set", "gpu:0/power_limit=300W"], ["cap", "find", "--", "true"]):
    sys.stdout.flush()
    print("code", main(words), flush=True)
"""


def _python(system: str, code: str, folder: Path) -> str:
    kept = without("WATTLOOP_", "PYTHON")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **kept,
            "PYTHONPATH": os.pathsep.join([str(STAND_IN), str(ROOT / "src")]),
            "WATTLOOP_TEST_PLATFORM": system,
            "WATTLOOP_TEST_PRELOADED": CHOOSES_BY_SYSTEM,
            "WATTLOOP_STATE_DIR": str(
                folder / "state"
            ),  # levers of this machine are tested elsewhere
            "WATTLOOP_STORE": str(folder / "runs.db"),
            "WATTLOOP_DEBUG": "1",
            "HOME": str(folder),
            "PATHEXT": "e",  # Windows recognises programs by their suffix: `true` and `false`
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "Error in sitecustomize" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_every_module_can_be_imported(system: str, tmp_path: Path) -> None:
    """Promise: no module needs an interface of Linux to be loaded."""
    assert _python(system, IMPORT_ALL, tmp_path).strip() == f"imported on {system}"


@pytest.mark.parametrize("system, name", [("win32", "Windows"), ("darwin", "macOS")])
def test_commands_work_and_say_what_is_missing(system: str, name: str, tmp_path: Path) -> None:
    """Promise: a program runs with its own exit code and is stored; an unmeasured energy is not
    zero.
    """
    said = _python(system, COMMANDS, tmp_path)
    assert "Traceback" not in said
    assert "failed to start" not in said
    codes = [line for line in said.splitlines() if line.startswith("code ")]
    assert codes[:5] == ["code 0", "code 1", "code 0", "code 0", "code 1"]
    assert "code 0" not in codes[5:]
    # a long path is wrapped at a hyphen
    said = re.sub(r"(?<=-)\n +", "", said).replace(str(tmp_path), "")
    for words in ("sudo ", "modprobe", "chmod", "/dev/", "systemctl", "/sys/"):
        assert words not in said, [line for line in said.splitlines() if words in line]
    assert said.count("nothing was measured in") == 2
    assert "finished" in said and "failed (1)" in said
    assert f"reads interfaces of Linux; this machine runs {name}" in said
    assert "nothing can be measured here" in said  # doctor


def test_locks_exclude_other_owners_on_windows(tmp_path: Path) -> None:
    """Promise: the lock of a file works without `fcntl`, and its content stays readable."""
    code = """
from pathlib import Path
from wattloop.core.files import FileLock, is_locked
path = Path("held.lock")
first, second = FileLock(path), FileLock(path)
assert first.acquire(owner="first") and not second.acquire(0.02)
assert is_locked(path) and second.owner() == "first"
first.release()
assert not is_locked(path) and second.acquire()
print("locked")
"""
    assert _python("win32", code, tmp_path).strip() == "locked"
