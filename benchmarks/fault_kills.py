"""`kill -9` at random moments: of the program, of wattloop, of both, and while a run ends."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fault_machine import FaultMachine

LONGEST_S = 3.0
"""Kills lie within this time from the start of the program."""
READER_STARTS_S = 2.0
"""By then a separate process reads the sensors for a program that measures itself."""
AT_ONCE = 6
EXIT_CODE = 5

PROGRAM = """
import os, sys, time
print("started", os.getpid(), time.monotonic(), flush=True)
time.sleep(float(sys.argv[1]))
print("done", time.monotonic(), flush=True)
sys.exit(5)
"""
MEASURED = """
import os, sys, time, wattloop
with wattloop.measure(sys.argv[2]):
    print("started", os.getpid(), time.monotonic(), flush=True)
    time.sleep(float(sys.argv[1]))
    print("done", time.monotonic(), flush=True)
sys.exit(5)
"""

READER = "the process that reads for a program that measures itself"
BOTH_ITSELF = "a program that measures itself, and the process that reads for it"
TARGETS = (
    "the program",
    "wattloop",
    "both",
    "a program that measures itself",
    "wattloop, while it ends",
    "a program that measures itself, while it ends",
    READER,
    BOTH_ITSELF,
)


@dataclass
class Trial:
    """One program that was killed, and the state of its run afterwards."""

    name: str
    target: str
    kill_after_s: float
    program_s: float
    killed_s: float = 0.0
    """When the kill was sent, on the monotonic clock."""
    done_s: float | None = None
    """When the program said that it was done."""
    exit_code: int | None = None
    killed_in_time: bool = True
    """False when it had ended before the kill."""
    status: str = "lost"
    problems: list[str] = field(default_factory=list)
    lost_s: float = 0.0
    error_pct: float | None = None

    @property
    def outside(self) -> bool:
        """Return true if `wattloop run` measures it."""
        return "itself" not in self.target


def plan(count: int, rng: random.Random, longest_s: float = LONGEST_S) -> list[Trial]:
    """Spread trials evenly over the targets."""
    trials = []
    for number in range(count):
        target = TARGETS[number % len(TARGETS)]
        if "ends" in target:
            program_s = rng.uniform(0.05, 1.0)
            after_s = program_s + rng.uniform(-0.02, 0.5 if "itself" not in target else 0.1)
        else:
            after_s = rng.uniform(0.0, longest_s)
            if target in (READER, BOTH_ITSELF):
                after_s += READER_STARTS_S
            program_s = after_s + (0.7 if target in ("wattloop", READER) else 30.0)
        trials.append(Trial(f"trial-{number:03}", target, after_s, program_s))
    return trials


def run_trials(machine: FaultMachine, trials: Sequence[Trial]) -> None:
    """Start and kill each program, and check its run in the store."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda trial: kill_one(machine, trial), trials))
    look_up(machine, trials)


def kill_one(machine: FaultMachine, trial: Trial) -> None:
    script = PROGRAM if trial.outside else MEASURED
    command = [sys.executable, "-c", script, str(trial.program_s), trial.name]
    if trial.outside:
        command = machine.command("run", "--quiet", "--name", trial.name, "--", *command)
    process = subprocess.Popen(
        command, env=machine.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    words = process.stdout.readline().split()
    if words[:1] != ["started"]:
        trial.problems.append(f"did not start: {process.communicate()[1][-300:]}")
        return
    program = int(words[1])
    wait_s = float(words[2]) + trial.kill_after_s - time.monotonic()
    if wait_s > 0:
        time.sleep(wait_s)
    reader = _reader_of(process.pid) if _kills_reader(trial) else []
    trial.killed_s = time.monotonic()
    trial.killed_in_time = process.poll() is None
    victims = {
        "the program": [program],
        "both": [process.pid, program],
        READER: reader,
        BOTH_ITSELF: [process.pid, *reader],
    }
    for pid in victims.get(trial.target, [process.pid]):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            trial.killed_in_time = False
    output, errors = process.communicate(timeout=60)
    trial.exit_code = process.returncode
    done = [line.split() for line in output.splitlines() if line.startswith("done")]
    trial.done_s = float(done[0][1]) if done else None
    if "Traceback" in errors:
        trial.problems.append(f"traceback: {errors[-300:]}")
    if _kills_reader(trial) and not reader:
        trial.problems.append("no process read for it")
    if trial.target in ("wattloop", READER) and trial.done_s is None:
        trial.problems.append("the program was harmed: it did not come to its end")
    if trial.target == "the program" and trial.exit_code != 128 + signal.SIGKILL:
        trial.problems.append(f"exit code {trial.exit_code} instead of 137")


def _kills_reader(trial: Trial) -> bool:
    """Return true if the reader process of the program is among those killed."""
    return trial.target in (READER, BOTH_ITSELF)


def _reader_of(pid: int) -> list[int]:
    """Return the process that reads for a program, by its own description."""
    name = f"wattloop sampler of {pid}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # ended meanwhile
            if path.read_bytes().rstrip(b"\0").endswith(name):
                found.append(int(path.parent.name))
    return found


def look_up(machine: FaultMachine, trials: Sequence[Trial]) -> None:
    """Query the store, as a user would, and compare."""
    listed = machine.wattloop("runs", "list", "--limit", "0", "--json", "-")
    runs = json.loads(listed.stdout)["runs"]
    with sqlite3.connect(machine.store) as connection:
        bodies = [json.loads(b) for (b,) in connection.execute("SELECT body FROM runs")]
        last_s = dict(
            connection.execute(
                "SELECT run_id, max(end_s) FROM sample_chunks WHERE feed < 1000 GROUP BY run_id"
            )
        )
    for trial in trials:
        found = [run for run in runs if run["name"] == trial.name]
        if len(found) != 1:
            trial.problems.append(f"{len(found)} runs in the store")
            trial.status = "lost" if not found else "twice"
            continue
        (body,) = (body for body in bodies if body["run_id"] == found[0]["run_id"])
        judge(machine, trial, body, last_s.get(body["run_id"]))


def judge(
    machine: FaultMachine, trial: Trial, run: dict[str, object], last_s: float | None
) -> None:
    trial.status = str(run["status"])
    if trial.status not in right_statuses(trial):
        wanted = " or ".join(right_statuses(trial))
        trial.problems.append(f"marked {trial.status} instead of {wanted}")
    if trial.status == "killed" and run["signal"] != signal.SIGKILL:
        trial.problems.append(f"marked with signal {run['signal']}")
    begin_s = float(str(run["started_s"]))
    until_s = min(trial.killed_s, trial.done_s or trial.killed_s)
    trial.lost_s = max(0.0, until_s - max(begin_s, last_s or begin_s))
    result = run["result"]
    if isinstance(result, dict) and result["duration_s"] >= 1.0:
        true_j = machine.cpu_energy_j(result["begin_s"], result["end_s"])
        trial.error_pct = 100 * abs((result["energy_j"] or 0.0) - true_j) / true_j


def right_statuses(trial: Trial) -> tuple[str, ...]:
    if trial.target == "the program":
        return ("killed",)
    if trial.target == READER:
        return ("finished",)
    if "ends" not in trial.target:
        return ("died",)
    ended = "failed" if trial.outside else "finished"
    if not trial.killed_in_time:
        return (ended,)
    return ("died",) if trial.done_s is None else ("died", ended)


def corrupt_files(machine: FaultMachine) -> list[str]:
    """Return the faults in the store's files."""
    found = [p.name for p in machine.journals.glob("*")]
    with sqlite3.connect(machine.store) as connection:
        (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
    return found if verdict == "ok" else [*found, f"integrity_check: {verdict}"]
