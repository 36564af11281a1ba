"""Stores that cannot be written: the measured program must not be affected."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fault_machine import FaultMachine, fault_machine

OUTPUT = "one\ntwo\nthree\n"
EXIT_CODE = 5
WORK = """
for word in ("one", "two", "three"):
    print(word, flush=True)
    time.sleep(0.4)
"""
PROGRAM = f"import sys, time\n{WORK}\nsys.exit({EXIT_CODE})"
MEASURED = f"""
import json, sys, time, wattloop
with wattloop.measure("disk") as m:
    {WORK.replace(chr(10), chr(10) + "    ")}
with open(sys.argv[1], "w") as file:
    json.dump(list(m.run.result.warnings), file)
sys.exit({EXIT_CODE})
"""


@dataclass(frozen=True)
class DiskTrial:
    """One program on one bad disk."""

    case: str
    way: str
    unharmed: bool
    explained: bool
    kept: str
    """How the run is listed once the disk is well again."""


@dataclass
class Disk:
    """A small file system of its own, or limits that act like one."""

    folder: Path
    mounted: bool

    @property
    def store(self) -> Path:
        return self.folder / "runs.db"

    def fill(self) -> None:
        with (self.folder / "ballast").open("ab", buffering=0) as file:
            for size in (65_536, 4_096, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    def make_read_only(self) -> None:
        if self.mounted:
            subprocess.run(["mount", "-o", "remount,ro", self.folder], check=True)
        else:
            self.folder.chmod(0o555)

    def heal(self) -> None:
        if self.mounted:
            subprocess.run(["mount", "-o", "remount,rw", self.folder], check=True)
        else:
            self.folder.chmod(0o755)
        (self.folder / "ballast").unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """Make 1 MiB of tmpfs where mounts are allowed, else a plain folder with limits on file
    sizes.
    """
    place = folder / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield Disk(place, mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=False)


def run_disks(*, quick: bool) -> list[DiskTrial]:
    cases = {
        "full before the start": _full_before,
        "full in the middle of the run": _full_midway,
        "read-only": _read_only,
    }
    if quick:
        cases = {"full in the middle of the run": _full_midway}
    trials = []
    for case, spoil in cases.items():
        for way in ("wattloop run",) if quick else ("wattloop run", "measure()"):
            with (
                tempfile.TemporaryDirectory() as folder,
                fault_machine(Path(folder)) as machine,
                small_disk(Path(folder)) as disk,
            ):
                if disk.mounted or os.geteuid() != 0 or case != "read-only":  # root writes anyway
                    trials.append(_trial(machine, disk, case, way, spoil))
    return trials


Spoil = Callable[[Disk, bool], None]
"""Called before the program is started (False) and in the middle of it (True)."""


def _full_before(disk: Disk, midway: bool) -> None:
    if disk.mounted and not midway:
        disk.fill()


def _full_midway(disk: Disk, midway: bool) -> None:
    if disk.mounted and midway:
        disk.fill()


def _read_only(disk: Disk, midway: bool) -> None:
    if not midway:
        disk.make_read_only()


def _limits(disk: Disk, case: str) -> Callable[[], None] | None:
    """Return a limit on the size of files, which acts like a full disk."""
    if disk.mounted or "full" not in case:
        return None
    size = 0 if "before" in case else 6_000
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _trial(machine: FaultMachine, disk: Disk, case: str, way: str, spoil: Spoil) -> DiskTrial:
    told = machine.folder / "told.json"
    script = PROGRAM if way == "wattloop run" else MEASURED
    command = [sys.executable, "-c", script, str(told)]
    if way == "wattloop run":
        command = machine.command("run", "--name", "disk", "--", *command)
    spoil(disk, False)
    process = subprocess.Popen(
        command,
        env={**machine.environment, "WATTLOOP_STORE": str(disk.store)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_limits(disk, case),  # noqa: PLW1509 - no other thread runs here
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(0.3)
    spoil(disk, True)
    rest, errors = process.communicate(timeout=60)
    disk.heal()
    unharmed = (process.returncode, first + rest) == (EXIT_CODE, OUTPUT)
    if way == "wattloop run":
        explained = "warning" in errors
    else:
        explained = told.exists() and bool(json.loads(told.read_text()))
    unharmed = unharmed and "Traceback" not in errors
    if not (unharmed and explained):
        print(f"{case}, {way}: {process.returncode} {first + rest!r} {errors}", file=sys.stderr)
    return DiskTrial(case, way, unharmed, explained, _kept(machine, disk))


def _kept(machine: FaultMachine, disk: Disk) -> str:
    done = subprocess.run(
        machine.command("runs", "list", "--json", "-"),
        env={**machine.environment, "WATTLOOP_STORE": str(disk.store)},
        capture_output=True,
        text=True,
        check=False,
    )
    runs = json.loads(done.stdout)["runs"] if done.returncode == 0 else []
    return ", ".join(run["status"] for run in runs) or "no"
