"""What is known of journals on their way: who sends each, and whether all of it is there."""

import threading

from wattloop.store.frames import END, frames_in
from wattloop.store.incoming import Origin, Part

__all__ = ["PartBook"]

ENDED = -1


class PartBook:
    """Kept in memory, and worked out again from the files after a restart. Thread-safe.

    Whoever asks about a part holds it.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._searched: dict[str, int] = {}
        """How far a part was searched for its end; `ENDED` where it was found."""
        self._origins: dict[str, Origin] = {}

    def origin(self, run_id: str, part: Part) -> Origin | None:
        """Who sends it; the file is read once."""
        with self._guard:
            known = self._origins.get(run_id)
        if known is None and (known := part.origin()) is not None:
            with self._guard:
                self._origins[run_id] = known
        return known

    def is_complete(self, run_id: str, part: Part) -> bool:
        """Whether no more will come; looks only at frames that were not looked at before."""
        with self._guard:
            begin = self._searched.get(run_id, 0)
        size_b = part.size_b
        if begin == ENDED or size_b == 0:
            return begin == ENDED
        if size_b > begin:
            at = _searched(part, begin)
            with self._guard:
                self._searched[run_id] = at
            if at == ENDED:
                return True
        origin = self.origin(run_id, part)
        return origin is not None and origin.final

    def finish(self, run_id: str, part: Part) -> None:
        """Its sender says that no more will come."""
        origin = part.finish()
        with self._guard:
            self._origins[run_id] = origin

    def complete(self) -> list[str]:
        """Those that are known to be whole."""
        with self._guard:
            ended = {run_id for run_id, at in self._searched.items() if at == ENDED}
            final = {run_id for run_id, origin in self._origins.items() if origin.final}
        return sorted(ended | final)

    def forget(self, run_id: str) -> None:
        """It is in the store, or begins anew."""
        with self._guard:
            self._searched.pop(run_id, None)
            self._origins.pop(run_id, None)


def _searched(part: Part, begin: int) -> int:
    with part.path.open("rb") as file:
        file.seek(begin)
        data = file.read()
    at = begin
    for kind, _, end in frames_in(data):
        if kind == END:
            return ENDED
        at = begin + end
    return at
