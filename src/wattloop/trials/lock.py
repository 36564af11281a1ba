"""Lock of a running experiment; processes left by a crashed one are ended first."""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from wattloop.core.errors import DeviceBusy, StoreUnwritable
from wattloop.store.database import Store

TRIAL_VARIABLE = "WATTLOOP_TRIAL"
"""Set for every program of a trial, as `EXPERIMENT/KEY`; its children inherit it."""


@contextmanager
def lock_experiment(store: Store, experiment_id: str) -> Iterator[None]:
    """Lock the experiment; the kernel releases it however we end. Raises DeviceBusy."""
    if store.place.is_memory:  # no other process can see it, and no file may be left behind
        yield
        return
    path = _lock_path(store, experiment_id)
    file = _locked(path, experiment_id)
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        yield
        with suppress(OSError):
            path.unlink()
    finally:
        os.close(file)


def is_locked(store: Store, experiment_id: str) -> bool:
    try:
        file = os.open(_lock_path(store, experiment_id), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def refuse_locked(store: Store, experiment_id: str) -> None:
    """Raise DeviceBusy for an experiment that a living process runs, before anything is written."""
    if not is_locked(store, experiment_id):
        return
    try:
        owner = _lock_path(store, experiment_id).read_text(errors="replace")
    except OSError:  # it has ended just now
        return
    raise _busy(experiment_id, owner)


def end_leftovers(experiment_id: str, procfs: Path = Path("/proc")) -> list[int]:
    """End programs that a runner of this experiment left when it was killed; their numbers.

    Call it while the experiment is claimed: then every program that bears its name is left over.
    """
    mark = f"{TRIAL_VARIABLE}={experiment_id}/".encode()
    ended = []
    for folder in procfs.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # of another user, or ended
            continue
        if any(variable.startswith(mark) for variable in variables):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(folder.name), signal.SIGKILL)
                ended.append(int(folder.name))
    return ended


def _lock_path(store: Store, experiment_id: str) -> Path:
    return store.journals / f"{experiment_id}.lock"


def _locked(path: Path, experiment_id: str) -> int:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StoreUnwritable(
                f"{path}: cannot be created ({error.strerror}); choose another store with --store "
                "or WATTLOOP_STORE"
            ) from None
        try:
            _lock(file, experiment_id)
        except BaseException:
            os.close(file)
            raise
        if os.fstat(file).st_nlink:
            return file
        os.close(file)  # its last owner removed it between our two calls: others make a new one


def _lock(file: int, experiment_id: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _busy(experiment_id, os.pread(file, 32, 0).decode(errors="replace")) from None


def _busy(experiment_id: str, owner: str) -> DeviceBusy:
    process = owner.strip()
    return DeviceBusy(
        f"{experiment_id} is being run by process {process or '?'}; wait for it, or stop it with "
        f"'kill {process or 'PID'}': what has ended is kept"
    )
