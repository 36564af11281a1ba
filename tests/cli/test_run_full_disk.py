"""A promise of `wattloop run` on a full disk: what it prints and what the store has later agree."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Machine
from wattloop.core.units import format_energy

SMALL_DISK = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'
FILL = """
import sys, time
disk, wait_s = sys.argv[1], float(sys.argv[2])
time.sleep(wait_s)
with open(f"{disk}/ballast", "ab", buffering=0) as file:
    for size in (65_536, 4_096, 1):
        try:
            while True:
                file.write(bytes(size))
        except OSError:
            pass
print("full", flush=True)
time.sleep(2 * wait_s)
"""
SESSION = """
import json, os, subprocess, sys
disk, fill, out = sys.argv[1:]
wattloop = [sys.executable, "-m", "wattloop.cli.main"]
done = subprocess.run(
    [*wattloop, "run", "--interval", "0.02", "--json", out,
     "--tag", "note=" + "x" * 100_000,  # in the store twice: the room of the end is too small
     "--", sys.executable, "-c", fill, disk, "1.5"], capture_output=True, text=True)
os.unlink(f"{disk}/ballast")
listed = subprocess.run(
    [*wattloop, "runs", "list", "--json", "-"], capture_output=True, text=True)
print(json.dumps({"code": done.returncode, "out": done.stdout, "said": done.stderr,
                  "runs": json.loads(listed.stdout)["runs"]}))
"""
JOURNAL = """
import json, pathlib, sys
from array import array
from wattloop.store.journal import read_journal
from wattloop.store.journal import JournalWriter
disk, fill = sys.argv[1:]
path = pathlib.Path(disk, "a.journal")
writer = JournalWriter(path, {"run_id": "r"})
sys.argv = ["fill", disk, "0"]
exec(fill.replace('print("full", flush=True)', ""))
for i in range(40):
    times = array("d", [float(i)] * 4_000)
    writer.samples(0, 1, times, times)
    writer.event({"type": "window", "number": i})
assert writer.fault
written = writer.end({"status": "finished"})
writer.close()
found = read_journal(path)
print(json.dumps({"written": written, "end": found.end, "torn": found.torn_bytes,
                  "events": [e["number"] for e in found.events],
                  "dropped": writer.dropped_frames, "files": len(list(path.parent.iterdir()))}))
"""


def on_small_disk(machine: Machine, *command: str) -> dict[str, object]:
    """Run a command with 1 MiB of disk of its own, in a mount namespace: root is not needed."""
    disk = machine.folder / "disk"
    disk.mkdir()
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK, str(disk)]
    try:
        probe = subprocess.run([*words, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare(1) here to make a small disk with")
    if probe.returncode != 0:
        pytest.skip(f"no user namespaces here to make a small disk in: {probe.stderr!r}")
    environment = {**machine.environment, "WATTLOOP_STORE": str(disk / "runs.db")}
    done = subprocess.run(
        [*words, *command], env=environment, capture_output=True, timeout=600, check=True
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_disk_that_fills_up_keeps_the_result_that_was_printed(machine: Machine) -> None:
    """The end of a run has room on the disk: the store has the printed joules, and `finished`."""
    out, disk = machine.folder / "run.json", machine.folder / "disk"
    found = on_small_disk(machine, sys.executable, "-c", SESSION, str(disk), FILL, str(out))
    printed = json.loads(out.read_text())
    assert found["code"] == 0
    assert found["out"] == "full\n"
    (kept,) = found["runs"]  # type: ignore[misc]  # parsed JSON
    assert kept["status"] == "finished"
    assert kept["energy_j"] == pytest.approx(printed["energy_j"])
    said = str(found["said"])
    assert "nothing is lost" not in said
    assert "the run is not in the store yet" in said
    assert "status finished" in said


def test_end_of_a_run_goes_before_readings_that_do_not_fit(machine: Machine) -> None:
    """2.5 MB wait for a disk with 256 KiB: windows and the end are written, readings dropped."""
    disk = machine.folder / "disk"
    found = on_small_disk(machine, sys.executable, "-c", JOURNAL, str(disk), FILL)
    assert found["written"] is True
    assert found["end"] == {"status": "finished"}
    assert found["events"] == list(range(40))
    assert found["dropped"] == 40
    assert found["torn"] == 0
    assert found["files"] == 2  # the journal and the ballast: the reserve has no name


def test_journal_that_cannot_have_its_end_is_not_called_safe(machine: Machine) -> None:
    """Files limited to 6 kB: no reserve helps. The message names the joules that the store gets."""
    out = machine.folder / "run.json"
    command = machine.command("run", "--json", str(out), "--", "sleep", "2")
    done = subprocess.run(
        command,
        env=machine.environment,
        cwd=machine.folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, 6_000)),
    )
    assert "nothing is lost" not in done.stderr
    (journal,) = Path(f"{machine.store}.journals").glob("*.journal")
    assert str(journal) in done.stderr
    listed = machine.wattloop("runs", "list", "--json", "-")
    (kept,) = json.loads(listed.stdout)["runs"]
    printed = json.loads(out.read_text()) if out.stat().st_size else {}
    assert kept["status"] == "died"
    assert kept["energy_j"] != printed.get("energy_j")
    assert format_energy(kept["energy_j"]) in done.stderr
    assert "listed as died" in done.stderr
