"""Empty places for stores: a file, and a database of its own on the PostgreSQL of the tests."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from wattloop.store.location import StoreLocation

__all__ = ["POSTGRES", "WHERE", "empty_place", "needs_postgres"]

POSTGRES = os.environ.get("WATTLOOP_TEST_POSTGRES", "")
needs_postgres = pytest.mark.skipif(
    not POSTGRES,
    reason="WATTLOOP_TEST_POSTGRES names no server; 'make test' starts one where PostgreSQL is "
    "installed: apt install postgresql",
)
WHERE = ["sqlite", pytest.param("postgresql", marks=needs_postgres)]
"""For `pytest.mark.parametrize`."""


@contextmanager
def empty_place(kind: str, folder: Path) -> Iterator[str]:
    """Return a location without a store."""
    if kind == "sqlite":
        yield str(folder / "runs.db")
        return
    name = f"wattloop_{uuid.uuid4().hex[:12]}"
    server = StoreLocation.parse(POSTGRES).server_url()
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    url = server.set(drivername="postgresql", database=name)
    yield url.render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()
