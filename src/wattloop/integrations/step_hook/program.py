"""The hook as `wattloop run` sees it: a folder for step files, and a thread that watches it.

The thread also records GPU signals until a step is seen: a run without steps gets its phases from
them.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from wattloop.core.files import CLOSE_ON_EXEC, is_locked, try_lock, unlock_and_close, user_id
from wattloop.measure.run_journal import PHASES, RunProgress

if TYPE_CHECKING:
    from wattloop.integrations.run_phases import StepTotals
    from wattloop.integrations.signal_phases import SignalRecorder
    from wattloop.integrations.step_hook.collector import StepCollector
    from wattloop.measure.session import Session

STEPS_VARIABLE = "WATTLOOP_STEPS"
CHECK_EVERY_S = 0.5
FOLDER_PREFIX = "wattloop-steps-"
STALE_AFTER_S = 60.0
"""A folder without a lock that is younger than this may be that of a run that begins."""
SETTLED_AFTER_S = 1.0
"""Readings of power are complete up to this long ago."""


class StepHook:
    """Hook of one program. The collector is loaded when a first process has stepped, so that a
    program without steps does not pay for it.
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._folder: Path | None = None
        self._lock: int | None = None
        self._collector: StepCollector | None = None
        self._signals: SignalRecorder | None = None
        self._inferred: StepTotals | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="wattloop-hook", daemon=True)

    @property
    def folder(self) -> Path | None:
        """Folder of the step files; None where they cannot be written, and before the run."""
        return self._folder

    @property
    def totals(self) -> StepTotals | None:
        """Steps and phases, after the run was closed; None without any."""
        if self._inferred is not None:
            return self._inferred
        return None if self._collector is None else self._collector.totals

    @property
    def progress(self) -> RunProgress:
        """Steps and phases so far."""
        if self._collector is not None:
            return self._collector.progress
        measured = self._session is not None and bool(self._session.channels)
        return RunProgress(phases=dict.fromkeys(PHASES, (0.0, 0.0 if measured else None)))

    def begin(self, session: Session, environment: dict[str, str]) -> dict[str, str]:
        """Return the environment of the program, with the hook first on its path."""
        # Not tempfile, which takes milliseconds to load; the run's number makes the name unique.
        place = os.path.abspath(os.environ.get("TMPDIR") or os.environ.get("TEMP") or "/tmp")  # noqa: PTH100
        folder = Path(place, f"{FOLDER_PREFIX}{session.run_id}")
        self._session = session
        session.before_end.append(self._end)
        try:
            folder.mkdir(mode=0o700)
            if hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder
                self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | CLOSE_ON_EXEC)
                try_lock(self._lock)
            self._folder = folder
        except OSError as error:
            session.note(f"steps are not recorded: {error}")
        self._thread.start()
        if self._folder is None:
            return environment
        path = filter(None, [str(Path(__file__).parent), environment.get("PYTHONPATH")])
        return {
            **environment,
            "PYTHONPATH": os.pathsep.join(path),
            STEPS_VARIABLE: str(self._folder),
        }

    def _end(self) -> None:
        """Take in what the hooks of the program wrote last."""
        import shutil

        self._ended.set()
        self._thread.join()
        try:
            if self._collector is not None:
                self._collector.finish()
            if self._signals is not None and not self._stepped:
                self._infer()
        finally:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            if self._lock is not None:
                unlock_and_close(self._lock)

    @property
    def _stepped(self) -> bool:
        return self._collector is not None and self._collector.steps > 0

    def _infer(self) -> None:
        """Take the phases of a run without steps from the signals of its GPUs."""
        from dataclasses import replace

        assert self._signals is not None
        found = self._collector
        totals = self._signals.finish(() if found is None else found.compilations)
        if totals is not None and found is not None and found.totals is not None:
            totals = replace(totals, notes=found.totals.notes)
        self._inferred = totals

    def _watch(self) -> None:
        session = self._session
        assert session is not None
        try:
            # The program starts first: nothing is loaded meanwhile.
            ended = self._ended.wait(CHECK_EVERY_S)
            if not ended:
                self._follow_signals(session)
                if self._folder is not None:
                    remove_stale_folders(self._folder.parent)
            while True:
                if self._collector is None and self._written():
                    self._collect(session)
                if self._stepped and self._signals is not None:
                    self._signals.stop()
                    self._signals = None
                if self._signals is not None:
                    self._signals.update(session.clock.now_s() - SETTLED_AFTER_S)
                elif self._collector is not None:
                    return
                if ended:
                    return
                ended = self._ended.wait(CHECK_EVERY_S)
        except Exception as error:  # noqa: BLE001 - the run matters more than its steps
            session.note(f"steps are not recorded: {type(error).__name__}: {error}")

    def _follow_signals(self, session: Session) -> None:
        signals = [signal.name for feed in session.feeds for signal in feed.signals]
        if any(name.endswith("/utilisation") for name in signals):
            from wattloop.integrations.signal_phases import SignalRecorder

            self._signals = SignalRecorder.of(session)

    def _collect(self, session: Session) -> None:
        from wattloop.integrations.step_hook.collector import StepCollector

        assert self._folder is not None
        self._collector = StepCollector(session, self._folder)

    def _written(self) -> bool:
        try:
            return self._folder is not None and any(self._folder.iterdir())
        except OSError:  # the program has removed it
            return False


def remove_stale_folders(place: Path) -> None:
    """Remove folders of step files whose `wattloop run` was killed: their locks are free."""
    import shutil
    import stat

    for folder in place.glob(f"{FOLDER_PREFIX}*"):
        try:
            status = folder.lstat()
            if (
                stat.S_ISDIR(status.st_mode)
                and status.st_uid == user_id()
                and time.time() - status.st_ctime > STALE_AFTER_S
                and not is_locked(folder)
            ):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # removed meanwhile, or a file system without locks
            continue
