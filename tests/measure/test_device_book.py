"""Promises of the device book: parts of runs in separate processes add up to the card."""

import itertools
import json
import math
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from wattloop.accounting.device_shares import PowerFit, UseInterval, fit_power
from wattloop.core.clock import VirtualClock
from wattloop.hardware.host import Host
from wattloop.measure import device_book
from wattloop.measure.device_book import BookedInterval, DeviceBook
from wattloop.measure.meter_stream import MeterStream, domain_sources
from wattloop.measure.process_share import ProcessShares
from wattloop.virtual.cards import CARDS
from wattloop.virtual.gpu import Activity, VirtualGpu
from wattloop.virtual.meter import VirtualEnergy, VirtualPower
from wattloop.virtual.timeline import WorkOwner

LOOK_S, READ_S = 0.5, 0.05


class Program:
    """A run in a process of its own, with its own readings, polls and fit."""

    def __init__(self, number: int, begin_s: float, end_s: float) -> None:
        self.owner = WorkOwner(float(number), 0.0)
        self.begin_s, self.end_s = begin_s, end_s
        self.began_s = self.part_j = 0.0
        self.ended = False

    def begin(self, gpu: VirtualGpu, clock: VirtualClock, folder: Path | None) -> None:
        self._clock = clock
        energy, power = VirtualEnergy([gpu], clock), VirtualPower([gpu], clock)
        self._streams = [MeterStream(each, clock, i) for i, each in enumerate((energy, power))]
        self._channels = domain_sources(self._streams)
        self._shares = ProcessShares(Host(), ["gpu:0"], [power], None, folder)
        self._shares._own.add(int(self.owner.pid))
        self.began_s = clock.now_s()
        self.read()
        self._shares.look(self.began_s)
        self._shares.begin(self._channels, self.began_s)

    def started_s(self) -> float | None:
        """Return the time when the process began; None once it has ended."""
        return None if self.ended else self.began_s

    def read(self) -> None:
        for stream in self._streams:
            stream.read()

    def look(self) -> None:
        self.read()
        self._shares.look(self._clock.now_s())
        self._shares.book()

    def end(self) -> None:
        times_s = (self.began_s, self._clock.now_s())
        self._shares.announce_end(times_s[1])
        self._clock.advance(0.1)  # as a run does, until each sensor was read after its end
        self.look()
        self._shares.end(*times_s)
        found = self._shares._part("gpu:0", self._channels[0], *times_s)
        assert found is not None
        self.part_j = found[0].energy_j
        self.ended = True


def _play(programs: list[Program], dice: random.Random, folder: Path | None) -> float:
    """Let programs of random loads come and go, each with polls of its own; return the card's
    energy while a run existed.
    """
    clock = VirtualClock(1_000.0)
    gpu = VirtualGpu(0, CARDS["h200"], clock=clock)
    zero_s = last_s = clock.now_s()
    times = {(each.begin_s, "begin", i) for i, each in enumerate(programs)}
    times |= {(each.end_s, "end", i) for i, each in enumerate(programs)}
    for i, each in enumerate(programs):
        looks = int((each.end_s - each.begin_s) / LOOK_S)
        times |= {(each.begin_s + (k + 1) * LOOK_S - 1e-3, "look", i) for k in range(looks)}
        times |= {(each.begin_s + k * READ_S, "read", i) for k in range(1, int(looks * 10))}
    for time_s, what, i in sorted(times):
        clock.advance(max(0.0, zero_s + time_s - clock.now_s()))
        program = programs[i]
        if what == "begin":
            program.begin(gpu, clock, folder)
        if what == "end":
            last_s = clock.now_s()
            program.end()
            gpu.leave(program.owner)
        elif what == "begin" or (what == "look" and dice.random() < 0.1):
            compute, memory = dice.choice([(1.0, 0.2), (0.2, 1.0), (0.5, 0.5)])
            activity = Activity(compute, memory, dice.uniform(0.05, 0.3))
            gpu.occupy(activity, owner=program.owner, memory_b=dice.uniform(1e9, 4e9))
        if what == "look":
            program.look()
        elif what == "read":
            program.read()
    return gpu.true_energy_j(zero_s, last_s)


@pytest.mark.parametrize("seed", range(6))
def test_parts_of_separate_runs_add_up_to_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Promise: whatever the polls, begins and ends of each run, the parts add up to the energy in
    the book, and that is the card's, within what its counter resolves.
    """
    dice = random.Random(seed)
    begins_s = [0.0, *(dice.uniform(0.1, 20.0) for _ in range(3))]
    programs = [Program(i + 1, b, dice.uniform(30.0, 60.0)) for i, b in enumerate(begins_s)]
    monkeypatch.setattr(device_book, "start_s", lambda pid: programs[pid - 1].started_s())
    used_j = _play(programs, dice, tmp_path)
    parts_j = math.fsum(each.part_j for each in programs)
    (path,) = tmp_path.glob("gpu-*.book")
    book = DeviceBook(path)
    book.read()
    whole_j = math.fsum(each.interval.energy_j for each in book.intervals)
    assert parts_j == pytest.approx(whole_j, rel=1e-9)
    assert all(each.part_j > 100.0 for each in programs)
    # 0.1 s between the updates of the counter, at up to 400 W
    assert abs(parts_j - used_j) <= 40.0


def test_without_the_book_parts_do_not_add_up() -> None:
    """Without the book every run divides by its own fit, and the parts do not add up."""
    dice = random.Random(0)
    programs = [Program(i + 1, 5.0 * i, 40.0 + 7.0 * i) for i in range(4)]
    used_j = _play(programs, dice, None)
    assert abs(math.fsum(each.part_j for each in programs) - used_j) > 0.005 * used_j


def _use(energy_j: float, duration_s: float = 0.5, **use: float) -> UseInterval:
    return UseInterval(duration_s, energy_j, {int(n[1:]): part for n, part in use.items()})


def _filled(path: Path, count: int) -> DeviceBook:
    book = DeviceBook(path)
    for i in range(count):
        book.extend(10.0 + i / 2, 10.5 + i / 2, lambda b, e: _use(100 * (e - b), e - b, p1=0.2))
    return book


def test_a_run_that_is_killed_while_it_writes_costs_its_line_only(tmp_path: Path) -> None:
    path = tmp_path / "gpu.book"
    _filled(path, 3)
    with path.open("ab") as file:
        file.write(b"[11.5,12.0,50.0,{")
    other = DeviceBook(path)
    other.read()
    assert other.until_s == 11.5
    other.extend(10.0, 12.0, lambda b, e: _use(70.0, p2=0.5))
    again = DeviceBook(path)
    again.read()
    assert [each.interval.energy_j for each in again.intervals] == [50.0, 50.0, 50.0, 70.0]


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"nonsense\n", b'["book",2,7,null]\n[1,2,3]\n', b"[1"]
)
def test_a_damaged_book_begins_again(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "gpu.book"
    path.write_bytes(data)
    book = _filled(path, 2)
    assert [each.begin_s for each in book.intervals] == [10.0, 10.5]


def test_a_book_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: a user who can write to the machine's folder cannot set another user's joules."""
    path = tmp_path / "gpu.book"
    _filled(path, 2)
    monkeypatch.setattr(device_book, "user_id", lambda: os.geteuid() + 1)
    book = _filled(path, 4)
    assert book.intervals == []
    (tmp_path / "target").write_text("not a book")
    (tmp_path / "link.book").symlink_to(tmp_path / "target")
    monkeypatch.undo()
    linked = DeviceBook(tmp_path / "link.book")
    linked.read()
    assert linked.intervals == []
    linked.mark(1.0)  # replaces the link
    assert (tmp_path / "target").read_text() == "not a book"


def test_a_long_book_stays_small_and_loses_no_joule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: old intervals are merged, but never over the edge of a run, and parts stay exact."""
    monkeypatch.setattr(device_book, "MOST_INTERVALS", 64)
    path = tmp_path / "gpu.book"
    book = DeviceBook(path)
    for i in range(8):
        book.mark(10.0 + 25.0 * i + 0.25)
    _fill = lambda b, e: _use(100 * (e - b), e - b, p1=0.2, p2=0.1)  # noqa: E731 - as an argument
    for i in range(400):
        book.extend(10.0, 10.5 + i / 2, _fill)
    assert len(book.intervals) <= 65
    assert math.fsum(each.interval.energy_j for each in book.intervals) == pytest.approx(20_000.0)
    bounds = [each.begin_s for each in book.intervals]
    assert all(10.0 + 25.0 * i + 0.25 in bounds for i in range(8))
    assert all(a.end_s == b.begin_s for a, b in itertools.pairwise(book.intervals))
    fit = PowerFit(20.0, (0.0, 300.0, 300.0), {1: 1, 2: 2}, [[0.0] * 3] * 3)
    assert book.take({1}, 35.25, 110.25, fit, _fill)
    booked_j = math.fsum(each.booked.get(1, 0.0) for each in book.intervals)
    assert booked_j == pytest.approx(75.0 * (10.0 + 80.0 * 2 / 3))


def test_the_book_costs_the_same_after_any_time(tmp_path: Path) -> None:
    """Promise: use is computed of new intervals only, and the book stays at the counter although
    the energy of each new interval is read 2% too high.
    """
    book = DeviceBook(tmp_path / "gpu.book")
    book.begin(10.0)
    lengths_s: list[float] = []

    def measure(begin_s: float, end_s: float) -> UseInterval:
        lengths_s.append(end_s - begin_s)
        return _use(102.0 * (end_s - begin_s), end_s - begin_s, p1=0.2)

    for i in range(200):
        book.extend(10.0, 10.5 + i / 2, measure, lambda b, e: 100.0 * (e - b))
    assert max(lengths_s) == 0.5
    whole_j = math.fsum(each.interval.energy_j for each in book.intervals)
    assert whole_j == pytest.approx(10_000.0, abs=2.0)


def test_energy_assigned_to_a_run_is_not_divided_again(tmp_path: Path) -> None:
    """Promise: a later run with another fit divides the rest, so that the parts add up."""
    book = DeviceBook(tmp_path / "gpu.book")
    book.extend(1.0, 2.0, lambda b, e: _use(300.0, 1.0, p1=0.2, p2=0.2, p3=0.2))
    fits = [PowerFit(30.0 * k, (0.0, 10.0 * k, 50.0, 90.0), {1: 1, 2: 2, 3: 3}, []) for k in (1, 2)]
    other = DeviceBook(tmp_path / "gpu.book")
    measure = lambda b, e: None  # noqa: E731 - nothing is measured here
    assert book.take({1}, 1.0, 2.0, fits[0], measure)
    assert other.take({2}, 1.0, 2.0, fits[1], measure)
    assert other.take({3}, 1.0, 2.0, fits[0], measure)
    assert other.take({3}, 1.0, 2.0, fits[1], measure)  # a second time changes nothing
    (found,) = other.intervals
    assert found.booked[1] == pytest.approx(10.0 + 270.0 * 10 / 150)
    assert math.fsum(found.booked.values()) == pytest.approx(300.0)


def test_idle_power_seen_by_earlier_runs_is_known_to_later_ones(tmp_path: Path) -> None:
    path = tmp_path / "gpu.book"
    book = DeviceBook(path)
    book.extend(1.0, 20.0, lambda b, e: UseInterval(e - b, 42.0 * (e - b), {}))
    later = DeviceBook(path)
    later.extend(1e5, 1e5 + 1.0, lambda b, e: _use(300.0, 1.0, p1=0.2))
    assert [each.begin_s for each in later.intervals] == [1e5]  # the earlier entry concerns no run
    last = DeviceBook(path)
    last.read()
    assert last.idle_w == 42.0


def test_processes_at_the_same_time_lose_no_interval(tmp_path: Path) -> None:
    """Promise: several writers book each moment once."""
    path, count = tmp_path / "gpu.book", 200

    def write(seed: int) -> None:
        dice = random.Random(seed)
        book = DeviceBook(path)
        for i in range(count):
            until_s = 10.0 + i + dice.random()
            book.extend(10.0, until_s, lambda b, e: _use(e - b, e - b, p1=0.2))

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    book = DeviceBook(path)
    book.read()
    assert all(a.end_s == b.begin_s for a, b in itertools.pairwise(book.intervals))
    length_s = book.until_s - 10.0
    assert length_s > count - 1
    assert math.fsum(i.interval.energy_j for i in book.intervals) == pytest.approx(length_s)


def test_a_folder_without_permission_costs_the_book_only(tmp_path: Path) -> None:
    shares = ProcessShares(Host(), ["gpu:0"], (), None, tmp_path / "absent" / "file")
    (tmp_path / "absent").write_text("a file")
    assert shares.reasons  # nothing raised
    book = DeviceBook(tmp_path / "absent" / "gpu.book")
    book.mark(1.0)
    book.extend(1.0, 2.0, lambda b, e: _use(1.0, p1=0.1))
    assert not book.take({1}, 1.0, 2.0, fit_power([]), lambda b, e: None)
    assert book.intervals == []


PROGRAM = """
import sys, time
from wattloop.core.clock import RealClock
from wattloop.virtual.node import shared_gpus
from wattloop.virtual.timeline import this_process
(gpu,) = shared_gpus(1, RealClock())
for step in range(8):
    gpu.load(0.1 + 0.1 * (step % int(sys.argv[1])), memory=float(sys.argv[2]), owner=this_process())
    time.sleep(0.25)
"""


def test_two_commands_on_one_virtual_gpu_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: two `wattloop run --share process` state parts of one booking.

    A run begins and ends within an interval of the book. What its process is booked there outside
    of the run is in no run.
    """
    folder = tmp_path / "runs"
    folder.mkdir()
    monkeypatch.setenv("WATTLOOP_NODE_RUNS", str(folder))
    monkeypatch.setenv("WATTLOOP_VIRTUAL_STATE", str(tmp_path / "cards"))
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "runs.db"))
    words = [sys.executable, "-m", "wattloop", "run", "-q", "--share", "process"]
    monkeypatch.setenv("WATTLOOP_VIRTUAL_GPUS", "1")
    options = ["--meters", "virtual"]
    both = [
        subprocess.Popen(
            [
                *(*words, *options, "--json", str(tmp_path / f"{i}.json")),
                *("--", sys.executable, "-c", PROGRAM, str(i), str(1.0 / i)),
            ]
        )
        for i in (2, 3)
    ]
    assert [each.wait(timeout=300) for each in both] == [0, 0]
    parts_j = [json.loads((tmp_path / f"{i}.json").read_text())["energy_j"] for i in (2, 3)]
    (path,) = folder.glob("gpu-*.book")
    book = DeviceBook(path)
    book.read()
    used = [each for each in book.intervals if each.interval.use]
    assert len({pid for each in used for pid in each.booked}) == 2
    whole_j = math.fsum(each.interval.energy_j for each in used)
    edges_j = 0.0
    for pid in {pid for each in used for pid in each.booked}:
        own_j = [each.booked[pid] for each in used if pid in each.booked]
        edges_j += own_j[0] + own_j[-1]
    assert edges_j < 0.4 * whole_j
    assert whole_j - edges_j <= math.fsum(parts_j) <= whole_j * (1 + 1e-6)
    assert min(parts_j) > 0


def test_the_part_of_an_interval_has_its_part_of_what_was_taken() -> None:
    each = BookedInterval(1.0, 3.0, _use(200.0, 2.0, p1=0.5), {1: 60.0})
    assert each.between(1.0, 2.0, None).booked == {1: 30.0}
    assert each.between(1.0, 2.0, 150.0).booked == {1: pytest.approx(45.0)}
    assert each.between(1.0, 2.0, 150.0).interval.energy_j == pytest.approx(150.0)
