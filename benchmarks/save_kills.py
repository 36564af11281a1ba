"""Restored levers after kills during `wattloop run --save`.

`wattloop run --save` runs a program that steps, on two stub NVIDIA cards behind the real
nvidia-ml-py, whose power follows their limits and clocks. The saver's slices last tenths of a
second, so that it sets levers a few times a second. At a random moment wattloop, the program, the
watchdog, or several of them in random order and some milliseconds apart, are killed with SIGKILL: a
third of them shortly after a lever was set, and a third when the journal appears. In some cases
wattloop or the program are asked to end instead. A wattloop that still runs is then asked to end
(SIGTERM). Where the watchdog was not killed, levers must be restored without help; then `wattloop
restore` runs, as a user would run it, and every setting of the machine is compared with what it was
before. Previous limits are drawn for each kill. A run that could not be struck, because its program
did not step or ended first, is counted, ended, restored and begun again.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
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
"""A third of the kills lie within this time of the first file of steps."""
TRAINS_S = 120.0
"""Longer than any wait for a lever: the program is killed before."""
SHORTLY_S = 0.3
"""A third of the kills lie within this time after a lever was set."""
JOURNAL_S = 0.03
"""A third lie within this time after the journal appears."""
IDLE_S = 60.0
"""A run whose processes used no processor time for so long does not step any more."""
MOST_TRIES = 5
ALONE_S = 300.0
"""Longest wait for the watchdog to restore; as long as it runs, it may still do so."""
QUIET_S = 2.0
"""No watchdog may be seen for so long: one that has just been started has no name yet."""
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
    not_struck: int = 0
    """Runs that did not step, or ended before the kill, and were begun again."""


class NotStruckError(Exception):
    """The run had ended before the kill."""


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=600)
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)) * 2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="file of kills so far, to continue after them")
    parser.add_argument("--now", type=int, help="most kills of this call; the rest next time")
    options = parser.parse_args()
    if options.quick:
        options.kills = min(options.kills, len(TARGETS))
    rng = random.Random(options.seed)
    kills = [
        SaveKill(n, "save", TARGETS[n % len(TARGETS)], (), rng.uniform(0, LATEST_S))
        for n in range(options.kills)
    ]
    done, took_s = kept(options.keep)
    begin_s = time.monotonic()
    numbers = {kill.number for kill in done}
    left = [kill for kill in kills if kill.number not in numbers][: options.now]
    kills = sorted(done + all_kills(left, options.at_once), key=lambda kill: kill.number)
    took_s += time.monotonic() - begin_s
    if options.keep is not None:
        data = {"took_s": took_s, "kills": [asdict(kill) for kill in kills]}
        options.keep.write_text(json.dumps(data), encoding="utf-8")
    publish(page_of(kills, took_s), options)
    for kill in kills:
        for problem in [*kill.problems, *([kill.traceback] if kill.traceback else [])]:
            print(f"kill {kill.number} ({kill.target}): {problem}", file=sys.stderr)


def kept(path: Path | None) -> tuple[list[SaveKill], float]:
    """Return kills of earlier calls, and the time they took."""
    if path is None or not path.exists():
        return [], 0.0
    data = json.loads(path.read_text(encoding="utf-8"))
    return [SaveKill(**kill) for kill in data["kills"]], data["took_s"]


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
    for _ in range(MOST_TRIES):
        rng = random.Random(kill.number)
        machine.shuffle(rng)
        machine.forget_runs()
        before = machine.settings()
        output = machine.folder / "output"
        owner = forked(partial(saved_run, TRAINS_S), output)
        try:
            program = wait_for_moment(machine, kill, before, owner)
        except NotStruckError:
            kill.not_struck += 1
            end_all(machine, owner)
            continue
        kill_processes(machine, kill, before, owner, program, rng)
        judge(machine, kill, before)
        if kill.problems:  # which the kills after it must not meet again
            os.waitpid(forked(partial(wattloop, ["restore", "--force"]), output), 0)
        return
    kill.problems.append(f"not struck: {output.read_text()[-500:]}")


def wait_for_moment(
    machine: LeverMachine, kill: SaveKill, before: dict[str, object], owner: int
) -> int:
    """Return the process number of the program when it is time to kill."""
    program = wait_for_program(machine.folder, owner)
    moment = kill.number // len(TARGETS) % 3
    if moment == 0:
        time.sleep(kill.after_s)
    elif moment == 1:
        wait_until(lambda: machine.settings() != before, owner)
        time.sleep(kill.after_s * SHORTLY_S / LATEST_S)
    else:
        wait_until(lambda: any(machine.state.glob("*.journal")), owner)
        time.sleep(kill.after_s * JOURNAL_S / LATEST_S)
    if not runs(owner):
        raise NotStruckError
    return program


def kill_processes(
    machine: LeverMachine,
    kill: SaveKill,
    before: dict[str, object],
    owner: int,
    program: int,
    rng: random.Random,
) -> None:
    found = {"wattloop": [owner], "program": [program], "watchdog": watchdogs(machine)}
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
    text = (machine.folder / "output").read_text()
    if "Traceback" in text:
        kill.traceback = text[-800:]
    if not {"wattloop", "watchdog"} <= set(victims):
        kill.alone = is_back(machine, before)
        if not kill.alone:
            journals = [path.read_text() for path in machine.state.glob("*.journal")]
            kill.problems.append(
                f"not restored without 'wattloop restore': before {before}, now "
                f"{machine.settings()}, watchdogs {found['watchdog']}, journals {journals}, {text}"
            )


def end_all(machine: LeverMachine, owner: int) -> None:
    """End a run that was not killed, and restore its machine for the next one."""
    end([owner, *processes(b"saved_program", machine.folder), *watchdogs(machine)])
    os.waitpid(owner, 0)
    output = machine.folder / "restored"
    os.waitpid(forked(partial(wattloop, ["restore", "--force"]), output), 0)


def is_back(machine: LeverMachine, before: dict[str, object]) -> bool:
    """Return true if every setting is restored when the last process that could do it has ended."""
    give_up_s = time.monotonic() + ALONE_S
    seen_s = time.monotonic()
    while machine.settings() != before or list(machine.state.glob("*.journal")):
        now_s = time.monotonic()
        if watchdogs(machine):
            seen_s = now_s
        if now_s > min(give_up_s, seen_s + QUIET_S):
            return machine.settings() == before and not list(machine.state.glob("*.journal"))
        time.sleep(0.02)
    return True


def runs(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on."""
    try:
        return (PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def wait_until(met: Callable[[], bool], owner: int) -> None:
    while not met():
        if not runs(owner):
            raise NotStruckError
        time.sleep(0.001)


def wait_for_program(folder: Path, owner: int) -> int:
    """Return the process number of the program, once it steps."""
    used, progress_s = -1, time.monotonic()
    while runs(owner) and time.monotonic() < progress_s + IDLE_S:
        for path in step_files(folder):
            pid = int(path.name.partition("-")[0])
            if b"saved_program" in command(str(pid)):
                return pid
        now_used = sum(
            int(ticks)
            for pid in (owner, *processes(b"saved_program", folder))
            for ticks in _stat(pid)[11:13]
        )
        if now_used != used:
            used, progress_s = now_used, time.monotonic()
        time.sleep(0.01)
    raise NotStruckError


def step_files(folder: Path) -> list[Path]:
    try:
        return list(folder.glob("wattloop-steps-*/*.steps"))
    except OSError:  # of a run that has just ended
        return []


def watchdogs(machine: LeverMachine) -> list[int]:
    return processes(b"wattloop.control.watchdog", machine.state)


def processes(word: bytes, folder: Path) -> list[int]:
    """Return processes with the word in their command that work in the folder, or name it.

    They are looked up by command: their parent may have been killed while it started them.
    """
    found = []
    for place in PROC.glob("[0-9]*"):
        words = command(place.name)
        if word in words and (os.fsencode(folder) in words or _works_in(place, folder)):
            found.append(int(place.name))
    return found


def _works_in(place: Path, folder: Path) -> bool:
    try:
        return (place / "cwd").samefile(folder)
    except OSError:
        return False


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
        Bar(
            "not_struck",
            sum(kill.not_struck for kill in kills),
            "runs",
            note="did not step or ended before the kill; begun again, not among the kills",
        ),
        Bar("tracebacks", sum(bool(kill.traceback) for kill in kills), "programs", 0),
    ]
    rows = [
        [
            target,
            len(own),
            sum(kill.journals > 0 for kill in own),
            sum(kill.left_set > 0 for kill in own),
            sum(kill.not_struck for kill in own),
            sum(kill.restored for kill in own),
        ]
        for target in TARGETS
        if (own := [kill for kill in kills if kill.target == target])
    ]
    header = ("killed", "kills", "while held", "while set", "not struck", "all restored")
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
