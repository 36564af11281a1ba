"""The hook as `wattloop run` sees it: a folder for step files, and a thread that watches it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattloop.integrations.phases import StepTotals
    from wattloop.integrations.step_hook.collector import StepCollector
    from wattloop.measure.session import Session

STEPS_VARIABLE = "WATTLOOP_STEPS"
CHECK_EVERY_S = 0.5


class StepHook:
    """Hook of one program. The collector is loaded when a first process has stepped, so that a
    program without steps does not pay for it.
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._folder: Path | None = None
        self._collector: StepCollector | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="wattloop-hook", daemon=True)

    @property
    def totals(self) -> StepTotals | None:
        """Steps and phases, after the run was closed; None without any."""
        return None if self._collector is None else self._collector.totals

    def begin(self, session: Session, environment: dict[str, str]) -> dict[str, str]:
        """Return the environment of the program, with the hook first on its path."""
        # Not tempfile, which takes milliseconds to load; the run's number makes the name unique.
        place = os.path.abspath(os.environ.get("TMPDIR") or "/tmp")  # noqa: PTH100
        folder = Path(place, f"wattloop-steps-{session.run_id}")
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            session.note(f"steps are not recorded: {error}")
            return environment
        self._session, self._folder = session, folder
        session.before_end.append(self._end)
        self._thread.start()
        path = filter(None, [str(Path(__file__).parent), environment.get("PYTHONPATH")])
        return {
            **environment,
            "PYTHONPATH": os.pathsep.join(path),
            STEPS_VARIABLE: str(self._folder),
        }

    def _end(self) -> None:
        """Take in what the hooks of the program wrote last."""
        import shutil

        assert self._folder is not None
        self._ended.set()
        self._thread.join()
        try:
            if self._collector is not None:
                self._collector.finish()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self) -> None:
        assert self._session is not None
        while not self._ended.wait(CHECK_EVERY_S) and not self._written():
            continue
        if not self._written():
            return
        try:
            from wattloop.integrations.step_hook.collector import StepCollector

            assert self._folder is not None
            self._collector = StepCollector(self._session, self._folder)
        except Exception as error:  # noqa: BLE001 - the run matters more than its steps
            self._session.note(f"steps are not recorded: {type(error).__name__}: {error}")

    def _written(self) -> bool:
        assert self._folder is not None
        try:
            return any(self._folder.iterdir())
        except OSError:  # the program has removed it
            return False
