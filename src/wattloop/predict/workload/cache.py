"""Cache of traces in the user's cache folder.

The key of a trace covers everything that determines it: the configuration or the structure and
source of the model, shapes, precision, optimizer, rules of the user, and the versions of torch and
Wattloop. A model without readable source is not cached.
"""

from collections.abc import Callable
from pathlib import Path

from wattloop.core.cache import FileCache
from wattloop.core.paths import cache_folder
from wattloop.predict.workload.files import VERSION, workload_bytes, workload_from_bytes
from wattloop.predict.workload.workload import Workload

_MOST = 500
"""Largest number of traces; the least recently used are removed."""


COUNTED_BY = "2"
"""Version of the counting rules; a new one invalidates older traces: 2 has cuDNN's workspaces in
the memory of convolutions.
"""


def kept_or_made(
    parts: list[str] | None, make: Callable[[], Workload], folder: Path | None = None
) -> Workload:
    """Return the cached workload for the key `parts`, else make and cache one.

    Without parts the key is unknown, so the workload is made.
    """
    if parts is None:
        return make()
    files = FileCache(
        cache_folder("workloads") if folder is None else folder,
        suffix=".json.gz",
        most=_MOST,
        load=workload_from_bytes,
        dump=workload_bytes,
    )
    return files.get([str(VERSION), COUNTED_BY, *parts], make)
