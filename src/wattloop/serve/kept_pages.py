"""Pages of experiments that ended, kept in the user's cache folder: a restart is no reason to wait.

A page is kept under a hash of all that it is made from: the experiment and its trials as stored,
the settings, the code, and the libraries that analyse and draw.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from sqlalchemy import select

from wattloop.core.config_file import load_settings
from wattloop.core.ownership import is_trusted
from wattloop.schedule.campaigns.source_digest import source_digest
from wattloop.store.database import Store
from wattloop.store.experiments import RUNNING, Experiment
from wattloop.store.schema import trials

__all__ = ["KeptPages", "ReportPage"]

PARTS = (
    "analyze",
    "characterize",
    "core",
    "report",
    "schedule",
    "serve",
    "study",
    "trials",
    "tune",
)
LIBRARIES = ("altair", "numpy", "scikit-learn", "scipy", "statsmodels")
MOST = 64
"""Pages that are kept; the longest unused go first."""


@dataclass(frozen=True, slots=True)
class ReportPage:
    """A report as parts of a page: headings and what is below them, as HTML."""

    title: str
    subtitle: str
    sections: list[tuple[str, str]]


class KeptPages:
    """Pages on disk.

    Args:
        folder: where; `$XDG_CACHE_HOME/wattloop/pages` unless given.
    """

    def __init__(self, folder: Path | None = None) -> None:
        base = os.environ.get("XDG_CACHE_HOME")
        usual = (Path(base) if base else Path.home() / ".cache") / "wattloop" / "pages"
        self._folder = usual if folder is None else folder

    def get(
        self, store: Store, experiment: Experiment, make: Callable[[], ReportPage]
    ) -> ReportPage:
        """The page as kept, else as made; one that goes on is made every time."""
        if experiment.status == RUNNING:
            return make()
        path = self._folder / f"{_digest(store, experiment)}.json"
        with suppress(OSError, ValueError, KeyError, TypeError):  # not there, or broken: made again
            if path.exists() and not is_trusted(path):
                return make()
            found = _page(json.loads(path.read_text("utf-8")))
            path.touch()
            return found
        page = make()
        with suppress(OSError):  # a folder that cannot be written is left
            self._keep(path, page)
        return page

    def _keep(self, path: Path, page: ReportPage) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_text(json.dumps(asdict(page)), "utf-8")
        part.replace(path)
        files = sorted(self._folder.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for each in files[:-MOST]:
            each.unlink(missing_ok=True)


def _page(data: Mapping[str, Any]) -> ReportPage:
    sections = [(str(heading), str(content)) for heading, content in data["sections"]]
    return ReportPage(str(data["title"]), str(data["subtitle"]), sections)


def _digest(store: Store, experiment: Experiment) -> str:
    own = trials.c.experiment_id == experiment.experiment_id
    with store.reading() as connection:
        rows = [
            tuple(row)
            for row in connection.execute(select(trials).where(own).order_by(trials.c.key))
        ]
    parts = (
        *(
            source_digest(PARTS),
            [_version(name) for name in LIBRARIES],
            repr(load_settings(needs=())),
        ),
        *(json.dumps(experiment.to_dict(), sort_keys=True, default=str), rows),
    )
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""
