"""Promises of the PostgreSQL lab: after a kill and a start it has all committed data."""

import psycopg
import pytest

from tests.support.postgres_lab import PostgresLab, why_no_postgres

pytestmark = pytest.mark.skipif(bool(why_no_postgres()), reason=why_no_postgres() or "-")


def test_a_killed_server_restarts_with_committed_data() -> None:
    """A test may kill the server at any moment and start it again on the same address."""
    with PostgresLab() as lab:
        with psycopg.connect(lab.url) as connection:
            connection.execute("create table t (x integer)")
            connection.execute("insert into t values (7)")
        lab.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(lab.url, connect_timeout=1)
        lab.start()
        with psycopg.connect(lab.url) as connection:
            assert connection.execute("select x from t").fetchall() == [(7,)]
        folder = lab.folder
    assert not folder.exists()
