"""Promises of ingest: in order, once, only with the token, and without loss."""

from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.store.ingest.uploads import LARGEST_PIECE_B, STALE_S
from wattloop.store.journal import END, HEADER, json_frame, samples_frame

RUN = "20260101-000000-abcdef"
TOKEN = {"Authorization": "Bearer secret"}


def header(run_id: str = RUN) -> bytes:
    """Return a header with one gauge on another machine."""
    domain = {
        **{"name": "gpu:0", "kind": "gauge", "scope": "gpu", "source": "NVML"},
        **{"provenance": "measured", "inside": None, "resolution": 1.0, "update_period_s": 0.1},
    }
    return json_frame(
        HEADER,
        {
            **{"run_id": run_id, "name": "far", "kind": "command", "host": "elsewhere"},
            **{"started_wall_s": 1e9, "started_s": 0.0, "settings": {"store": "/far/runs.db"}},
            **{"feeds": [{"meter": "nvml", "domains": [domain], "signals": []}], "format": 1},
        },
    )


def samples(begin: int, end: int) -> bytes:
    """Return samples of 100 W, ten times a second."""
    times_s = array("d", [n / 10 for n in range(begin, end)])
    return samples_frame(0, 1, times_s, array("d", [100.0] * len(times_s)))


def the_end() -> bytes:
    """Return the end of a finished run."""
    return json_frame(
        END,
        {
            **{"type": "end", "time_s": 10.0, "wall_s": 1e9 + 10, "status": "finished"},
            **{"exit_code": 0, "signal": None, "result": None, "accounting": None},
        },
    )


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """A client of a server that accepts runs."""
    options = ServeOptions(store=str(tmp_path / "runs.db"), token="secret")
    with TestClient(create_app(options)) as found:
        yield found


def post(client: TestClient, offset: int, piece: bytes, run: str = RUN) -> Any:
    """Send one piece."""
    return client.post(f"/api/v1/ingest/{run}?offset={offset}", content=piece, headers=TOKEN)


def test_pieces_become_a_run_whatever_is_sent_twice(client: TestClient) -> None:
    """The answer to a piece may be lost: a repeated piece, partial or whole, changes nothing."""
    whole = header() + samples(0, 50) + samples(50, 101) + the_end()
    cuts = [0, len(header()), len(header()) + 33, len(header()) + 700, len(whole)]
    for begin, end in pairwise(cuts):
        for start in (begin, max(0, begin - 100)):
            answer = post(client, start, whole[start:end])
            assert answer.status_code == 200, answer.text
    assert answer.json()["ended"]
    run = client.get(f"/api/v1/runs/{RUN}").json()
    assert (run["host"], run["status"]) == ("elsewhere", "finished")
    curve = client.get(f"/api/v1/runs/{RUN}/curves").json()["curves"][0]
    assert len(curve["times_s"]) == 101
    assert post(client, 0, whole).json()["ended"]


def test_a_piece_that_does_not_follow_is_told_where_to_begin(client: TestClient) -> None:
    """409 with the expected offset."""
    post(client, 0, header())
    answer = post(client, 5_000, samples(0, 1))
    assert answer.status_code == 409
    assert answer.json()["offset"] == len(header())
    assert client.get(f"/api/v1/ingest/{RUN}", headers=TOKEN).json()["offset"] == len(header())


def test_nothing_is_written_without_the_token(client: TestClient, tmp_path: Path) -> None:
    """A missing token, a wrong one, or the cookie alone is refused."""
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "wattloop_token=secret"}):
        answer = client.post(f"/api/v1/ingest/{RUN}", content=header(), headers=headers)
        assert answer.status_code == 401
    closed = ServeOptions(store=str(tmp_path / "runs.db"))
    with TestClient(create_app(closed)) as other:
        assert other.post(f"/api/v1/ingest/{RUN}", content=header()).status_code == 403
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("piece", [b"", b"nonsense", samples(0, 1), header("another-run")])
def test_what_is_no_journal_is_refused(client: TestClient, piece: bytes) -> None:
    """The first piece begins with the header of that run."""
    assert post(client, 0, piece).status_code == 422


@pytest.mark.parametrize("run", ["..", ".hidden", "a%2fb", "x" * 200])
def test_identifiers_are_names_and_not_paths(client: TestClient, run: str, tmp_path: Path) -> None:
    """Nothing is written outside the folder of journals."""
    assert post(client, 0, header(run), run).status_code in (404, 405, 422)
    assert not list(tmp_path.rglob("*.part"))


def test_a_piece_has_a_largest_size(client: TestClient) -> None:
    """413 comes before the whole piece is in memory."""
    answer = post(client, 0, header() + b"x" * (LARGEST_PIECE_B + 1))
    assert answer.status_code == 413


def test_a_machine_that_is_never_heard_of_again_leaves_a_run_that_died(client: TestClient) -> None:
    """The run has the energy of the sent samples."""
    post(client, 0, header() + samples(0, 101))
    state = client.app.state.wattloop  # type: ignore[attr-defined] # of FastAPI
    assert state.ingest.abandoned() == []
    part = next(iter(state.ingest.parts()))
    assert state.ingest.abandoned(part.stat().st_mtime + STALE_S + 1)
    run = client.get(f"/api/v1/runs/{RUN}").json()
    assert run["status"] == "died"
    assert run["energy_j"] == pytest.approx(1_000.0, rel=0.02)
