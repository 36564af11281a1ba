"""Promises of windows in forked and spawned processes, threads and async tasks."""

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wattloop
from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree, Writing
from tests.support.synthetic_energy import about_j
from wattloop.measure.api import active_session
from wattloop.store.journal import Journal, journal_directory, read_journal

POWER_W = 80.0


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    tree = PowercapTree(tmp_path / "sys")
    package = tree.add_package(0)
    monkeypatch.setenv("WATTLOOP_SYSFS_ROOT", str(tree.root))
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "store" / "runs.db"))
    monkeypatch.setenv("WATTLOOP_METERS", "rapl")
    monkeypatch.setenv("WATTLOOP_INTERVAL", "0.05")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("WATTLOOP_JOB", raising=False)
    monkeypatch.chdir(tmp_path)
    curves = {package: Constant(POWER_W)}
    with Driver(curves, update_period_s=0.002, writing=Writing.IN_PLACE) as driver:
        yield driver


@pytest.fixture
def store(driver: Driver, tmp_path: Path) -> Path:
    return tmp_path / "store" / "runs.db"


def journals(store: Path) -> list[Journal]:
    paths = sorted(journal_directory(str(store)).glob("*.journal"))
    return [journal for journal in map(read_journal, paths) if journal is not None]


def use_inherited(window: Any, queue: Any) -> None:
    """End an inherited window in a forked worker, and look for a session."""
    window.end()
    queue.put((window.energy_j, active_session() is None, window.result.warnings))


def measure_own(queue: Any) -> None:
    with wattloop.measure("child") as child:
        time.sleep(0.3)
    assert child.run is not None
    queue.put((child.run.counted, child.result.energy_j, child.duration_s, os.getpid()))


def test_a_forked_child_does_not_touch_the_parents_run(store: Path, driver: Driver) -> None:
    """Promise: a window inherited through fork has no energy in the child, and says why; the
    parent's window and journal are whole.
    """
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with wattloop.measure("parent") as parent:
        session = active_session()
        assert session is not None
        window = session.begin("shared")
        child = context.Process(target=use_inherited, args=(window, queue))
        child.start()
        energy_j, alone, warnings = queue.get(timeout=300)
        child.join()
        time.sleep(0.2)
        window.end()
    assert child.exitcode == 0
    assert energy_j is None
    assert alone
    assert any("forked" in warning for warning in warnings)
    assert window.energy_j == about_j(POWER_W, window.duration_s, driver)
    assert parent.energy_j == about_j(POWER_W, parent.duration_s, driver)
    (journal,) = journals(store)
    assert journal.end is not None
    assert journal.torn_bytes == 0


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_that_measures_is_not_counted_again(
    method: str, store: Path, driver: Driver
) -> None:
    """Promise: while the parent counts the devices, a child's own run knows its energy but does
    not count it; the parent's total holds it once.
    """
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    with wattloop.measure("parent") as parent:
        child = context.Process(target=measure_own, args=(queue,))
        child.start()
        counted, energy_j, duration_s, pid = queue.get(timeout=300)
        child.join()
    assert pid != os.getpid()
    assert not counted
    assert energy_j == about_j(POWER_W, duration_s, driver, rel=0.15)
    ends = [j.end for j in journals(store) if j.end is not None]
    assert sorted(end["counted"] for end in ends) == [False, True]
    assert parent.run is not None
    assert parent.run.energy_j == about_j(POWER_W, parent.duration_s, driver)


def test_threads_have_windows_of_their_own(store: Path, driver: Driver) -> None:
    """Promise: overlapping windows of threads are each measured over their own time."""
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        with wattloop.measure(f"thread {number}") as window:
            time.sleep(0.1 * number)
        found[number] = window

    with wattloop.measure("all") as whole:
        threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number, window in found.items():
        assert window.duration_s >= 0.1 * number
        assert window.energy_j == about_j(POWER_W, window.duration_s, driver, rel=0.15)
    assert whole.duration_s >= max(w.duration_s for w in found.values())
    assert len(journals(store)) == 1


def test_async_tasks_nest_their_windows_apart(store: Path, driver: Driver) -> None:
    """Promise: a task's inner window belongs to that task's outer one, though tasks interleave."""

    async def task(name: str) -> tuple[Any, Any]:
        with wattloop.measure(name) as outer:
            await asyncio.sleep(0.05)
            with wattloop.measure(f"{name}/inner") as inner:
                await asyncio.sleep(0.5)  # the thread that moves the counter may be 0.1 s late
            await asyncio.sleep(0.05)
        return outer, inner

    async def both() -> list[tuple[Any, Any]]:
        return await asyncio.gather(task("a"), task("b"))

    with wattloop.measure("all"):
        pairs = asyncio.run(both())
    for outer, inner in pairs:
        assert inner.result.parent_id == outer.result.window_id
        assert inner.energy_j == about_j(POWER_W, inner.duration_s, driver, rel=0.2)
        assert outer.duration_s > inner.duration_s


def test_workers_of_a_data_loader_disturb_nothing(store: Path, driver: Driver) -> None:
    """Promise: forked data-loading workers, which end during the run, change nothing."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    data = torch.utils.data.TensorDataset(torch.arange(32).float())
    with wattloop.measure("epochs") as run:
        for _ in range(2):
            loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2)
            assert sum(float(x.sum()) for (x,) in loader) == 496.0
        time.sleep(0.1)
    assert run.energy_j == about_j(POWER_W, run.duration_s, driver)
    (journal,) = journals(store)
    assert journal.end is not None
    assert journal.torn_bytes == 0
