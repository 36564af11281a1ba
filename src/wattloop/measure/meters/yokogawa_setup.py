"""What Wattloop changes on a WT310E, and how it puts everything back.

Commands as in Yokogawa's manual IM WT310E-17EN. A query answers with or without header and in
long or short form (`:INTEGRATE:STATE RESET`, `RES`), whatever the user has set.
"""

from collections.abc import Callable

from wattloop.core.records import Gap

__all__ = ["Setup"]

CHANGED = (
    (":COMMUNICATE:HEADER", "0"),
    (":NUMERIC:FORMAT", "ASCII"),
    (":NUMERIC:NORMAL:NUMBER", "2"),
    (":NUMERIC:NORMAL:ITEM1", "P,1"),
    (":NUMERIC:NORMAL:ITEM2", "WH,1"),
)
"""Communication settings: they change what we are told, not what is measured."""
INTEGRATION = ((":INTEGRATE:MODE", "NORMAL"), (":INTEGRATE:TIMER", "0,0,0"))
"""Integrate without end (a timer of 0 is the instrument's limit of 10,000 hours)."""


class Setup:
    """Snapshot, change, restore.

    An integration that a user has running is only read. One that is stopped with a result on the
    display is left alone too: starting it would add to the result, resetting would lose it.
    """

    def __init__(self, query: Callable[[str], object], write: Callable[[str], object]) -> None:
        self._query = query
        self._write = write
        self._before: list[tuple[str, str]] = []
        self._started = False
        self.integration_gap: Gap | None = None

    def prepare(self) -> None:
        """Make the instrument answer with P and WH, integrating if it may."""
        try:
            for command, value in CHANGED:
                self._change(command, value)
            state = self._ask(":INTEGRATE:STATE").upper()
            if state.startswith("RES"):
                for command, value in INTEGRATION:
                    self._change(command, value)
                self._write(":INTEGRATE:START")
                self._started = True
            elif not state.startswith("STAR"):
                self.integration_gap = Gap(
                    f"integration is in state {state}; press RESET on the instrument "
                    "to let Wattloop integrate"
                )
        except BaseException:
            self.restore()
            raise

    def restore(self) -> None:
        """Put back what was changed, last change first."""
        if self._started:
            self._started = False
            self._write(":INTEGRATE:STOP")
            self._write(":INTEGRATE:RESET")
        while self._before:
            command, value = self._before[-1]
            self._write(f"{command} {value}")
            self._before.pop()

    def _change(self, command: str, value: str) -> None:
        before = self._ask(command)
        if before.upper() != value:
            self._before.append((command, before))
            self._write(f"{command} {value}")

    def _ask(self, command: str) -> str:
        """The answer without its header, if it has one."""
        return str(self._query(f"{command}?")).strip().rsplit(" ", 1)[-1]
