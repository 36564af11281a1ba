"""The perf_event_open system call: one counter of the kernel as a file descriptor."""

import os
import struct

SYSCALL_NUMBERS = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331, "riscv64": 241}
PERF_FLAG_FD_CLOEXEC = 8
ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")
"""`struct perf_event_attr` as first published (64 bytes), which every kernel takes: type, size,
config, sample_period, sample_type, read_format, flags, wakeup_events, bp_type, bp_addr."""
COUNT = struct.Struct("=Q")


class PerfCounter:
    """Counts one event from now on.

    Args:
        kind: number of the event source (`type` in sysfs).
        config: number of the event within it.
        cpu: which CPU; -1 for wherever the process runs.
        pid: which process; -1 for all (needs `cpu`), 0 for this one.
        flags: bits of `struct perf_event_attr`, such as 2 to count what it starts as well.

    Raises:
        OSError: the kernel refuses; `errno` says why (EACCES or EPERM: permission).
    """

    __slots__ = ("_fd",)

    def __init__(self, kind: int, config: int, cpu: int, pid: int = -1, flags: int = 0) -> None:
        self._fd = -1
        self._fd = _open(kind, config, cpu, pid, flags)

    def read(self) -> int:
        """The count since it was opened. Raises OSError when the CPU went away."""
        data = os.read(self._fd, COUNT.size)
        if len(data) != COUNT.size:
            # The kernel answers with nothing when the event is in an error state.
            raise OSError("the kernel no longer counts this event")
        (count,) = COUNT.unpack(data)
        return int(count)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open(kind: int, config: int, cpu: int, pid: int, flags: int) -> int:
    import ctypes  # costs milliseconds that machines without perf need not pay

    machine = os.uname().machine
    number = SYSCALL_NUMBERS.get(machine)
    if number is None:
        raise OSError(f"the number of perf_event_open is not known for {machine}")
    attributes = ATTRIBUTES.pack(kind, ATTRIBUTES.size, config, 0, 0, 0, flags, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    fd: int = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_char_p(attributes),
        ctypes.c_int(pid),
        ctypes.c_int(cpu),
        ctypes.c_int(-1),
        ctypes.c_ulong(PERF_FLAG_FD_CLOEXEC),
    )
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return fd
