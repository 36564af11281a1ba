"""Is every lever back when something is killed during `wattloop run --save`?

`wattloop run --save` runs a program that steps, on two stub NVIDIA cards behind the real
nvidia-ml-py, whose power follows their limits and clocks. The saver's slices last tenths of a
second, so that it sets levers a few times a second. At a random moment wattloop, the program, the
watchdog, or several of them in random order and some milliseconds apart, are killed with SIGKILL: a
third of them shortly after a lever was set, and a third when the journal appears. In some cases
wattloop or the program are asked to end instead. A wattloop that still lives is then asked to end
(SIGTERM). Where the watchdog was not killed, levers have to be back without help; then `wattloop
restore` runs, as a user would run it, and every setting of the machine is compared with what it was
before. Previous limits are drawn for each kill.
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bars import Bar, Page, Table, arguments, publish
from lever_kills import Kill, command, end, judge
from lever_machine import GPUS, LeverMachine
from lever_owner import forked, saved_run, warm_up
from support.nvml_stub import build
from wattloop.cli.main import main as wattloop
from wattloop.measure.command import PROC

LATEST_S = 4.0
"""Kills lie within this time of the first file of steps; the program trains for 8 s."""
SHORTLY_S = 0.3
"""A third of the kills lie within this time after a lever was set."""
JOURNAL_S = 0.03
"""A third lie within this time after the journal appears."""
STARTED_S = 20.0
ALONE_S = 300.0
"""Longest wait for the watchdog to restore; as long as it runs, it may still do so."""
TARGETS = (
    "wattloop",
    "program",
    "watchdog",
    "wattloop and program",
    "wattloop and watchdog",
    "program and watchdog",
    "all three",
    "SIGTERM to wattloop",
    "SIGINT to wattloop",
    "SIGTERM to the program",
)


@dataclass
class SaveKill(Kill):
    """One run of the saver, and what became of the settings."""

    alone: bool | None = None
    """Every setting was back without `wattloop restore`; None where that was not to be expected."""


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=600)
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)) * 2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.quick:
        options.kills = min(options.kills, len(TARGETS))
    begin_s = time.monotonic()
    rng = random.Random(options.seed)
    kills = [
        SaveKill(n, "save", TARGETS[n % len(TARGETS)], (), rng.uniform(0, LATEST_S))
        for n in range(options.kills)
    ]
    kills = all_kills(kills, options.at_once)
    publish(page_of(kills, time.monotonic() - begin_s), options)
    for kill in kills:
        for problem in [*kill.problems, *([kill.traceback] if kill.traceback else [])]:
            print(f"kill {kill.number} ({kill.target}): {problem}", file=sys.stderr)


def all_kills(kills: Sequence[SaveKill], at_once: int) -> list[SaveKill]:
    shares = [kills[i::at_once] for i in range(at_once)]
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "nvml"
        build(library)
        folders = [str(Path(folder) / f"machine-{i}") for i in range(at_once)]
        with ProcessPoolExecutor(at_once, mp_context=get_context("spawn")) as pool:
            done = pool.map(on_one_machine, folders, [str(library)] * at_once, shares)
            return sorted((kill for share in done for kill in share), key=lambda k: k.number)


def on_one_machine(folder: str, library: str, kills: Sequence[SaveKill]) -> Sequence[SaveKill]:
    with LeverMachine(Path(folder), Path(library)) as machine:
        os.environ.update(machine.environment | {"TMPDIR": folder})
        os.chdir(folder)
        for index in range(GPUS):
            machine.stub.constant(index, 650.0)
        with Path(os.devnull).open("w") as nowhere:
            sys.stdout = sys.stderr = nowhere
            warm_up()
            saved_run(0.3)
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        for kill in kills:
            try:
                strike(machine, kill)
            except Exception as error:  # noqa: BLE001 - one kill must not cost the others
                kill.problems.append(f"{type(error).__name__}: {error}")
        return kills


def strike(machine: LeverMachine, kill: SaveKill) -> None:
    rng = random.Random(kill.number)
    machine.shuffle(rng)
    machine.forget_runs()
    before = machine.settings()
    output = machine.folder / "output"
    owner = forked(partial(saved_run, 8.0), output)
    program = wait_for_program(machine.folder, owner)
    moment = kill.number // len(TARGETS) % 3
    if moment == 0:
        time.sleep(kill.after_s)
    elif moment == 1:
        wait_until(lambda: machine.settings() != before)
        time.sleep(kill.after_s * SHORTLY_S / LATEST_S)
    else:
        wait_until(lambda: any(machine.state.glob("*.journal")))
        time.sleep(kill.after_s * JOURNAL_S / LATEST_S)
    found = {"wattloop": [owner], "program": [program], "watchdog": watchdogs_of(owner)}
    kill.ended = os.waitid(os.P_PID, owner, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    kill.left_set = sum(value != before[name] for name, value in machine.settings().items())
    kill.journals = len(list(machine.state.glob("*.journal")))
    signalled, victims = signal.SIGKILL, []
    if kill.target.startswith("SIG"):
        signalled = signal.SIGTERM if "TERM" in kill.target else signal.SIGINT
        victims = ["program" if "program" in kill.target else "wattloop"]
    else:
        victims = [name for name in found if name in kill.target or kill.target == "all three"]
    rng.shuffle(victims)
    for name in victims:
        end(found[name], signalled)
        time.sleep(rng.choice((0.0, rng.uniform(0, 0.03))))
    if signalled is signal.SIGKILL and "wattloop" not in victims:
        time.sleep(rng.uniform(0, 0.05))
        end([owner], signal.SIGTERM)
    os.waitpid(owner, 0)
    end([program])
    text = output.read_text()
    if "Traceback" in text:
        kill.traceback = text[-800:]
    if not {"wattloop", "watchdog"} <= set(victims):
        kill.alone = is_back(machine, before, found["watchdog"])
        if not kill.alone:
            kill.problems.append("not restored without 'wattloop restore'")
    judge(machine, kill, before)
    if kill.problems:  # which the kills after it must not meet again
        os.waitpid(forked(partial(wattloop, ["restore", "--force"]), output), 0)


def is_back(machine: LeverMachine, before: dict[str, object], watchdogs: Sequence[int]) -> bool:
    """Whether every setting is back when the last process that could restore it has ended."""
    give_up_s = time.monotonic() + ALONE_S
    last_look = False
    while machine.settings() != before or list(machine.state.glob("*.journal")):
        if last_look:
            return False
        last_look = time.monotonic() > give_up_s or not any(map(runs, watchdogs))
        time.sleep(0.01)
    return True


def runs(pid: int) -> bool:
    try:
        text = (PROC / f"{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def wait_until(met: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + LATEST_S
    while not met() and time.monotonic() < give_up_s:
        time.sleep(0.001)


def wait_for_program(folder: Path, owner: int) -> int:
    """Process number of the program, once it steps."""
    give_up_s = time.monotonic() + STARTED_S
    while time.monotonic() < give_up_s:
        for path in step_files(folder):
            pid = int(path.name.partition("-")[0])
            if (PROC / str(pid)).exists() and b"saved_program" in command(str(pid)):
                return pid
        if os.waitid(os.P_PID, owner, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        time.sleep(0.01)
    raise RuntimeError(f"the program did not step: {(folder / 'output').read_text()[-500:]}")


def step_files(folder: Path) -> list[Path]:
    try:
        return list(folder.glob("wattloop-steps-*/*.steps"))
    except OSError:  # of a run that has just ended
        return []


def watchdogs_of(pid: int) -> list[int]:
    """Children of any thread of the process: the saver's thread starts the watchdog."""
    found = []
    for task in (PROC / f"{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        found += [int(c) for c in children if b"wattloop.control.watchdog" in command(c)]
    return found


def page_of(kills: Sequence[SaveKill], took_s: float) -> Page:
    alone = [kill for kill in kills if kill.alone is not None]
    bars = [
        Bar(
            "restored",
            sum(kill.restored for kill in kills),
            "kills",
            len(kills),
            at_least=True,
            note="every setting of the machine at its previous value, and no journal left",
        ),
        Bar("kills", len(kills), "kills", 500, at_least=True, note=f"all took {took_s:.0f} s"),
        Bar(
            "restored_alone",
            sum(bool(kill.alone) for kill in alone),
            "kills",
            len(alone),
            at_least=True,
            note="where wattloop or its watchdog lived: without `wattloop restore`",
        ),
        Bar(
            "while_set",
            sum(kill.left_set > 0 for kill in kills),
            "kills",
            note="a lever was away from its previous value at the moment of the kill",
        ),
        Bar("tracebacks", sum(bool(kill.traceback) for kill in kills), "programs", 0),
    ]
    rows = [
        [
            target,
            len(own),
            sum(kill.journals > 0 for kill in own),
            sum(kill.left_set > 0 for kill in own),
            sum(kill.ended for kill in own),
            sum(kill.restored for kill in own),
        ]
        for target in TARGETS
        if (own := [kill for kill in kills if kill.target == target])
    ]
    header = ("killed", "kills", "while held", "while set", "after its end", "all restored")
    text = "*While held*: a journal was there at the moment of the kill."
    return Page(
        "save_kills",
        f"{len(kills)} kills of `wattloop run --save`",
        bars,
        [Table("By what was killed", header, rows, text)],
        __doc__.partition("\n\n")[2],
    )


if __name__ == "__main__":
    main()
