"""A promise of `wattloop run`: time that it could not read is never reported as measured."""

import json
import signal
import subprocess
import sys
import time

from tests.measure.conftest import PACKAGE_W, Machine

PROGRAM = """
import sys
print("working", flush=True)
sys.stdin.readline()
"""
STOPPED_S = 4.0


def test_stopped_wattloop_says_that_counters_wrapped_unseen(machine: Machine) -> None:
    """SIGSTOP for 4 s, in which a counter of 100 J at 50 W wraps twice: modelled, and reported."""
    out = machine.root / "result.json"
    wattloop = [sys.executable, "-m", "wattloop", "run", "--json", str(out), "--"]
    process = subprocess.Popen(
        [*wattloop, sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    time.sleep(3.0)
    process.send_signal(signal.SIGSTOP)
    time.sleep(STOPPED_S)
    process.send_signal(signal.SIGCONT)
    time.sleep(1.0)
    process.stdin.write("\n")
    process.stdin.close()
    assert process.wait(timeout=300) == 0
    process.stdout.close()
    found = json.loads(out.read_text())
    package = next(d for d in found["domains"] if d["name"] == "cpu:0/package")
    truth_j = PACKAGE_W * found["duration_s"]
    assert abs(package["energy_j"] - truth_j) <= package["uncertainty_j"]
    assert not found["complete"]
    assert any("wrap unseen" in part["reason"] for part in found["missing"])
