"""Location of a store: a file, a server, or memory."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wattloop.core.errors import StoreError
from wattloop.core.files import user_path
from wattloop.core.text import without_query_secrets

if TYPE_CHECKING:
    from sqlalchemy import URL


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A parsed location. Exactly one of `path`, `is_memory`, `is_server` holds."""

    location: str
    label: str
    """For messages: never contains a password."""
    path: Path | None = None
    url: "URL | None" = None

    @classmethod
    def parse(cls, location: str) -> "StoreLocation":
        """Parse paths, `~`, `sqlite:///PATH`, `:memory:` and `postgresql://...`."""
        if location in (":memory:", "sqlite://", "sqlite:///:memory:"):
            return cls(location, "memory")
        if location.startswith("sqlite:///") or "://" not in location:
            path = user_path(location.removeprefix("sqlite:///"))
            if not path.name:
                raise StoreError(
                    f"{location!r} names no store; give a file such as runs.db or a URL such as "
                    "postgresql://user@host/wattloop"
                )
            return cls(str(path), str(path), path=path)
        # not above: SQLAlchemy takes 0.2 s to load, and a file needs none of it
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            url = make_url(location)
        except (ArgumentError, ValueError):
            scheme = location.split("://", maxsplit=1)[0]
            raise StoreError(
                f"{scheme}://...: not a URL that can be understood; write it as "
                "postgresql://user:password@host:5432/database"
            ) from None
        label = without_query_secrets(url.render_as_string(hide_password=True))
        if url.get_backend_name() not in ("postgresql", "postgres"):
            raise StoreError(f"{label}: only SQLite files and postgresql:// URLs can hold runs")
        return cls(location, label, url=url)

    @property
    def is_memory(self) -> bool:
        """True for a store in memory, which is gone when closed."""
        return self.path is None and self.url is None

    @property
    def is_server(self) -> bool:
        return self.url is not None

    @property
    def is_read_only(self) -> bool:
        """True for a file that exists and that this user may not change."""
        if self.path is None or not self.path.exists():
            return False
        return not (os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK))

    def same_server(self, other: "StoreLocation") -> bool:
        """Return True if both name the same database; the user is ignored, as journals hide it."""
        if self.url is None or other.url is None:
            return False
        ours, theirs = (
            (url.host or "localhost", url.port or 5432, url.database)
            for url in (self.url, other.url)
        )
        return ours == theirs

    def server_url(self) -> "URL":
        """Return the URL with the driver we use."""
        assert self.url is not None
        return self.url.set(drivername="postgresql+psycopg")
