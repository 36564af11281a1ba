"""A folder of journals: those that end, those that grow, and those that nobody wants."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wattloop.store.journal import journal_is_live

__all__ = ["REFUSED", "THINNED", "Outbox", "Waiting"]

THINNED = ".thinned"
REFUSED = "refused"


class Waiting(NamedTuple):
    """A journal that is not in the store yet."""

    run_id: str
    path: Path
    size_b: int

    @property
    def is_thinned(self) -> bool:
        """Whether its samples were dropped to make room."""
        return self.path.suffix == THINNED

    def is_growing(self) -> bool:
        """Whether its writer still holds it."""
        return not self.is_thinned and journal_is_live(self.path)

    def read(self, offset: int, most_b: int) -> bytes:
        """The next bytes; none when it is gone."""
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                return file.read(most_b)
        except FileNotFoundError:
            return b""


class Outbox:
    """The journals of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def waiting(self) -> list[Waiting]:
        """Oldest first: identifiers of runs sort by their beginning."""
        found: dict[str, Waiting] = {}
        for path in sorted(self._files()):
            try:
                size_b = path.stat().st_size
            except FileNotFoundError:
                continue
            if size_b:
                # of both, `.thinned` sorts last and is the one that counts
                found[path.stem] = Waiting(path.stem, path, size_b)
        return list(found.values())

    def remove(self, run_id: str) -> None:
        """It is in the store."""
        for suffix in (".journal", THINNED):
            (self.folder / f"{run_id}{suffix}").unlink(missing_ok=True)

    def set_aside(self, waiting: Waiting, reason: str) -> Path:
        """Keep what the server will never take where a person may look at it."""
        aside = self.folder / REFUSED
        aside.mkdir(exist_ok=True)
        target = aside / waiting.path.name
        target.with_name(f"{target.name}.txt").write_text(reason + "\n", "utf-8")
        waiting.path.replace(target)
        return target

    def refused(self) -> list[Path]:
        """What was set aside, oldest first."""
        found = (self.folder / REFUSED).glob("*")
        return sorted((p for p in found if p.is_file()), key=lambda p: p.stat().st_mtime)

    def _files(self) -> Iterator[Path]:
        yield from self.folder.glob("*.journal")
        yield from self.folder.glob(f"*{THINNED}")
