"""The files of a candidate, and how far its training was when it last saved something."""

import hashlib
import json
import re
import shutil
from contextlib import suppress
from pathlib import Path


class CandidateFiles:
    """A folder per candidate: `checkpoint/` is the training's own, the rest is ours.

    Args:
        base: folder of the search.
        candidate: its name, whatever letters it has.
    """

    def __init__(self, base: Path, candidate: str) -> None:
        readable = re.sub(r"[^\w.=-]+", "_", candidate)[:60].strip("_.")
        mark = hashlib.sha256(candidate.encode()).hexdigest()[:8]
        self.folder = base / f"{readable}-{mark}"
        self.checkpoint = self.folder / "checkpoint"
        self._state = self.folder / "saved.json"
        self._known = self._signature()

    def make(self) -> None:
        self.checkpoint.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Forget what an earlier training saved: this one begins anew."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self._state.unlink(missing_ok=True)
        self.make()
        self._known = self._signature()

    def remove(self) -> None:
        """Remove what a training goes on from; what it printed stays, for people."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self._state.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    @property
    def saved_epochs(self) -> float | None:
        """How many epochs the saved files have; None when nothing was saved."""
        if not self._signature():
            return None
        try:
            return float(json.loads(self._state.read_text())["epochs"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def note(self, epochs: float) -> None:
        """An epoch has ended: files that changed since the last one are of this one."""
        signature = self._signature()
        if not signature or signature == self._known:
            return
        self._known = signature
        beside = self._state.with_suffix(".tmp")
        with suppress(OSError):  # a full disk costs a resumed search this checkpoint, nothing more
            beside.write_text(json.dumps({"epochs": epochs}))
            beside.replace(self._state)

    def _signature(self) -> frozenset[tuple[str, int, int]]:
        found = set()
        with suppress(OSError):
            for path in self.checkpoint.rglob("*"):
                facts = path.stat()
                found.add((str(path), facts.st_size, facts.st_mtime_ns))
        return frozenset(found)
