"""Promises of delivery over a real PostgreSQL: kill anything at any moment, lose nothing."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from tests.fleet.delivery.served import NODE, begin, end_of, sample, whole
from tests.support.fleet_server import FleetServer
from tests.support.postgres_lab import PostgresLab, why_no_postgres
from wattloop.store.database import open_store
from wattloop.store.runs import list_runs
from wattloop.store.sample_queries import read_samples
from wattloop.store.samples import find_series

pytestmark = pytest.mark.skipif(bool(why_no_postgres()), reason=why_no_postgres() or "is there")

PROGRAM = """
import sys
from pathlib import Path
from wattloop.fleet.delivery import DeliveryOptions, deliver
deliver(DeliveryOptions(url=sys.argv[1], node="n1", folder=Path(sys.argv[2]), token=sys.argv[3],
                        every_s=0.02, timeout_s=5.0))
"""
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresLab]:
    with PostgresLab() as found:
        yield found


class Sending:
    """A sender in a process of its own."""

    def __init__(self, server: FleetServer, outbox: Path, token: str) -> None:
        self._command = [sys.executable, "-c", PROGRAM, server.url, str(outbox), token]
        self.start()

    def start(self) -> None:
        """Begin, knowing nothing but the files."""
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        """At once."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def until(is_so: object, what: str) -> None:
    """Wait for something that must come."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not is_so():  # type: ignore[operator] # a function
        assert time.monotonic() < give_up_s, what
        time.sleep(0.05)


def test_everything_is_killed_in_turn_and_every_sample_arrives_once(
    postgres: PostgresLab, tmp_path: Path
) -> None:
    """Sender, server and database die while journals grow and end; the store has each once."""
    outbox = tmp_path / "outbox"
    outbox.mkdir()
    written: dict[str, int] = {}
    with FleetServer(tmp_path, postgres.url) as server:
        sending = Sending(server, outbox, server.node_token(NODE))
        parts = {"sender": sending, "server": server, "database": postgres}
        for number, part in enumerate(parts):
            grows = begin(outbox, f"2026010{number}-000000-grows")
            for second in range(4):
                sample(grows, second)
                whole(outbox, f"2026010{number}-00000{second}-short", samples=3 + second)
                written[f"2026010{number}-00000{second}-short"] = 3 + second
                if second == 1:
                    parts[part].kill()
                if second == 3:
                    parts[part].start()
                time.sleep(0.1)
            grows.end(end_of())
            grows.close()
            written[f"2026010{number}-000000-grows"] = 4
        until(lambda: not list(outbox.glob("*.*l")), "journals are left")
        sending.kill()
    with open_store(postgres.url) as store:
        found = {
            r.run_id: len(read_samples(store, r.run_id, find_series(r.feeds, "gpu:0"))[0])
            for r in list_runs(store)
        }
        assert found == written
        assert {r.status.value for r in list_runs(store)} == {"finished"}
    assert not list((tmp_path / "wattloop" / "journals" / "incoming").iterdir())
