"""Files of a candidate, and the epoch of its last checkpoint."""

import hashlib
import json
import re
import shutil
from contextlib import suppress
from pathlib import Path


class CandidateFiles:
    """Folder of a candidate: `checkpoint/` belongs to the training, the rest to the executor."""

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
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self._state.unlink(missing_ok=True)
        self.make()
        self._known = self._signature()

    def remove(self) -> None:
        """Remove the checkpoint; the output of the training stays."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self._state.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    @property
    def saved_epochs(self) -> float | None:
        if not self._signature():
            return None
        try:
            return float(json.loads(self._state.read_text())["epochs"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def note(self, epochs: float) -> None:
        """Record the end of an epoch; files that changed since the last one belong to it."""
        signature = self._signature()
        if not signature or signature == self._known:
            return
        self._known = signature
        temporary = self._state.with_suffix(".tmp")
        with suppress(OSError):  # On a full disk a resumed search only loses this checkpoint.
            temporary.write_text(json.dumps({"epochs": epochs}))
            temporary.replace(self._state)

    def _signature(self) -> frozenset[tuple[str, int, int]]:
        found = set()
        with suppress(OSError):
            for path in self.checkpoint.rglob("*"):
                facts = path.stat()
                found.add((str(path), facts.st_size, facts.st_mtime_ns))
        return frozenset(found)
