"""Pages of finished experiments in the user's cache folder, so that they survive a restart.

The key of a page is its inputs: the experiment and its trials as stored, the settings, the code,
and the libraries that analyse and draw.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from sqlalchemy import select

from wattloop.core.cache import FileCache
from wattloop.core.files import cache_folder
from wattloop.core.settings import load_settings
from wattloop.schedule.campaigns.campaign import source_digest
from wattloop.store.database import Store
from wattloop.store.experiments import RUNNING, Experiment
from wattloop.store.schema import trials

PARTS = (
    *("accounting", "analyze", "bench", "cap", "core", "report", "schedule", "serve", "study"),
    *("sweep", "trials", "tune"),
)
LIBRARIES = ("numpy", "scikit-learn", "scipy", "statsmodels", "vl-convert-python")
MOST_PAGES = 64
"""Pages that are kept; the longest unused go first."""


@dataclass(frozen=True, slots=True)
class ReportPage:
    """A report as parts of a page: headings and HTML."""

    title: str
    subtitle: str
    sections: list[tuple[str, str]]


class PageCache:
    """Pages of finished experiments on disk.

    Args:
        folder: where; `$XDG_CACHE_HOME/wattloop/pages` unless given.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._files = FileCache(
            cache_folder("pages") if folder is None else folder,
            suffix=".json",
            most=MOST_PAGES,
            load=_load,
            dump=lambda page: json.dumps(asdict(page)).encode(),
        )

    def get(
        self, store: Store, experiment: Experiment, make: Callable[[], ReportPage]
    ) -> ReportPage:
        """Return the cached page, else a new one; pages of running experiments are not cached."""
        if experiment.status == RUNNING:
            return make()
        return self._files.get(_inputs(store, experiment), make)


def _load(text: bytes) -> ReportPage:
    data = json.loads(text)
    sections = [(str(heading), str(content)) for heading, content in data["sections"]]
    return ReportPage(str(data["title"]), str(data["subtitle"]), sections)


def _inputs(store: Store, experiment: Experiment) -> list[str]:
    own = trials.c.experiment_id == experiment.experiment_id
    with store.reading() as connection:
        rows = connection.execute(select(trials).where(own).order_by(trials.c.key)).all()
    return [
        source_digest(PARTS),
        repr([_version(name) for name in LIBRARIES]),
        repr(load_settings(needs=())),
        json.dumps(experiment.to_dict(), sort_keys=True, default=str),
        repr([tuple(row) for row in rows]),
    ]


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""
