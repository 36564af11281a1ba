"""Promises of the audit log: one line per event, rotated when full, readable by people."""

import json
import os
from pathlib import Path

import pytest

from tests.control.daemon.conftest import DaemonRig
from wattloop.control.daemon.audit_log import AuditLog, read_log
from wattloop.control.daemon.protocol import Peer
from wattloop.core.errors import ConfigError

STRANGER = Peer(8, 1001, frozenset(), "mallory", "sh")
PEER = Peer(7, 1000, frozenset(), "alice", "python train.py")


def test_full_files_are_turned_over_and_read_in_order(tmp_path: Path) -> None:
    """The newest lines stay, and the oldest are removed."""
    log = AuditLog(tmp_path / "c.jsonl", turn_over_b=1_000, kept=3)
    for number in range(100):
        log.write("set", PEER, lever="gpu:0/power_limit", before=1.0, after=float(number), why="")
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "c.jsonl",
        "c.jsonl.1",
        "c.jsonl.2",
        "c.jsonl.3",
        "c.refused.jsonl",
    ]
    assert all(path.stat().st_size <= 1_000 for path in tmp_path.iterdir())
    values = [line["after"] for line in read_log(tmp_path / "c.jsonl")]
    assert values == [float(number) for number in range(100 - len(values), 100)]
    assert len(values) >= 12
    assert (tmp_path / "c.jsonl").stat().st_mode & 0o777 == 0o640


def test_refusals_cannot_push_changes_out(tmp_path: Path) -> None:
    """They have files of their own, and one user's are summed up; the count includes all."""
    log = AuditLog(tmp_path / "c.jsonl", turn_over_b=20_000, kept=2)
    log.write("set", PEER, lever="gpu:0/power_limit", before=700.0, after=400.0, why="")
    for number in range(10_000):
        log.write("refused", STRANGER, lever=f"gpu:{number}/power_limit", why="no rule")
    log.close()
    lines = list(read_log(tmp_path / "c.jsonl"))
    assert [line["event"] for line in lines].count("set") == 1
    assert lines[-1]["lever"] == "gpu:9999/power_limit", "the last one is listed"
    files = sum(path.stat().st_size for path in tmp_path.glob("c.refused.jsonl*"))
    assert files <= 60_000
    assert lines[-1]["unlisted_before"] > 9_000


def test_masses_of_changes_cannot_push_out_those_of_others(tmp_path: Path) -> None:
    """For a user who sets and releases endlessly, the last change is listed with the count."""
    log = AuditLog(tmp_path / "c.jsonl", turn_over_b=50_000, kept=2)
    log.write("set", PEER, lever="gpu:0/power_limit", before=700.0, after=400.0, why="")
    for number in range(5_000):
        log.write("set", STRANGER, lever="gpu:1/power_limit", before=1.0, after=float(number))
        log.write("released", STRANGER, lever="gpu:1/power_limit", before=float(number), after=1.0)
    log.sum_up(3_600.0)
    assert len(list(read_log(tmp_path / "c.jsonl"))) < 400, "not yet summed up"
    log.sum_up(0.0)
    lines = list(read_log(tmp_path / "c.jsonl"))
    assert lines[0]["user"] == "alice"
    last = {line["event"]: line for line in lines if line["user"] == "mallory"}
    assert last["set"]["after"] == 4_999.0
    listed = [line for line in lines if line["user"] == "mallory"]
    assert sum(1 + line.get("unlisted_before", 0) for line in listed) == 10_000
    log.close()


def test_a_full_disk_costs_lines_and_says_so(tmp_path: Path) -> None:
    """No request fails, and the next written line counts the missing ones."""
    log = AuditLog(tmp_path / "c.jsonl")
    file = log._changes
    good, file.descriptor = file.descriptor, os.open("/dev/full", os.O_WRONLY)
    log.write("set", PEER)
    log.write("set", PEER)
    os.close(file.descriptor)
    file.descriptor = good
    log.write("set", PEER)
    log.close()
    (line,) = read_log(tmp_path / "c.jsonl")
    assert line["lines_lost_before"] == 2


def test_a_log_that_is_not_ours_is_not_followed(tmp_path: Path) -> None:
    """A link in its place would let root write elsewhere."""
    (tmp_path / "c.jsonl").symlink_to(tmp_path / "passwd")
    with pytest.raises(ConfigError, match="the log cannot be written"):
        AuditLog(tmp_path / "c.jsonl")
    with pytest.raises(ConfigError, match="no log found"):
        list(read_log(tmp_path / "none.jsonl"))


def test_the_command_shows_it(rig: DaemonRig) -> None:
    """A table or JSON, by user, lever, or refusals only; a torn line is left out."""
    log = AuditLog(rig.folder / "c.jsonl")
    log.write("set", PEER, lever="gpu:0/power_limit", before=700.0, after=400.0, job="9", why="")
    log.write("refused", PEER, lever="gpu:1/power_limit", why="\x1b[31mred")
    log.write("default", lever="gpu:0/power_limit", before=700.0, after=630.0, why="cap of 90%")
    log.close()
    with (rig.folder / "c.jsonl").open("a") as file:
        file.write('{"time": "2026')
    words = ["control-daemon", "log", "--rules", str(rig.rules)]
    shown = rig.wattloop(*words).stdout
    assert "alice (job 9)" in shown and "?[31mred" in shown and "\x1b" not in shown
    assert len(shown.splitlines()) == 4
    done = rig.wattloop(*words, "--user", "alice", "--refused", "--json", "-")
    (line,) = json.loads(done.stdout)
    assert line["event"] == "refused"


def test_check_says_what_rules_mean_here(rig: DaemonRig) -> None:
    """It runs before a daemon starts with them; errors end with code 2 and no traceback."""
    rig.rules.write_text(
        rig.rules.read_text() + "default_cap: {cpu/power_limit: 90%, gpu/power_limit: 80%}\n"
    )
    done = rig.wattloop("control-daemon", "--rules", str(rig.rules), "--check")
    assert done.returncode == 0, done.stderr
    assert "gpu:1/power_limit: 300 to 350 W" in done.stdout
    assert "default: gpu:0/power_limit at most 560 W (80%)" in done.stdout
    assert "warning: cpu/power_limit fits no lever of this machine" in done.stdout
    rig.rules.write_text("rulez: []\n")
    bad = rig.wattloop("control-daemon", "--rules", str(rig.rules), "--check")
    assert bad.returncode == 2
    assert "rules.yaml:1: rulez: unknown field; did you mean 'rules'?" in bad.stderr
    assert "Traceback" not in bad.stderr
