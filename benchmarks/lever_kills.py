"""Is every setting back after `kill -9`, whenever it comes and whatever it hits?

A program holds levers, sets them to random values and lets go of them, over and over, on a machine
of files (cpufreq, powercap) and stub NVIDIA cards behind the real nvidia-ml-py. At a random moment
the program, its guardian or both are killed with SIGKILL. Then `wattloop restore` runs, as a user
would run it, and every setting of the machine is compared with what it was before the program
started. Previous values are drawn anew for each kill, so that a value that is right by chance or
left from the kill before does not count. In half of the kills two levers of different kinds are
set at once.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from bars import Bar, Page, Table, arguments, publish
from lever_machine import LeverMachine
from wattloop.measure.processes import PROC
from wattloop.testing.nvml_stub import build

OWNER = Path(__file__).with_name("lever_owner.py")
LATEST_S = 0.4
"""Kills lie within this time after the program is ready; a hold lasts about 50 ms."""
NVML = ("gpu:0/power_limit", "gpu:1/power_limit", "gpu:0/sm_clock", "gpu:1/memory_clock")
FILES = (
    "cpu/governor",
    "cpu/min_frequency",
    "cpu/max_frequency",
    "cpu:0/power_limit_long_term",
    "cpu:1/power_limit_long_term",
)
TARGETS = ("program", "guardian", "both, program first", "both, guardian first")


@dataclass
class Kill:
    """One program that was killed, and what became of the settings."""

    number: int
    target: str
    levers: tuple[str, ...]
    after_s: float
    left_set: int = 0
    """Settings that were not at their previous value right after the kill."""
    journals: int = 0
    """Journals that were there right after the kill."""
    problems: list[str] = field(default_factory=list)

    @property
    def restored(self) -> bool:
        return not self.problems


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)) * 2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.quick:
        options.kills = min(options.kills, 8)
    begin_s = time.monotonic()
    kills = all_kills(options.kills, options.at_once, options.seed)
    publish(page_of(kills, time.monotonic() - begin_s), options)
    for kill in kills:
        for problem in kill.problems:
            print(f"kill {kill.number} ({kill.target}, {kill.levers}): {problem}", file=sys.stderr)


def plan(count: int, seed: int) -> list[Kill]:
    """Kills spread evenly over targets; every other one hits two levers of different kinds."""
    rng = random.Random(seed)
    kills = []
    for number in range(count):
        target = TARGETS[number // 2 % len(TARGETS)]
        nvml, file = rng.choice(NVML), rng.choice(FILES)
        levers = (nvml, file) if number % 2 else (rng.choice((nvml, file)),)
        kills.append(Kill(number, target, levers, rng.uniform(0, LATEST_S)))
    return kills


def all_kills(count: int, at_once: int, seed: int) -> list[Kill]:
    kills = plan(count, seed)
    shares = [kills[i::at_once] for i in range(at_once)]
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "nvml"
        build(library)
        folders = [str(Path(folder) / f"machine-{i}") for i in range(at_once)]
        with ProcessPoolExecutor(at_once, mp_context=get_context("spawn")) as pool:
            done = pool.map(on_one_machine, folders, [str(library)] * at_once, shares)
            return sorted((kill for share in done for kill in share), key=lambda k: k.number)


def on_one_machine(folder: str, library: str, kills: Sequence[Kill]) -> Sequence[Kill]:
    with LeverMachine(Path(folder), Path(library)) as machine:
        for kill in kills:
            try:
                strike(machine, kill)
            except Exception as error:  # noqa: BLE001 - one kill must not cost the others
                kill.problems.append(f"{type(error).__name__}: {error}")
        return kills


def strike(machine: LeverMachine, kill: Kill) -> None:
    rng = random.Random(kill.number)
    machine.shuffle(rng)
    before = machine.settings()
    owner = subprocess.Popen(
        [sys.executable, str(OWNER), str(kill.number), *kill.levers],
        env=machine.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    if owner.stdout.readline() != "ready\n":
        kill.problems.append(f"did not start: {owner.communicate()[1][-300:]}")
        return
    time.sleep(kill.after_s)
    guardians = children(owner.pid)
    if kill.target == "program":
        owner.kill()
    elif kill.target == "guardian":
        end(guardians)
        time.sleep(rng.uniform(0, 0.05))
        owner.terminate()  # it goes on without its guardian, and restores by itself
    elif kill.target == "both, program first":
        owner.kill()
        end(guardians)
    else:
        end(guardians)
        owner.kill()
    kill.left_set = sum(value != before[name] for name, value in machine.settings().items())
    kill.journals = len(list(machine.state.glob("*.journal")))
    errors = owner.communicate(timeout=60)[1]
    if "Traceback" in errors:
        kill.problems.append(f"traceback: {errors[-500:]}")
    judge(machine, kill, before)


def judge(machine: LeverMachine, kill: Kill, before: dict[str, object]) -> None:
    done = machine.wattloop("restore", "--json", "-")
    if done.returncode != 0:
        kill.problems.append(f"restore ended with {done.returncode}: {done.stdout}{done.stderr}")
    after = machine.settings()
    for name, value in before.items():
        if after[name] != value:
            kill.problems.append(f"{name} is {after[name]}, it was {value}")
    left = sorted(path.name for path in machine.state.glob("*.journal"))
    if left:
        kill.problems.append(f"journals left: {left}")
    if done.returncode == 0 and not json.loads(done.stdout)["ok"]:
        kill.problems.append("restore does not say ok")


def children(pid: int) -> list[int]:
    try:
        return list(map(int, (PROC / f"{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def end(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def page_of(kills: Sequence[Kill], took_s: float) -> Page:
    bars = [
        Bar(
            "restored",
            sum(kill.restored for kill in kills),
            "kills",
            len(kills),
            at_least=True,
            note="every setting of the machine at its previous value, and no journal left",
        ),
        Bar("kills", len(kills), "kills", 1_000, at_least=True, note=f"took {took_s:.0f} s"),
    ]
    rows = []
    for target in TARGETS:
        own = [kill for kill in kills if kill.target == target]
        rows.append(
            [
                target,
                len(own),
                sum(len(kill.levers) == 2 for kill in own),
                sum(kill.journals > 0 for kill in own),
                sum(kill.left_set > 0 for kill in own),
                sum(kill.restored for kill in own),
            ]
        )
    header = (
        "killed",
        "kills",
        "with two levers",
        "while held",
        "something was set",
        "all restored",
    )
    text = __doc__.partition("\n\n")[2]
    return Page(
        "lever_kills",
        "1,000 kills of a program that sets levers",
        bars,
        [Table("By what was killed", header, rows)],
        text,
    )


if __name__ == "__main__":
    main()
