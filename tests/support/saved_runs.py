"""`wattloop run --save` on virtual GPUs, with slices of tenths of a second.

Run as a program it is the `wattloop` of such a machine.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.support import warm_start
from tests.support.environment import without
from tests.support.virtual_caps import SRC, machine

ROOT = Path(__file__).parents[2]
TRAP = "SAVED_RUNS_TRAP"
"""Variable with a file that is written when a lever is locked or set."""

TRAINING = """
import os, sys, time
from wattloop.integrations.step_hook.program_steps import ProgramSteps
from wattloop.virtual.node import shared_gpus
from wattloop.virtual.gpu import IDLE, Activity
gpus = shared_gpus(int(os.environ["WATTLOOP_VIRTUAL_GPUS"]))
work = Activity(0.35, 1.0, 1.0)  # bound by memory: caps cost little time

def train(seconds, step_s=0.02, until=lambda: True):
    begin_s = end_s = at_s = time.monotonic()
    for gpu in gpus:
        gpu.occupy(work, at_s)
    came = False
    while at_s < end_s or (not came and at_s < begin_s + 300):
        if not came and until():
            came, end_s = True, at_s + seconds
        at_s += step_s * max(gpu.settled(work).slowdown for gpu in gpus)
        time.sleep(max(0.0, at_s - time.monotonic()))
        ProgramSteps.shared().step()
    for gpu in gpus:
        gpu.occupy(IDLE, time.monotonic())

found = [gpu.limits for gpu in gpus]

def was_set():
    return [gpu.limits for gpu in gpus] != found
"""
"""Steps, noted by the hook's own recorder, whose length follows caps and clocks.

`train(3, until=was_set)` trains until a lever was set, however busy the machine is, and 3 s more.
"""


def saved_run(
    folder: Path, program: str, *options: str, **variables: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run a Python program under `wattloop run --save`; return its process and the `--json`
    output.
    """
    words, variables = command(folder, program, *options), environment(folder) | variables
    done = warm_start.run(words, env=variables, cwd=folder)
    return done, json.loads((folder / "run.json").read_text())


def start(folder: Path, program: str, *options: str, **variables: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command(folder, program, *options),
        env=environment(folder) | variables,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,  # the kernel ignores SIGTSTP in a group whose parents left the session
    )


def command(folder: Path, program: str, *options: str) -> list[str]:
    """`wattloop run --save OPTIONS -- python program.py`; a first line `#!` names other
    arguments.
    """
    (folder / "program.py").write_text(program)
    first = program.partition("\n")[0]
    own = [sys.executable] if not first.startswith("#!") else first[2:].split()
    words = [*options, "--json", "run.json", "--", *own, "program.py"]
    return [sys.executable, "-m", "tests.support.saved_runs", "run", "--save", *words]


def environment(folder: Path) -> dict[str, str]:
    kept = without("WATTLOOP", "CUDA")
    path = os.pathsep.join([str(folder / "site"), str(SRC), str(ROOT)])
    return kept | machine(folder) | {"HOME": str(folder), "PYTHONPATH": path}


def wait_until(true: Any, most_s: float = 300.0) -> None:
    give_up_s = time.monotonic() + most_s
    while not true():
        assert time.monotonic() < give_up_s, "it did not happen"
        time.sleep(0.02)


def main(words: Sequence[str]) -> int:
    """Run `wattloop` with a quick saver."""
    from wattloop.cap.saver import job_leader, saver
    from wattloop.cli.main import main as wattloop

    saver.SaverConfig = partial(  # type: ignore[misc]
        saver.SaverConfig,
        wait_s=0.4,
        slice_s=0.4,
        hold_s=0.4,
        settle_s=0.1,
        lag_s=0.15,
        idle_s=float(os.environ.get("SAVED_RUNS_IDLE_S", "30")),
        least_steps=1,
    )
    if uid := os.environ.get("SAVED_RUNS_UID"):
        os.geteuid = lambda: int(uid)
    job_leader.LEASE_S, job_leader.BEAT_S = 2.0, 0.2
    if trap := os.environ.get(TRAP):
        _set_trap(Path(trap))
    return wattloop(list(words))


def _set_trap(path: Path) -> None:
    from wattloop.control.lock import DeviceLock
    from wattloop.virtual import lever

    def touched(*_: object, **__: object) -> None:
        path.write_text("a lever was touched")

    for kind in (lever.VirtualPowerLimit, lever.VirtualSmClock, lever.VirtualMemoryClock):
        for name in ("write", "write_part", "_set"):
            setattr(kind, name, touched)
    DeviceLock.take = touched  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
