"""Restored settings after `kill -9` at any moment, of any process.

`wattloop sweep` runs on a machine of files (cpufreq, powercap) and stub NVIDIA cards behind the
real nvidia-ml-py. At a random moment the sweep, its watchdog or both are killed with SIGKILL; a
sweep that has lost only its watchdog is then asked to end (SIGTERM). Then `wattloop restore` runs,
as a user would run it, and every setting of the machine is compared with what it was before the
sweep started. Previous values are drawn for each kill, so that a value that is right by chance or
left from the kill before does not count. In half of the kills two levers of different kinds are set
at once. A second program locks levers, sets and restores them in a loop, so that more kills hit the
beginning and the end of a session. Sweeps and restores are processes of their own, forked from one
that has Python and the libraries loaded.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bars import Bar, Page, Table, arguments, publish
from lever_machine import LeverMachine
from lever_owner import cycle, forked, sweep, warm_up
from support.nvml_stub import build
from wattloop.cli.main import main as wattloop
from wattloop.measure.command import PROC

LATEST_S = {"sweep": 3.0, "cycle": 0.5}
"""Kills lie within this time; a sweep takes one to ten seconds, a hold of the other about 50 ms."""
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
    """One program that was killed, and the state of the settings."""

    number: int
    program: str
    target: str
    levers: tuple[str, ...]
    after_s: float
    ended: bool = False
    """It was through before the kill."""
    left_set: int = 0
    """Settings that were not at their previous value right after the kill."""
    journals: int = 0
    """Journals that were there right after the kill."""
    problems: list[str] = field(default_factory=list)
    traceback: str = ""
    """What a program that was asked to end (SIGTERM) said of itself; its settings are back."""

    @property
    def restored(self) -> bool:
        return not self.problems


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1_000, help="of sweeps")
    parser.add_argument("--cycles", type=int, default=250, help="kills of the other program")
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)) * 2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.quick:
        options.kills, options.cycles = min(options.kills, 8), min(options.cycles, 8)
    begin_s = time.monotonic()
    rng = random.Random(options.seed)
    kills = plan("sweep", options.kills, rng) + plan("cycle", options.cycles, rng, options.kills)
    kills = all_kills(kills, options.at_once)
    publish(page_of(kills, time.monotonic() - begin_s), options)
    for kill in kills:
        if kill.traceback:
            print(f"kill {kill.number}: {kill.traceback}", file=sys.stderr)
        for problem in kill.problems:
            where = f"kill {kill.number} ({kill.program}, {kill.target}, {kill.levers})"
            print(f"{where}: {problem}", file=sys.stderr)


def plan(program: str, count: int, rng: random.Random, first: int = 0) -> list[Kill]:
    """Spread kills evenly over targets; every other one hits two levers of different kinds."""
    kills = []
    for number in range(count):
        target = TARGETS[number // 2 % len(TARGETS)]
        nvml, file = rng.choice(NVML), rng.choice(FILES)
        levers = (nvml, file) if number % 2 else (rng.choice((nvml, file)),)
        after_s = rng.uniform(0, LATEST_S[program])
        kills.append(Kill(first + number, program, target, levers, after_s))
    return kills


def all_kills(kills: Sequence[Kill], at_once: int) -> list[Kill]:
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
        os.environ.update(machine.environment)
        os.chdir(folder)
        with Path(os.devnull).open("w") as nowhere:
            sys.stdout = sys.stderr = nowhere
            warm_up()
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        for kill in kills:
            try:
                strike(machine, kill)
            except Exception as error:  # noqa: BLE001 - one kill must not cost the others
                kill.problems.append(f"{type(error).__name__}: {error}")
        return kills


def strike(machine: LeverMachine, kill: Kill) -> None:
    rng = random.Random(kill.number)
    machine.shuffle(rng)
    machine.forget_runs()
    before = machine.settings()
    output = machine.folder / "output"
    program = sweep if kill.program == "sweep" else cycle
    owner = forked(partial(program, kill.levers, kill.number), output)
    time.sleep(kill.after_s)
    guardians = guardians_of(owner)
    kill.ended = os.waitid(os.P_PID, owner, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    if kill.target == "guardian":
        end(guardians)
        time.sleep(rng.uniform(0, 0.05))
        end([owner], signal.SIGTERM)  # it continues without its watchdog, and restores by itself
    else:
        order = (
            [[owner], guardians] if kill.target == "both, program first" else [guardians, [owner]]
        )
        for pids in [[owner]] if kill.target == "program" else order:
            end(pids)
    kill.left_set = sum(value != before[name] for name, value in machine.settings().items())
    kill.journals = len(list(machine.state.glob("*.journal")))
    os.waitpid(owner, 0)
    text = output.read_text()
    if "Traceback" in text:
        kill.traceback = text[-500:]
    judge(machine, kill, before)


def judge(machine: LeverMachine, kill: Kill, before: dict[str, object]) -> None:
    output = machine.folder / "restored"
    _, status = os.waitpid(forked(partial(wattloop, ["restore", "--json", "-"]), output), 0)
    if status != 0:
        kill.problems.append(f"restore ended with {status}: {output.read_text()}")
    after = machine.settings()
    for name, value in before.items():
        if after[name] != value:
            kill.problems.append(f"{name} is {after[name]}, it was {value}")
    left = sorted(path.name for path in machine.state.glob("*.journal"))
    if left:
        kill.problems.append(f"journals left: {left}")
    if status == 0 and not json.loads(output.read_text())["ok"]:
        kill.problems.append("restore does not say ok")


def guardians_of(pid: int) -> list[int]:
    try:
        children = (PROC / f"{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in children if b"wattloop.control.watchdog" in command(child)]


def command(pid: str) -> bytes:
    try:
        return (PROC / pid / "cmdline").read_bytes()
    except OSError:
        return b""


def end(pids: Sequence[int], number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def page_of(kills: Sequence[Kill], took_s: float) -> Page:
    sweeps = [kill for kill in kills if kill.program == "sweep"]
    cycles = [kill for kill in kills if kill.program == "cycle"]
    bars = [
        Bar(
            "restored",
            sum(kill.restored for kill in sweeps),
            "kills",
            len(sweeps),
            at_least=True,
            note="every setting of the machine at its previous value, and no journal left",
        ),
        Bar("kills", len(sweeps), "kills", 1_000, at_least=True, note="of `wattloop sweep`"),
        Bar(
            "cycles_restored",
            sum(kill.restored for kill in cycles),
            "kills",
            len(cycles),
            at_least=True,
            note=f"of the program that holds and lets go; all kills took {took_s:.0f} s",
        ),
    ]
    shouted = sum(bool(kill.traceback) for kill in kills)
    note = "programs that were asked to end and printed a traceback; their settings are back"
    bars.append(Bar("tracebacks", shouted, "programs", 0, note=note))
    rows = [
        [
            program,
            target,
            len(own),
            sum(len(kill.levers) == 2 for kill in own),
            sum(kill.journals > 0 for kill in own),
            sum(kill.left_set > 0 for kill in own),
            sum(kill.ended for kill in own),
            sum(kill.restored for kill in own),
        ]
        for program, all_own in (("sweep", sweeps), ("cycle", cycles))
        for target in TARGETS
        if (own := [kill for kill in all_own if kill.target == target])
    ]
    header = (
        "program",
        "killed",
        "kills",
        "with two levers",
        "while held",
        "something was set",
        "after its end",
        "all restored",
    )
    text = (
        "*While held*: a journal was there right after the kill. *Something was set*: a setting "
        "was not at its previous value then, when a guardian may already have been at work."
    )
    title = "1,000 kills of a sweep"
    return Page(
        "lever_kills",
        title,
        bars,
        [Table("By what was killed", header, rows, text)],
        __doc__.partition("\n\n")[2],
    )


if __name__ == "__main__":
    main()
