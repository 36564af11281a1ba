"""Promises of concurrent runs: which run counts a device, and that hostile listings change
nothing.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.measure.conftest import Machine
from wattloop.core.records import Domain, DomainKind, Provenance, Scope
from wattloop.core.results import DomainEnergy, WindowResult
from wattloop.core.settings import settings_from
from wattloop.measure import concurrent_runs
from wattloop.measure.concurrent_runs import (
    CountingRun,
    NodeRuns,
    SharedTime,
    device_key,
    shared_time,
    store_key,
)
from wattloop.measure.session import Session

POWER_W = 10.0


def window(begin_s: float, end_s: float, names: tuple[str, ...] = ("cpu", "gpu:0")) -> WindowResult:
    """Return a window with ten watts per device."""
    domains = tuple(
        DomainEnergy(n, Scope.OTHER, POWER_W * (end_s - begin_s), 0.0, Provenance.MEASURED, "test")
        for n in names
    )
    return WindowResult("w", 0, None, begin_s, end_s, domains)


def run(name: str, from_s: float, until_s: float | None, **facts: object) -> CountingRun:
    given = {"devices": ("cpu", "gpu:0"), "ours": True, **facts}
    return CountingRun(name, "store", from_s, until_s=until_s, **given)  # type: ignore[arg-type]


def shared(own: CountingRun, *others: CountingRun) -> SharedTime | None:
    assert own.until_s is not None
    return shared_time(own, others, window(own.from_s, own.until_s, own.devices), {}, window)


def test_the_first_counts_and_both_are_marked() -> None:
    """Promise: the earlier of two runs counts the devices that both see, and both say so."""
    first, second = run("a", 0.0, 10.0), run("b", 5.0, 15.0)
    of_first, of_second = shared(first, second), shared(second, first)
    assert of_first == SharedTime(5.0, 0.5, (("b", 5.0, False),), 0.0)
    assert of_second == SharedTime(5.0, 0.5, (("a", 5.0, True),), 100.0)
    assert "50% of it is counted by run a" in of_second.text(200.0)
    assert shared(run("c", 20.0, 30.0), first, second) is None


def test_counted_parts_add_up_to_the_time_that_any_run_covers() -> None:
    """Promise: in any set of runs, each moment is counted once."""
    runs = [run(str(i), (i * 7) % 13, (i * 7) % 13 + 1 + (i * 5) % 9) for i in range(12)]
    total_j = 0.0
    for own in runs:
        found = shared(own, *runs)
        assert own.until_s is not None
        total_j += 2 * POWER_W * (own.until_s - own.from_s) - (found.left_out_j if found else 0.0)
    covered_s = (
        sum(any(r.from_s <= s / 10 < (r.until_s or 0.0) for r in runs) for s in range(300)) / 10
    )
    assert total_j == pytest.approx(2 * POWER_W * covered_s)


def test_only_common_devices_are_left_out() -> None:
    """Promise: a GPU that only one of two runs reads is counted in full."""
    first = run("a", 0.0, 10.0, devices=("cpu", "gpu:1"))
    second = run("b", 0.5, 10.0, devices=("cpu", "gpu:0"))
    found = shared(second, first)
    assert found is not None
    assert found.left_out_j == pytest.approx(95.0)
    alone = shared(run("c", 0.5, 10.0, devices=("gpu:0",)), run("a", 0.0, 10.0, devices=("gpu:1",)))
    assert alone is None
    node = shared(second, run("a", 0.0, 10.0, devices=("node",)))
    assert node is not None  # a meter of the whole node sees every device
    assert node.left_out_j == pytest.approx(190.0)


def test_runs_of_other_users_and_stores_mark_but_take_no_energy() -> None:
    """Promise: another user cannot make energy vanish from this user's totals."""
    found = shared(run("b", 5.0, 15.0), run("a", 0.0, 10.0, ours=False))
    assert found == SharedTime(5.0, 0.5, (("a", 5.0, False),), 0.0)


def test_a_run_that_goes_on_covers_until_now() -> None:
    found = shared(run("b", 5.0, 15.0), run("a", 0.0, None))
    assert found is not None
    assert found.left_out_j == pytest.approx(200.0)


def test_an_earlier_run_counts_until_its_end_however_long_it_takes_to_close(
    machine: Machine,
) -> None:
    """Promise: a run that ends while the earlier one takes its last readings counts the rest."""
    settings = settings_from(os.environ)
    first = Session.open(settings, name="first", in_process=False)
    second = Session.open(settings, name="second", in_process=False)

    def close_second() -> None:
        time.sleep(0.05)
        second.close()

    first.before_end.append(close_second)
    time.sleep(0.05)
    first.close()
    assert first.ended_s is not None and second.closed is not None
    found = second.closed.shared
    assert found is not None
    ((run_id, overlap_s, counts),) = found.runs
    assert (run_id, counts) == (first.run_id, True)
    assert overlap_s == pytest.approx(first.ended_s - second.started_s)


def test_a_short_overlap_is_not_zero() -> None:
    """Promise: sharing for some milliseconds is not reported as 0.0 s (0%)."""
    text = SharedTime(0.012, 0.001, (("20260101-000000-aaaaaa", 0.012, False),)).text(5.0)
    assert text.startswith("shared: for 12.0 ms (< 1% of this run)")


def test_a_card_has_the_same_key_in_every_process() -> None:
    """Promise: Slurm shows each job its own card as gpu:0; these are different devices."""
    one = Domain("gpu:0", DomainKind.GAUGE, Scope.GPU, "x", identity="GPU-1")
    assert device_key(one) == "GPU-1"
    assert device_key(one._replace(identity="")) == "gpu:0"
    assert device_key(one._replace(name="wall", scope=Scope.NODE)) == "node"


PROGRAM = """
import sys, time
from wattloop.measure.concurrent_runs import CountingRun, NodeRuns, store_key
runs = NodeRuns("machine", lambda path: 123.0)
runs.enter(CountingRun("theirs", store_key("s"), 1.0, ("cpu",)))
print("listed", flush=True)
sys.stdin.read()
"""


def started() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "listed\n"
    return process


def test_a_process_that_died_ends_with_its_last_reading(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: an end that was never written is found, and a reused pid is not taken for the
    run.
    """
    mine = NodeRuns("machine", lambda path: 123.0)
    mine.enter(CountingRun("mine", store_key("s"), 1.0, ("cpu",)))
    with started() as process:
        (seen,) = mine.look(2.0)
        assert (seen.run_id, seen.until_s, seen.ours) == ("theirs", None, True)
        process.kill()
    (seen,) = mine.look(3.0)
    assert seen.until_s == 123.0
    unknown = NodeRuns("machine", lambda path: float("-inf"))
    unknown.enter(CountingRun("mine too", store_key("s"), 1.0, ("cpu",)))
    by_name = {run.run_id: run for run in unknown.look(4.0)}
    assert by_name["theirs"].until_s == 1.0
    assert NodeRuns("other machine", lambda path: 0.0).look(5.0) == []
    (theirs,) = alone.glob(f"{process.pid}-*.json")
    os.utime(theirs, (1.0, 1.0))
    assert {run.run_id for run in mine.look(6.0)} >= {"theirs"}  # an earlier result is remembered
    assert not theirs.exists()
    assert {run.until_s for run in mine.look(7.0) if run.run_id == "theirs"} == {123.0}


def test_an_unchanged_folder_is_not_read_again(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: two checks a second open no unchanged file, and find a changed one at once."""
    opened: list[Path] = []
    in_file = concurrent_runs._Listing._in_file

    def counted(self: concurrent_runs._Listing, path: Path) -> list[tuple[str, CountingRun]]:
        opened.append(path)
        return in_file(self, path)

    monkeypatch.setattr(concurrent_runs._Listing, "_in_file", counted)
    monkeypatch.setattr(concurrent_runs, "_listed", concurrent_runs._Listing())
    mine = NodeRuns("machine", lambda path: 123.0)
    mine.enter(CountingRun("mine", store_key("s"), 1.0, ("cpu",)))
    with started() as process:
        os.utime(alone, (1.0, 1.0))  # the change is not of this second
        assert [run.run_id for run in mine.look(2.0)] == ["theirs"]
        assert len(opened) == 2
        for look in range(100):
            assert [run.until_s for run in mine.look(3.0 + look)] == [None]
        assert len(opened) == 2
        process.kill()
    assert [run.until_s for run in mine.look(200.0)] == [123.0]  # its end needs no news
    assert len(opened) == 2
    with started() as process:
        mine.look(201.0)
        assert len(opened) > 2
        process.kill()


def test_foreign_content_is_read_without_harm(alone: Path) -> None:
    """Promise: garbage, links, pipes and huge files in the folder change nothing."""
    me = f"{os.getpid()}"
    (alone / f"{me}-1.json").write_text("[{]")
    (alone / f"{me}-2.json").write_text(json.dumps([{"run_id": "x"}, 7, None]))
    (alone / f"{me}-3.json").write_text(json.dumps({"a": 1}))
    (alone / f"{me}-4.json").symlink_to("/etc/passwd")
    os.mkfifo(alone / f"{me}-5.json")
    (alone / f"{me}-6.json").write_text("[" * 300_000)
    row = {"machine": "m", "store": "", "from_s": 1e400, "until_s": None, "devices": ["cpu"]}
    row |= {"share": False, "journal": "", "run_id": "../x\x1b[31m"}
    (alone / f"{me}-7.json").write_text(json.dumps([row]))
    row |= {"run_id": "x", "from_s": 10**400}
    (alone / f"{me}-8.json").write_text(json.dumps([row]))
    row |= {"from_s": 1.0, "until_s": 10**400}
    (alone / f"{me}-9.json").write_text(json.dumps([row]))
    begin_s = time.monotonic()
    assert NodeRuns("m", lambda path: 0.0).look(1.0) == []
    assert time.monotonic() - begin_s < 30


def test_a_folder_of_another_kind_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: without a shared folder, runs are measured as if they were alone."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link", "missing/below"):
        monkeypatch.setenv("WATTLOOP_NODE_RUNS", str(tmp_path / name))
        runs = NodeRuns("machine", lambda path: 0.0)
        runs.enter(CountingRun("mine", "s", 1.0, ("cpu",)))
        assert runs.look(2.0) == []
        runs.leave("mine", 3.0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "link"]
