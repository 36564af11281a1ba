"""Lock of a running experiment, its status by that lock, and programs that a crash left running."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from wattloop.core import files
from wattloop.core.errors import DeviceBusy, StoreUnwritable
from wattloop.core.files import FileLock
from wattloop.hardware.host import Host
from wattloop.store.database import Store
from wattloop.store.experiments import RUNNING, Experiment

TRIAL_VARIABLE = "WATTLOOP_TRIAL"
"""Set for every program of a trial, as `EXPERIMENT/KEY`; its children inherit it."""

LOCK_VARIABLE = "WATTLOOP_TRIAL_LOCK"
"""Set for every program of a trial: the lock file of its experiment, which names the store too.
Another store, of another user or of a test, may have an experiment of the same name.
"""


@contextmanager
def lock_experiment(store: Store, experiment_id: str) -> Iterator[None]:
    """Lock the experiment; the kernel releases it however we end. Raises DeviceBusy."""
    if store.place.is_memory:  # no other process can see it, and no file may be left behind
        yield
        return
    lock = FileLock(_lock_path(store, experiment_id), mode=0o666)
    try:
        acquired = lock.acquire(owner=str(os.getpid()))
    except OSError as error:
        raise StoreUnwritable(
            f"{lock.path}: cannot be created ({error.strerror}); choose another store with "
            "--store or WATTLOOP_STORE"
        ) from None
    if not acquired:
        raise _busy(experiment_id, lock.owner())
    try:
        yield
        with suppress(OSError):
            lock.release(remove=True)
    finally:
        lock.release()


def is_locked(store: Store, experiment_id: str) -> bool:
    return files.is_locked(_lock_path(store, experiment_id))


def with_status_now(store: Store, experiment: Experiment) -> Experiment:
    """Return the experiment; one marked as running here that no process runs is stopped."""
    here = experiment.facts.get("host") == Host.from_environment().name
    if experiment.status == RUNNING and here and not is_locked(store, experiment.experiment_id):
        return replace(experiment, status="interrupted")
    return experiment


def refuse_locked(store: Store, experiment_id: str) -> None:
    """Raise DeviceBusy for an experiment that a living process runs, before anything is written."""
    lock = FileLock(_lock_path(store, experiment_id))
    if is_locked(store, experiment_id) and lock.path.exists():  # else it has ended just now
        raise _busy(experiment_id, lock.owner())


def program_variables(store: Store, experiment_id: str) -> dict[str, str]:
    """Return variables for the programs of an experiment, by which `end_leftovers` finds them."""
    if store.place.is_memory:  # it is lost with its process: no later runner looks for programs
        return {}
    return {LOCK_VARIABLE: str(_lock_path(store, experiment_id).resolve())}


def end_leftovers(store: Store, experiment_id: str, procfs: Path = Path("/proc")) -> list[int]:
    """End programs that a runner of this experiment left when it was killed; their numbers.

    Call it while the experiment is locked: then every program that names its lock is left over.
    """
    marks = {
        os.fsencode(f"{name}={value}")
        for name, value in program_variables(store, experiment_id).items()
    }
    ended: list[int] = []
    if not marks:
        return ended
    for folder in procfs.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # of another user, or ended
            continue
        if marks.issubset(variables):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(folder.name), signal.SIGKILL)
                ended.append(int(folder.name))
    return ended


def _lock_path(store: Store, experiment_id: str) -> Path:
    return store.journals / f"{experiment_id}.lock"


def _busy(experiment_id: str, owner: str) -> DeviceBusy:
    process = owner.strip()
    return DeviceBusy(
        f"{experiment_id} is being run by process {process or '?'}; wait for it, or stop it with "
        f"'kill {process or 'PID'}': what has ended is kept"
    )
