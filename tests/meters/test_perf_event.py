"""Promises of the perf system call layer, on a software event that any kernel counts."""

import errno
import mmap
import os
import threading
import time
from pathlib import Path

import pytest

from wattloop.hardware.host import Host
from wattloop.meters.perf import (
    CACHE_MISSES,
    CYCLES,
    PerfCounter,
    ProgramCounters,
    find_memory_events,
)

SOFTWARE = 1
CPU_CLOCK = 0
PAGE_FAULTS = 2


def open_or_skip(config: int, **where: int) -> PerfCounter:
    try:
        return PerfCounter(SOFTWARE, config, **where)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.ENOSYS):
            pytest.skip(f"this kernel refuses perf_event_open even for itself: {error}")
        raise


def test_counts_the_cpu_time_of_this_process() -> None:
    """PERF_COUNT_SW_CPU_CLOCK is in nanoseconds, which shows that the struct's layout is right."""
    counter = open_or_skip(CPU_CLOCK, cpu=-1, pid=0)
    before, cpu_before_ns = counter.read(), time.thread_time_ns()
    while time.thread_time_ns() - cpu_before_ns < 20_000_000:
        pass
    spent_ns = time.thread_time_ns() - cpu_before_ns
    counted_ns = counter.read() - before
    counter.close()
    assert 0.5 * spent_ns < counted_ns < 3 * spent_ns


def test_config_selects_the_event() -> None:
    """Page faults are counted one by one, which shows that `config` is at its place."""
    counter = open_or_skip(PAGE_FAULTS, cpu=-1, pid=0)
    before = counter.read()
    faults = 0
    for _ in range(50):  # on a busy virtual machine the kernel may be late in counting them
        with mmap.mmap(-1, 16 * 4096) as pages:  # the heap may reuse old pages
            for start in range(0, len(pages), 4096):
                pages[start] = 1
        faults = counter.read() - before
        if faults:
            break
        time.sleep(0.01)
    counter.close()
    assert 0 < faults < 100_000


def test_counts_a_whole_cpu_where_permitted() -> None:
    """pid -1 with a CPU, as the energy events need it."""
    counter = open_or_skip(CPU_CLOCK, cpu=0, pid=-1)
    first = counter.read()
    time.sleep(0.01)
    assert counter.read() > first
    counter.close()


def test_unknown_event_source_is_an_error() -> None:
    """The kernel's refusal is an OSError with its number, not descriptor -1."""
    with pytest.raises(OSError) as caught:
        PerfCounter(987_654, 0, cpu=0)
    assert caught.value.errno in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EINVAL)


def test_closed_counter_cannot_be_read() -> None:
    """Reading after close fails instead of reading another owner's descriptor."""
    counter = open_or_skip(CPU_CLOCK, cpu=-1, pid=0)
    counter.close()
    counter.close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        counter.read()


def test_a_program_is_counted_over_all_its_threads() -> None:
    """Promise: CPU time of threads that start after the counters is part of the count."""
    open_or_skip(CPU_CLOCK, cpu=-1, pid=0).close()
    counters = ProgramCounters(Host(), {"cycles": (SOFTWARE, CPU_CLOCK)})
    before = counters.read()["cycles"]

    def work() -> None:
        begin_ns = time.thread_time_ns()
        while time.thread_time_ns() - begin_ns < 20_000_000:
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert counters.read()["cycles"] - before > 10_000_000
    counters.close()


def test_an_uncounted_event_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: a refusal names the remedy, a missing event says so, and the rest is counted."""

    def opened(kind: int, config: int, cpu: int, pid: int = -1, flags: int = 0) -> StubCounter:
        if (kind, config) == CYCLES:
            raise OSError(errno.EACCES, "Permission denied")
        if (kind, config) == CACHE_MISSES:
            raise OSError(errno.ENOENT, "No such file or directory")
        return StubCounter(7)

    monkeypatch.setattr("wattloop.meters.perf.PerfCounter", opened)
    host = Host(sysfs=tmp_path)
    counters = ProgramCounters(host)
    assert set(counters.read()) == {"instructions"}
    assert "perf_event_paranoid" in counters.reasons["cycles"]
    assert "no such event here" in counters.reasons["cache_misses"]


class StubCounter:
    """A counter that does not move."""

    def __init__(self, count: int) -> None:
        self.count = count

    def read(self) -> int:
        return self.count

    def close(self) -> None:
        pass


def test_memory_controllers_are_read_as_sysfs_describes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: event and umask go to the bits of `format`, counts become bytes, sockets add up."""
    source = tmp_path / "bus/event_source/devices/uncore_imc_0"
    files = {
        "type": "14", "cpumask": "0,18",
        "format/event": "config:0-7", "format/umask": "config:8-15",
        "events/cas_count_read": "event=0x04,umask=0x03", "events/cas_count_read.unit": "MiB",
        "events/cas_count_read.scale": "6.103515625e-5",
        "events/cas_count_write": "event=0x04,odd=0x03", "events/cas_count_write.unit": "MiB",
        "events/cas_count_write.scale": "6.103515625e-5",
    }  # fmt: skip
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(f"{text}\n")
    host = Host(sysfs=tmp_path)
    assert find_memory_events(host) == [(14, 0x0304, 0, 64.0), (14, 0x0304, 18, 64.0)]
    monkeypatch.setattr("wattloop.meters.perf.PerfCounter", lambda *event, **more: StubCounter(10))
    assert ProgramCounters(host, {}).read() == {"memory_b": 1_280.0}
