"""Promises before any token: no client can keep a server from answering others."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

import uvicorn
from fastapi.testclient import TestClient

from wattloop.serve import connection_limits, requests
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions

HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
PATIENCE_S = 300.0
"""Nothing here takes as long, on a busy machine either."""


@contextmanager
def listening(folder: Path) -> Iterator[int]:
    """Return the port of a real server, with the settings of `wattloop serve`."""
    app = create_app(ServeOptions(store=str(folder / "runs.db"), token="secret"))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as place:
        place.bind(("127.0.0.1", 0))
        place.listen(512)
        server = uvicorn.Server(connection_limits.server_config(app, log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        try:
            yield place.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)


def _connect(port: int, data: bytes = b"") -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    found.sendall(data)
    return found


def _ends(connection: socket.socket) -> bool:
    """Return true if the server ends the connection; raise if it does not within a limit."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        pass
    connection.close()
    return True


def _page(port: int) -> int:
    with urlopen(f"http://127.0.0.1:{port}/nodes", timeout=PATIENCE_S) as answer:
        return int(answer.status)


@pytest.mark.parametrize(
    "sent", [b"", HALF, b"GET /nodes HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + HALF]
)
def test_headers_that_do_not_come_end_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """No bytes, half a request, or a whole one and half of the next."""
    monkeypatch.setattr(connection_limits, "HEADER_S", 0.3)
    with listening(tmp_path) as port:
        assert _ends(_connect(port, sent))
        # a busy machine may take longer for a whole request
        monkeypatch.setattr(connection_limits, "HEADER_S", 600.0)
        assert _page(port) == 200


def test_more_connections_than_places_do_not_silence_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest waiting ones are closed; a keep-alive connection in use stays."""
    monkeypatch.setattr(connection_limits, "MOST", 40)
    monkeypatch.setattr(connection_limits, "HEADER_S", 600.0)
    with listening(tmp_path) as port:
        waiting = [_connect(port, HALF) for _ in range(150)]
        for _ in range(3):
            assert _page(port) == 200
        open_now = 0
        for connection in waiting:
            connection.setblocking(False)
            try:
                connection.recv(1)
            except BlockingIOError:
                open_now += 1
            except ConnectionError:
                pass
            connection.close()
        assert 0 < open_now <= 40


def test_a_body_that_does_not_come_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """408, and the connection ends."""
    monkeypatch.setattr(requests, "BODY_S", 0.3)
    request = b"POST /api/v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"
    with listening(tmp_path) as port:
        connection = _connect(port, request)
        assert b" 408 " in connection.recv(65_536).splitlines()[0]
        assert _ends(connection)


def test_predictions_beyond_the_queue_are_refused_and_pages_go_on(tmp_path: Path) -> None:
    """Of 60 at once, 17 wait for the one process; the others are told when to try again."""
    app = create_app(ServeOptions(store=str(tmp_path / "runs.db")))
    predictor, release = app.state.wattloop.predictor, threading.Event()

    def held(task: str, **question: Any) -> Any:
        assert release.wait(PATIENCE_S)
        return {"answer": {"model": question["model"]}, "html": ""}

    predictor.call = held
    with TestClient(app) as client, ThreadPoolExecutor(60) as readers:
        where = "/api/v1/predict?model=gpt2&batch={}"
        refused, asked = [], [readers.submit(client.get, where.format(n)) for n in range(1, 61)]
        while len(refused) < 43:  # answered while the others wait
            time.sleep(0.01)
            refused = [one for one in asked if one.done()]
        assert {one.result().status_code for one in refused} == {503}
        assert all(int(one.result().headers["Retry-After"]) > 0 for one in refused)
        for path in ("/", "/nodes", "/predict", "/api/v1/jobs"):
            assert client.get(path).status_code == 200
        release.set()
        assert sorted({one.result().status_code for one in asked}) == [200, 503]
        assert client.get(where.format(1)).status_code == 200
