"""Promises of `wattloop.measure()`: any block, function, thread, task or process."""

import asyncio
import functools
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

import wattloop
from wattloop.core.errors import ConfigError
from wattloop.core.results import RunStatus
from wattloop.measure.api import Measurement, active_session
from wattloop.measure.job import RUN_VARIABLE
from wattloop.measure.window_energy import current_window
from wattloop.store.journal import read_journal

from .conftest import Machine


@pytest.fixture(autouse=True)
def no_run_is_left_open(machine: Machine) -> Iterator[None]:
    """Check that every test ends with its run closed."""
    assert machine.root.is_dir()
    yield
    assert active_session() is None
    assert current_window() is None


def windows_of(machine: Machine) -> list[dict[str, object]]:
    """Return the windows in the journals, outermost last."""
    found = []
    for path in machine.journals.glob("*.journal"):
        journal = read_journal(path)
        assert journal is not None
        found += [e["window"] for e in journal.events if e["type"] == "window"]
    return found


def test_block_is_measured(machine: Machine) -> None:
    """Joules, seconds and watts of a `with` block, and the run it made."""
    with wattloop.measure("training") as m:
        time.sleep(0.5)
    assert m.energy_j == machine.about_j(m.duration_s)
    assert m.power_w == pytest.approx(m.energy_j / m.duration_s)
    assert m.uncertainty_j > 0
    assert m.run is not None
    assert m.run.status is RunStatus.FINISHED


def test_values_can_be_read_while_it_runs() -> None:
    """The energy so far grows."""
    with wattloop.measure("training", interval_s=0.01) as m:
        time.sleep(0.2)
        first = m.energy_j
        time.sleep(0.2)
        assert first is not None
        assert m.energy_j is not None
        assert m.energy_j > first
        assert m.live_power_w()


def test_function_is_measured_by_name(machine: Machine) -> None:
    """A bare decorator names the run after the function and returns its value."""

    @wattloop.measure
    def train(steps: int) -> int:
        """Train."""
        return steps * 2

    assert train(3) == 6
    assert train.__name__ == "train"
    assert train.__doc__ == "Train."
    assert "train" in str(windows_of(machine)[0]["name"])


def test_decorator_with_options_measures_every_call(machine: Machine) -> None:
    """Calls outside a loop are runs of their own; calls in a loop share one."""

    @wattloop.measure("step", interval_s=0.05)
    def step() -> None:
        time.sleep(0.01)

    step()
    step()
    assert len(list(machine.journals.glob("*.journal"))) == 2


def test_a_function_in_a_loop_shares_one_run(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 calls at once are not 100 runs: the first has its own, the others are windows of one."""
    monkeypatch.setattr("wattloop.measure.api.LINGER_S", 600.0)

    @wattloop.measure
    def step() -> str | None:
        time.sleep(0.001)
        return os.environ.get(RUN_VARIABLE)

    named = [step() for _ in range(100)]
    assert len(set(named)) == 2
    assert None not in named
    assert RUN_VARIABLE not in os.environ, "what is started between calls is not part of the run"
    assert active_session() is None
    with wattloop.measure("other"):
        after_s = time.monotonic()
    journals = [read_journal(path) for path in sorted(machine.journals.glob("*.journal"))]
    assert sorted(j.header["name"].rpartition(".")[2] for j in journals) == [
        "other",
        "step",
        "step",
    ]
    (shared,) = [j for j in journals if j.header["run_id"] == named[-1]]
    assert sum(event.get("type") == "window" for event in shared.events) == 99
    assert shared.end is not None
    assert shared.end["time_s"] < after_s
    calls = step.calls  # type: ignore[attr-defined]  # what the decorator adds
    assert calls.count == 100
    assert calls.duration_s >= 0.1
    assert calls.energy_j > 0
    assert "100 calls" in repr(calls)


def test_a_decorated_function_is_sent_to_workers(machine: Machine) -> None:
    """joblib and Ray copy functions of a script into their workers, by cloudpickle."""
    cloudpickle = pytest.importorskip("cloudpickle")

    @wattloop.measure
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    copy = pickle.loads(cloudpickle.dumps(double))
    assert copy(21) == 42
    assert (copy.calls.count, copy.calls.name) == (1, double.calls.name)  # type: ignore[attr-defined]  # what the decorator adds
    assert double.calls.count == 1  # type: ignore[attr-defined]  # the same


def test_calls_without_a_reading_are_added_later(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that ended before the sampler's next reading is still unknown, not missing."""
    monkeypatch.setattr("wattloop.measure.api.LINGER_S", 600.0)

    @wattloop.measure
    def step() -> None:
        time.sleep(0.01)

    step()
    step()
    calls = step.calls  # type: ignore[attr-defined]  # what the decorator adds
    known = Measurement.result.fget  # type: ignore[attr-defined]  # a property has one
    unread = known(calls.last)
    unread = unread._replace(domains=tuple(d._replace(energy_j=None) for d in unread.domains))
    with monkeypatch.context() as early:
        early.setattr(
            Measurement, "result", property(lambda self: unread if self.is_live else known(self))
        )
        assert calls.energy_j is None
        assert "2 calls, not all read yet" in repr(calls)
        assert calls.duration_s > 0
    assert calls.energy_j > 0
    with wattloop.measure("other"):
        pass


def test_a_run_that_waits_for_calls_ends_by_itself(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends when no call follows for a while, and not only with the process."""
    monkeypatch.setattr("wattloop.measure.api.LINGER_S", 5.0)

    @wattloop.measure
    def step() -> None:
        time.sleep(0.001)

    step()
    step()
    monkeypatch.setattr("wattloop.measure.api.LINGER_S", 0.0)
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        journals = [read_journal(path) for path in machine.journals.glob("*.journal")]
        if len(journals) == 2 and all(journal.end is not None for journal in journals):
            return
        time.sleep(0.05)
    pytest.fail("the run is still open")


def test_coroutine_is_measured_until_it_is_done(machine: Machine) -> None:
    """Waiting inside counts, and two concurrent tasks have windows of their own."""

    @wattloop.measure("task")
    async def work(duration_s: float) -> float:
        await asyncio.sleep(duration_s)
        return duration_s

    async def both() -> list[float]:
        return await asyncio.gather(work(0.1), work(0.2))

    assert asyncio.run(both()) == [0.1, 0.2]
    durations = sorted(float(str(w["duration_s"])) for w in windows_of(machine))
    assert durations[0] >= 0.1
    assert durations[1] >= 0.2


def test_begin_and_end_measure_the_code_between() -> None:
    """They suit code that does not fit into a block."""
    m = wattloop.measure("loop")
    m.begin()
    time.sleep(0.2)
    m.end()
    assert m.energy_j is not None
    assert m.run is not None


def test_end_without_begin_says_so() -> None:
    """The error is clear, not an attribute of None."""
    with pytest.raises(RuntimeError, match="end\\(\\) without begin"):
        wattloop.measure("x").end()
    with pytest.raises(RuntimeError, match="nothing measured yet"):
        _ = wattloop.measure("x").energy_j


def test_ending_twice_is_harmless() -> None:
    """The second end changes neither the window nor the run."""
    m = wattloop.measure("x").begin()
    first = m.end().duration_s
    assert m.end().duration_s == first


def test_beginning_twice_is_refused_and_loses_nothing() -> None:
    """The first measurement stays open, and can begin again after its end."""
    m = wattloop.measure("x").begin()
    with pytest.raises(RuntimeError, match="'x' has begun and not ended"):
        m.begin()
    m.end()
    assert m.run is not None
    first = m.run.run_id
    m.begin().end()
    assert m.run.run_id != first


def test_it_shows_its_energy() -> None:
    """A measurement at the end of a notebook cell is shown as one line."""
    m = wattloop.measure("training")
    assert repr(m) == "<wattloop 'training': not begun>"
    with m:
        time.sleep(0.1)
        assert re.fullmatch(r"<wattloop 'training': .* so far, measured.*>", repr(m))
    assert re.fullmatch(r"<wattloop 'training': .* J ± .* m?J in .* m?s, measured.*>", repr(m))


def test_inner_measurements_are_windows_of_the_outer_run(machine: Machine) -> None:
    """One run, one journal; each window knows its parent."""
    with wattloop.measure("outer"), wattloop.measure("middle"), wattloop.measure("inner"):
        pass
    by_name = {str(w["name"]): w for w in windows_of(machine)}
    assert len(list(machine.journals.glob("*.journal"))) == 1
    assert by_name["inner"]["parent_id"] == by_name["middle"]["window_id"]
    assert by_name["middle"]["parent_id"] == by_name["outer"]["window_id"]


def test_exception_passes_and_marks_the_run_failed() -> None:
    """The user's exception passes unchanged, and the run is stored as failed."""
    m = wattloop.measure("x")
    with pytest.raises(ZeroDivisionError), m:
        _ = 1 / 0
    assert m.run is not None
    assert m.run.status is RunStatus.FAILED


def test_threads_share_one_run(machine: Machine) -> None:
    """Windows of several threads overlap in one run that ends with the last of them."""
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        with wattloop.measure(f"thread {number}"):
            barrier.wait(120)
            time.sleep(0.02 * number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(machine.journals.glob("*.journal"))) == 1
    assert len(windows_of(machine)) == 4


def test_ten_thousand_nested_windows(machine: Machine) -> None:
    """Depth costs no recursion and no additional time per window."""
    stack: list[Measurement] = []
    for i in range(10_000):
        m = wattloop.measure(f"w{i}", interval_s=1.0)
        m.__enter__()
        stack.append(m)
    for m in reversed(stack):
        m.__exit__(None, None, None)
    assert stack[0].energy_j is not None
    assert stack[0].run is not None
    assert machine.root.is_dir()


def test_generator_that_is_closed_early_ends_its_window() -> None:
    """`GeneratorExit` is not a failure."""

    def batches() -> Iterator[int]:
        with wattloop.measure("loader"):
            yield 1
            yield 2

    generator = batches()
    assert next(generator) == 1
    generator.close()


def test_forked_worker_neither_counts_nor_disturbs(machine: Machine) -> None:
    """The child is like a DataLoader worker, and may use measure() itself."""
    with wattloop.measure("parent") as m:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with wattloop.measure("child") as inner:
                    pass
                run = inner.run
                code = 0 if run is not None and not run.counted else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        time.sleep(0.1)
    assert os.waitstatus_to_exitcode(status) == 0
    assert m.run is not None
    assert m.run.counted
    assert m.energy_j is not None
    assert machine.root.is_dir()


def test_never_closed_measurement_is_closed_at_exit(machine: Machine) -> None:
    """A script without `end()` exits at once, with its run in the journal."""
    code = "import wattloop; wattloop.measure('forgot').begin(); print('done')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"done\n", b"")
    (path,) = machine.journals.glob("*.journal")
    journal = read_journal(path)
    assert journal is not None
    assert journal.end is not None


def test_killed_program_leaves_a_readable_journal(machine: Machine) -> None:
    """`kill -9` inside a measurement: header and samples are there, no end."""
    code = (
        "import wattloop, time, os, signal\n"
        "wattloop.measure('x', interval_s=0.02).begin(); time.sleep(0.8)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=300, check=False)
    assert done.returncode == -9
    (path,) = machine.journals.glob("*.journal")
    journal = read_journal(path)
    assert journal is not None
    assert journal.end is None
    assert journal.blocks


def test_generator_is_measured_until_it_is_exhausted(machine: Machine) -> None:
    """From its first item to its last; the consumer's own windows are outside."""

    @wattloop.measure
    def numbers(count: int) -> Iterator[int]:
        yield from range(count)

    with wattloop.measure("outer"):
        found = []
        for number in numbers(3):
            found.append(number)
            with wattloop.measure("consumer"):
                time.sleep(0.01)
    assert found == [0, 1, 2]
    windows = {str(w["name"]).rpartition(".")[2]: w for w in windows_of(machine)}
    assert float(str(windows["numbers"]["duration_s"])) >= 0.03
    assert windows["consumer"]["parent_id"] == windows["outer"]["window_id"]


def test_asynchronous_generator_is_measured_until_it_is_exhausted(machine: Machine) -> None:
    """It behaves like a plain generator."""

    @wattloop.measure("items")
    async def numbers(count: int) -> AsyncIterator[int]:
        for number in range(count):
            await asyncio.sleep(0.01)
            yield number

    async def consume() -> list[int]:
        return [number async for number in numbers(3)]

    assert asyncio.run(consume()) == [0, 1, 2]
    (window,) = windows_of(machine)
    assert window["name"] == "items"
    assert float(str(window["duration_s"])) >= 0.03


def test_callable_without_a_name_can_be_measured(machine: Machine) -> None:
    """`functools.partial` has no `__qualname__`."""
    assert wattloop.measure(functools.partial(int, "7"))() == 7
    assert [w["name"] for w in windows_of(machine)] == ["partial"]


def test_name_may_be_a_keyword() -> None:
    """`measure(name="training")` works."""
    assert wattloop.measure(name="training").name == "training"


def test_ending_inside_the_block_does_not_end_the_outer_run() -> None:
    """Ending one measurement twice ends it once."""
    with wattloop.measure("outer") as outer:
        with wattloop.measure("inner") as inner:
            inner.end()
        assert active_session() is not None
        assert inner.run is None
    assert outer.run is not None


@pytest.mark.parametrize(("code", "status"), [(0, RunStatus.FINISHED), (3, RunStatus.FAILED)])
def test_exit_of_the_program_is_a_failure_only_with_a_code(code: int, status: RunStatus) -> None:
    """`sys.exit(0)` inside the block is a normal end."""
    measurement = wattloop.measure("x")
    with pytest.raises(SystemExit), measurement:
        sys.exit(code)
    assert measurement.run is not None
    assert measurement.run.status is status


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"intervall": 1}, "'intervall'; did you mean 'interval_s'"),
        ({"interval_s": 0}, "interval_s"),
        ({"interval_s": "often"}, "interval_s"),
        ({"devices": 7}, "devices"),
        ({"tags": "fast"}, "tags"),
        ({"tags": {"model": 3}}, "tags"),
        ({"meters": "raple"}, "raple"),
    ],
)
def test_wrong_option_is_named(options: dict[str, object], named: str) -> None:
    """The error is raised at the call, as far as the option can be checked there."""
    with pytest.raises(ConfigError, match=named):
        wattloop.measure("x", **options).begin()
    if "meters" not in options:
        with pytest.raises(ConfigError, match=named):
            wattloop.measure("x", **options)


def test_options_of_an_inner_measurement_are_reported_as_without_effect() -> None:
    """The run is already open; the warning says that the options have no effect."""
    with wattloop.measure("outer") as outer, wattloop.measure("inner", interval_s=0.01):
        pass
    assert outer.run is not None
    assert any("interval_s" in w and "no effect" in w for w in outer.run.result.warnings)


def test_process_that_may_start_no_thread_is_measured_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the end of a program, or at the limit of threads, the ends of windows are read."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with wattloop.measure("x") as m:
        time.sleep(0.2)
    assert m.energy_j is not None
    assert any("no thread" in w for w in m.run.result.warnings)  # type: ignore[union-attr]  # closed
