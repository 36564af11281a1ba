"""A search that ends before its time leaves the machine as it found it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.virtual_caps import SRC, machine
from wattloop.cli.main import main
from wattloop.virtual.node import shared_gpus

SPEC = """\
name: levers
command: [{python}, train.py, "{{width}}"]
metric: {{name: accuracy, goal: maximize}}
parameters: {{width: [1, 2, 4]}}
hardware: {{power_limit: [300, 400]}}
strategy: grid
"""
TRAIN = """
import pathlib, sys, time
for epoch in range(1, 50):
    time.sleep(0.1)
    print(f"accuracy={epoch / 100}", flush=True)
    pathlib.Path("trained").touch()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_the_power_limit_comes_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    code: int,
) -> None:
    """`kill` and `kill -9` in mid-training: the limit is back, no program is left."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "s.yaml").write_text(SPEC.format(python=sys.executable))
    variables = {**machine(tmp_path), "WATTLOOP_GUARDIAN": "1", "HOME": str(tmp_path)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    cards = shared_gpus(2)
    before_w = [card.now().limit_w for card in cards]
    path = os.pathsep.join([str(tmp_path / "site"), str(SRC)])
    process = subprocess.Popen(
        [sys.executable, "-m", "wattloop", "tune", "run", "s.yaml"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    _until((tmp_path / "trained").exists, process)
    assert [card.now().limit_w for card in cards] == [300, 300]
    process.send_signal(number)
    assert process.wait(120) == code, process.stderr.read()
    _until(lambda: [card.now().limit_w for card in cards] == before_w)
    if number != signal.SIGKILL:
        assert _left(tmp_path) == []
    assert main(["tune", "list"]) == 0
    assert "interrupted" in capsys.readouterr().out
    process.stderr.close()


def _until(holds: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    deadline_s = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline_s
        assert process is None or process.poll() is None, process.stderr.read()
        time.sleep(0.02)


def _left(folder: Path) -> list[str]:
    """Programs that still run in the folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if (place / "cwd").readlink() == folder and place.name != str(os.getpid()):
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return [words for words in found if "train.py" in words]
