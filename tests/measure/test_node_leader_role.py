"""Promises of the leader role: ranks that share a node count each device once, if any rank dies."""

import json
import os
import signal
import subprocess
import sys
import time
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.scripted_meter import ScriptedMeter, counter, gauge
from wattloop.core.clock import VirtualClock
from wattloop.core.records import Gap
from wattloop.measure.job import Job
from wattloop.measure.meter_stream import MeterStream
from wattloop.measure.node_leader import LeaderRole
from wattloop.measure.run_journal import feed_to_dict
from wattloop.store.journal import JournalWriter

from .conftest import Machine

RANK = """
import json, os, sys, time, wattloop
with wattloop.measure("rank", interval_s=0.05) as m:
    print("ready", flush=True)
    sys.stdin.readline()
print(json.dumps({"counted": m.run.counted, "energy_j": m.run.energy_j,
                  "window_j": m.energy_j, "begin_s": m.run.result.begin_s,
                  "end_s": m.run.result.end_s,
                  "missing": [x.reason for x in m.run.missing]}))
"""


class Rank:
    """One process of a job."""

    def __init__(self, number: int, world: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RANK": str(number),
                "LOCAL_RANK": str(number),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": "29512",
            },
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def finish(self) -> dict[str, object]:
        """Wait for its end and return its result."""
        output, _ = self.process.communicate("go\n", timeout=300)
        found: dict[str, object] = json.loads(output)
        return found


def wait_for_counters(machine: Machine) -> None:
    """Wait until each counter has moved often: an earlier window may have no energy."""
    moves = 0
    last = ""
    while moves < 20:
        now = machine.package.energy_file.read_text() + machine.dram.energy_file.read_text()
        moves += now != last
        last = now
        time.sleep(0.02)


def job_energy_j(machine: Machine, found: list[dict[str, object]]) -> Any:
    """Return the energy of the machine from the first rank's beginning to the last one's end."""
    begin_s = min(float(str(f["begin_s"])) for f in found)
    end_s = max(float(str(f["end_s"])) for f in found)
    return machine.about_j(end_s - begin_s, rel=0.2)


def test_ranks_of_one_job_count_the_node_once(machine: Machine) -> None:
    """Four ranks, one total; the others name the leader, and their own windows have energy."""
    ranks = [Rank(i, 4) for i in range(4)]
    wait_for_counters(machine)
    found = [rank.finish() for rank in reversed(ranks)]
    *followers, first = found
    assert first["counted"] is True
    assert float(str(first["energy_j"])) == job_energy_j(machine, found)
    assert all(f["window_j"] is not None for f in found)
    assert not any(f["counted"] for f in followers)
    assert all(f["energy_j"] is None for f in followers)
    assert "counted once on this node" in str(followers[0]["missing"])


def test_another_rank_takes_over_when_the_leader_is_killed(machine: Machine) -> None:
    """After `kill -9` of rank 0, rank 1 counts from its next flush on."""
    first, second = Rank(0, 2), Rank(1, 2)
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.communicate(timeout=300)
    found = second.finish()
    assert found["counted"] is True
    assert found["energy_j"] is not None
    assert len(list(machine.journals.glob("*.journal"))) == 2


def test_rank_that_takes_over_counts_only_the_rest(machine: Machine) -> None:
    """The total of a job is not the sum of overlapping runs: each joule is in one of them."""
    first, second = Rank(0, 2), Rank(1, 2)
    time.sleep(1.2)
    ended = first.finish()
    time.sleep(1.2)
    rest = second.finish()
    assert rest["counted"] is True
    total_j = float(str(ended["energy_j"])) + float(str(rest["energy_j"]))
    assert total_j == job_energy_j(machine, [ended, rest])


def test_run_much_later_with_the_same_job_name_counts_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun gives every run the same name; an old lock file takes no energy from a new run."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    old = LeaderRole("old", Job("job", "user", 0, 0, 2))
    old.decide(None)
    old.release(until_s=10.0)
    late = LeaderRole("late", Job("job", "user", 1, 1, 2))
    late.decide(None)
    late.settle(started_s=20.0, end_s=21.0)
    assert late.counts
    late.release(until_s=30.0)


def test_processes_without_a_job_count_separately(machine: Machine) -> None:
    """Two unrelated programs are two runs."""
    code = "import wattloop\nwith wattloop.measure('x') as m: pass\nprint(m.run.counted)"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, timeout=300, check=False
        )
        assert done.stdout == b"True\n"
    assert machine.root.is_dir()


def test_follower_takes_readings_of_slow_sensors_from_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process reads a GPU; the others follow its journal, gaps included."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    clock = VirtualClock()
    feed = MeterStream(ScriptedMeter(clock, [(gauge("gpu:0"), lambda _: Gap("unread"))]), clock, 0)
    writer = JournalWriter(tmp_path / "owner.journal", {"feeds": [feed_to_dict(feed)]})
    owner = LeaderRole("owner", Job("job", "user", 0, 0, 2))
    owner.decide(tmp_path / "owner.journal")
    follower = LeaderRole("follower", Job("job", "user", 1, 1, 2))
    follower.decide(None)
    assert owner.counts
    assert not follower.counts
    follower.watch([feed])
    assert follower.feeds_to_read([feed], [feed]) == []
    writer.samples(0, 1, array("d", [1.0, 2.0, 3.0]), array("d", [100.0, float("nan"), 120.0]))
    follower.flush([feed])
    assert list(feed.tracks[0].watts) == [100.0, 120.0]  # type: ignore[union-attr]  # a gauge
    assert follower.counted_by == "owner"
    owner.release(until_s=3.5)
    assert not follower.flush([feed], ending=True)
    assert follower.flush([feed])
    assert follower.counts
    assert follower.counts_from_s == 3.5
    assert follower.feeds_to_read([feed], [feed]) == [feed]
    follower.release(until_s=4.0)
    writer.close()


def test_follower_that_opens_the_journal_late_counts_no_joule_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read for itself until then: older readings of the journal are not used again."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    clock = VirtualClock()

    def joules(time_s: float) -> float:
        return 10.0 * time_s + 300.0 * max(0.0, time_s - 5.0)

    script = (counter("gpu:0", update_period_s=0.1), joules)
    feed = MeterStream(ScriptedMeter(clock, [script]), clock, 0)
    for _ in range(20):
        clock.advance(0.5)
        feed.read()
    follower = LeaderRole("follower", Job("job", "user", 1, 1, 2))
    follower.decide(None)
    writer = JournalWriter(tmp_path / "owner.journal", {"feeds": [feed_to_dict(feed)]})
    owner = LeaderRole("owner", Job("job", "user", 0, 0, 2))
    owner.decide(tmp_path / "owner.journal")
    times_s = [0.25 + 0.5 * i for i in range(40)]
    writer.samples(0, 1, array("d", times_s), array("d", map(joules, times_s)))
    assert follower.flush([feed])
    span = feed.between(0, 1.0, 19.0)
    assert span is not None
    assert span.energy_j == pytest.approx(joules(19.0) - joules(1.0), rel=0.02)
    owner.release(until_s=20.0)
    writer.close()


def test_counter_with_its_own_zero_is_read_by_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate counts from the begin of a process, so each process reads its own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(ScriptedMeter, "name", "estimate")
    clock = VirtualClock()
    script = (counter(update_period_s=0.05), lambda t: 10.0 * t)
    feed = MeterStream(ScriptedMeter(clock, [script]), clock, 0)
    writer = JournalWriter(tmp_path / "owner.journal", {"feeds": [feed_to_dict(feed)]})
    owner, follower = (LeaderRole(f"run{i}", Job("job", "user", i, i, 2)) for i in range(2))
    owner.decide(writer.path)
    follower.decide(None)
    follower.watch([feed])
    assert follower.feeds_to_read([feed], [feed]) == [feed]
    owner.release(until_s=1.0)
    writer.close()


def test_follower_follows_the_next_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 ends and rank 1 takes over: rank 2 continues with the journal of rank 1."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    clock = VirtualClock()
    feed = MeterStream(ScriptedMeter(clock, [(gauge("gpu:0"), lambda _: 1.0)]), clock, 0)
    header = {"feeds": [feed_to_dict(feed)]}
    writers = [JournalWriter(tmp_path / f"{i}.journal", header) for i in range(2)]
    roles = [LeaderRole(f"run{i}", Job("job", "user", i, i, 3)) for i in range(3)]
    for role, writer in zip(roles[:2], writers, strict=True):
        role.decide(writer.path)
    roles[2].decide(None)
    roles[2].watch([feed])
    roles[0].release(until_s=1.0)
    assert roles[1].flush([])
    assert roles[2].flush([feed])
    writers[1].samples(0, 1, array("d", [2.0]), array("d", [50.0]))
    assert not roles[2].flush([feed])
    assert roles[2].counted_by == "run1"
    assert list(feed.tracks[0].watts) == [50.0]  # type: ignore[union-attr]  # a gauge
    for writer in writers:
        writer.close()


def test_follower_does_not_read_the_whole_journal_repeatedly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a week the journal is long, and every rank checks the lock twice a second."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("wattloop.measure.node_leader.read_journal", pytest.fail)
    writer = JournalWriter(tmp_path / "owner.journal", {"feeds": []})
    owner, follower = (LeaderRole(f"run{i}", Job("job", "user", i, i, 2)) for i in range(2))
    owner.decide(writer.path)
    follower.decide(None)
    for _ in range(3):
        follower.flush([])
    assert not follower.counts
    writer.close()


def test_follower_of_an_unreadable_journal_reads_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader writes to a file system of its own container, so every rank reads for itself."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    clock = VirtualClock()
    feed = MeterStream(ScriptedMeter(clock, [(gauge("gpu:0"), lambda _: 1.0)]), clock, 0)
    owner, follower = (LeaderRole(f"run{i}", Job("job", "user", i, i, 2)) for i in range(2))
    owner.decide(tmp_path / "elsewhere" / "owner.journal")
    follower.decide(None)
    assert not follower.flush([feed])
    assert follower.feeds_to_read([feed], [feed]) == [feed]
    assert follower.counted_by == "run0"
    owner.release(until_s=1.0)
    assert follower.flush([feed])
    assert follower.counts_from_s == 1.0


def test_follower_reads_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 ranks must not read a counter 640 times a second."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    role = LeaderRole("r", Job("job", "user", 5, 5, 8))
    role.decide(None)
    assert role.interval_s(0.1, []) == 1.0
    estimate = SimpleNamespace(cheap_at_edges=False)  # no leader reads it, not even for one window
    assert role.interval_s(0.1, [estimate]) == 0.1


@pytest.mark.parametrize("killed", [False, True], ids=["ended", "killed"])
@pytest.mark.parametrize("read_since", [False, True], ids=["before reading", "after reading"])
def test_energy_at_the_change_of_leaders_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool, read_since: bool
) -> None:
    """The power changes between two readings of the follower, a second apart, and so does the
    leader: each joule is counted by one of them.
    """
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    clock = VirtualClock()

    def joules(time_s: float) -> float:  # 20 W, and 60 W from 12.2 s on; it wraps
        return (20.0 * time_s + 40.0 * max(0.0, time_s - 12.2)) % 250.0

    script = (counter(update_period_s=1e-6, wrap_j=250.0, max_power_w=100.0), joules)
    leads, follows = (MeterStream(ScriptedMeter(clock, [script]), clock, 0) for _ in range(2))
    owner, follower = (LeaderRole(f"run{i}", Job("job", "user", i, i, 2)) for i in range(2))
    writer = JournalWriter(tmp_path / "owner.journal", {"feeds": [feed_to_dict(leads)]})
    clock.advance(10.0)
    owner.decide(writer.path)
    follower.decide(None)
    follower.watch([follows])
    for tenth in range(26):
        leads.read()
        if tenth in (0, 10, 20):
            follows.read()
        clock.advance(0.1)
    times_s, values, _, _ = leads.drained()
    writer.samples(0, 1, times_s, values)
    ended_s = times_s[-1]
    assert ended_s == pytest.approx(12.5)
    if killed:
        owner.forget()  # the kernel releases the lock without a further message
    else:
        owner.release(ended_s, [leads])
    if read_since:
        clock.advance(0.4)
        follows.read()
    assert follower.flush([follows]) and follower.counts_from_s == ended_s
    clock.advance(0.5)
    follows.read()
    end_s = clock.now_s()
    first, rest = leads.between(0, 10.0, ended_s), follows.between(0, ended_s, end_s)
    assert first is not None and rest is not None
    assert first.energy_j == pytest.approx(20 * 2.5 + 40 * 0.3, abs=0.01)
    assert rest.energy_j == pytest.approx(60 * (end_s - ended_s), abs=0.01)
    follower.release(end_s)
    writer.close()


def test_counters_of_another_version_in_the_lock_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that takes over counts from the stated time, by its own readings."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    clock = VirtualClock()
    feed = MeterStream(ScriptedMeter(clock, [(counter(), lambda t: 10.0 * t)]), clock, 0)
    owner, follower = (LeaderRole(f"run{i}", Job("job", "user", i, i, 2)) for i in range(2))
    owner.decide(None)
    follower.decide(None)
    for _ in range(3):
        feed.read()
        clock.advance(1.0)
    owner.release(1.0)
    (lock,) = tmp_path.rglob("*.claim")
    stated = json.loads(lock.read_text())
    lock.write_text(json.dumps({**stated, "counters": [{"sensor": "rapl"}]}))
    assert follower.flush([feed])
    assert follower.counts_from_s == 1.0
    follower.release(2.0)
