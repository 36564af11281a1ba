import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from wattloop.accounting.carbon import LiveIntensity, fetch_live, shown_url
from wattloop.core.records import Gap


@contextmanager
def provider(body: str, status: int = 200, drip_s: float = 0.0) -> Iterator[str]:
    """A real HTTP server that answers every request with `body`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            try:
                for byte in body.encode():
                    self.wfile.write(bytes([byte]))
                    if drip_s:
                        self.wfile.flush()
                        time.sleep(drip_s)
            except OSError:
                pass

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/now?token=secret"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"g_co2e_per_kwh": 41.5}', LiveIntensity(41.5, "")),
        ('{"zone": "FR", "carbonIntensity": 58}', LiveIntensity(58.0, "FR")),
    ],
)
def test_both_documented_replies_are_understood(body, expected):
    """Wattloop's own field and that of Electricity Maps."""
    with provider(body) as url:
        assert fetch_live(url, timeout_s=120) == expected


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("not json", 200, "not JSON"),
        ("[]", 200, "has no number"),
        ('{"carbonIntensity": null}', 200, "has no number"),
        ('{"g_co2e_per_kwh": true}', 200, "has no number"),
        ('{"g_co2e_per_kwh": -3}', 200, "not within"),
        ('{"g_co2e_per_kwh": NaN}', 200, "not within"),
        (f'{{"g_co2e_per_kwh": 1{"0" * 400}}}', 200, "not within"),
        ('{"g_co2e_per_kwh": 5}', 403, "Forbidden"),
        ("[" * 100_000, 200, "not JSON"),
    ],
)
def test_a_reply_that_makes_no_sense_is_a_gap_with_a_reason(body, status, says):
    """No invented intensity, no exception, and no secret of the URL in the message."""
    with provider(body, status) as url:
        answer = fetch_live(url, timeout_s=120)
    assert isinstance(answer, Gap)
    assert says in answer.reason
    assert "secret" not in answer.reason


def test_a_reply_that_trickles_in_is_given_up():
    """Each byte comes in time but the answer never ends; the end of a run must not wait for it."""
    with provider('{"g_co2e_per_kwh": 5}', drip_s=0.15) as url:
        answer = fetch_live(url, timeout_s=0.3)
    assert isinstance(answer, Gap)
    assert "no answer within 0.3 s" in answer.reason


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "nonsense", ""])
def test_only_http_is_asked(url):
    """A URL from a configuration file cannot read local files."""
    assert isinstance(fetch_live(url), Gap)


def test_secrets_of_a_url_are_not_shown():
    """User, password and query stay out of notes and logs."""
    assert shown_url("https://me:pw@host.org:8/a/b?key=1#x") == "https://host.org/a/b"


def test_login_in_the_url_is_used_and_never_shown():
    """`user:password@` becomes a header; an error about the address does not repeat it."""
    with provider('{"g_co2e_per_kwh": 41.5}') as url:
        answer = fetch_live(url.replace("http://", "http://me:hidden@"), timeout_s=120)
        assert answer == LiveIntensity(41.5, "")
    refused = fetch_live("http://me:hidden@127.0.0.1:1/now")
    assert isinstance(refused, Gap)
    assert "hidden" not in refused.reason
