"""Promises of `followers`: ranks that share a node count each device once, whoever dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wattloop.core.clock import VirtualClock
from wattloop.core.records import Gap
from wattloop.measure.feeds import MeterFeed
from wattloop.measure.followers import Role
from wattloop.measure.job import Job
from wattloop.store.journal import JournalWriter
from wattloop.testing.scripted_meter import ScriptedMeter, gauge

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

    def tell_to_end(self) -> None:
        """Let it end, without waiting."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def finish(self) -> dict[str, object]:
        """Wait for its end and what it found."""
        output, _ = self.process.communicate("go\n", timeout=20)
        found: dict[str, object] = json.loads(output)
        return found


def job_energy_j(machine: Machine, found: list[dict[str, object]]) -> float:
    """What the machine truly used from the first rank's beginning to the last one's end."""
    begin_s = min(float(str(f["begin_s"])) for f in found)
    end_s = max(float(str(f["end_s"])) for f in found)
    zones = (machine.package, machine.dram)
    return sum(machine.driver.true_energy_j(zone, begin_s, end_s) for zone in zones)


def test_ranks_of_one_job_count_the_node_once(machine: Machine) -> None:
    """Four ranks, one total; the others say who counts, and their own windows have energy."""
    ranks = [Rank(i, 4) for i in range(4)]
    time.sleep(0.5)  # the last rank's counters must have moved before its window can have energy
    for rank in ranks:
        rank.tell_to_end()
    found = [rank.finish() for rank in ranks]
    counted_j = sum(float(str(f["energy_j"])) for f in found if f["counted"])
    assert found[0]["counted"] is True
    assert counted_j < 1.1 * job_energy_j(machine, found)
    assert all(f["window_j"] is not None for f in found)
    followers = [f for f in found if not f["counted"]]
    assert followers
    assert all(f["energy_j"] is None for f in followers)
    assert "counted once on this node" in str(followers[0]["missing"])


def test_another_rank_takes_over_when_the_one_that_counts_is_killed(machine: Machine) -> None:
    """After `kill -9` of rank 0, rank 1 counts from its next flush on."""
    first, second = Rank(0, 2), Rank(1, 2)
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.communicate(timeout=20)
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
    assert total_j == pytest.approx(job_energy_j(machine, [ended, rest]), rel=0.1)


def test_run_much_later_with_the_same_job_name_counts_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun calls every run the same; an old claim file takes nothing from a new run."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    old = Role("old", Job("job", "user", 0, 0, 2))
    old.decide(None)
    old.release(until_s=10.0)
    late = Role("late", Job("job", "user", 1, 1, 2))
    late.decide(None)
    late.settle(started_s=20.0)
    assert late.counts
    late.release(until_s=30.0)


def test_processes_without_a_job_count_each_for_itself(machine: Machine) -> None:
    """Two unrelated programs are two runs: nothing ties them together."""
    code = "import wattloop\nwith wattloop.measure('x') as m: pass\nprint(m.run.counted)"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, timeout=20, check=False
        )
        assert done.stdout == b"True\n"
    assert machine.root.is_dir()


def test_follower_takes_readings_of_slow_sensors_from_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU is read by one process; the others follow its journal, gaps included."""
    from array import array

    from wattloop.measure.header import feed_to_dict

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    clock = VirtualClock()
    feed = MeterFeed(ScriptedMeter(clock, [(gauge("gpu:0"), lambda _: Gap("unread"))]), clock, 0)
    writer = JournalWriter(tmp_path / "owner.journal", {"feeds": [feed_to_dict(feed)]})
    owner = Role("owner", Job("job", "user", 0, 0, 2))
    owner.decide(tmp_path / "owner.journal")
    follower = Role("follower", Job("job", "user", 1, 1, 2))
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


def test_follower_reads_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 ranks must not read a counter 640 times a second."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    role = Role("r", Job("job", "user", 5, 5, 8))
    role.decide(None)
    assert role.interval_s(0.1) == 1.0
