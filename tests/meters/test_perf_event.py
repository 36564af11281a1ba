"""The perf system call layer, proven on a software event that any kernel counts."""

import errno
import mmap
import os
import time

import pytest

from wattloop.meters.perf import PerfCounter

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
    """PERF_COUNT_SW_CPU_CLOCK is nanoseconds: the struct's fields are where the kernel looks."""
    counter = open_or_skip(CPU_CLOCK, cpu=-1, pid=0)
    before, cpu_before_ns = counter.read(), time.thread_time_ns()
    while time.thread_time_ns() - cpu_before_ns < 20_000_000:
        pass
    spent_ns = time.thread_time_ns() - cpu_before_ns
    counted_ns = counter.read() - before
    counter.close()
    assert 0.5 * spent_ns < counted_ns < 3 * spent_ns


def test_config_selects_the_event() -> None:
    """Page faults are counted one by one, so `config` is passed at its right place."""
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
    """The kernel's refusal arrives as an OSError with its number, not as descriptor -1."""
    with pytest.raises(OSError) as caught:
        PerfCounter(987_654, 0, cpu=0)
    assert caught.value.errno in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EINVAL)


def test_closed_counter_cannot_be_read() -> None:
    """Reading after close fails instead of reading somebody else's descriptor."""
    counter = open_or_skip(CPU_CLOCK, cpu=-1, pid=0)
    counter.close()
    counter.close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        counter.read()
