"""Promises of job_submit.lua alone: users' texts are data, and no job is delayed."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples.slurm.lua_jobs import interpreter, plugin_for, submitted

pytestmark = [
    pytest.mark.skipif(interpreter() is None, reason="no Lua interpreter is installed"),
    pytest.mark.skipif(not Path("/usr/bin/curl").exists(), reason="curl is not installed"),
]

GOOD = "source=comment\nenergy_j=4320000\ntime_s=7800\nmessage=1.2 kWh\n"
TAG = 'wattloop:{"predicted_j":4320000,"predicted_s":7800,"predicted_by":"comment"}'
HOSTILE = [
    "'; touch pwned; '", '"; touch pwned; "', "$(touch pwned)", "`touch pwned`", "a\nb\rc",
    "%s%n%d%99999d", "]] os.execute('touch pwned') --[[", "\\", '"', "\x01\x1b[2J\x7f", "é💥\ud800",
    "@/etc/shadow", "-K /etc/shadow", "x" * 100_000, "wattloop:" + "=," * 2000,
]  # fmt: skip


class Service:
    """A service with scripted answers that records its requests."""

    def __init__(self) -> None:
        self.answer, self.status, self.hangs = GOOD, 200, threading.Event()
        self.hangs.set()
        self.bodies: list[bytes] = []
        self.headers: list[Any] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                outer.headers.append(self.headers)
                outer.hangs.wait(30)
                body = outer.answer.encode("utf-8", "surrogatepass")
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: Any) -> None:
                """Log nothing."""

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:  # curl has given up, as configured
                    return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    yield found
    found.hangs.set()
    found.server.shutdown()
    found.server.server_close()


def _job(**changes: str | int) -> dict[str, str | int]:
    return {"uid": 1000, "name": "train", "tres_per_job": "gres:gpu:2", **changes}


def test_the_user_is_told_and_the_job_is_tagged(service: Service, tmp_path: Path) -> None:
    """The tag is what the service expects; other text in AdminComment stays."""
    jobs = [_job(), _job(admin_comment="seen by root", uid=0)]
    one, two = submitted(tmp_path, plugin_for(service.url), jobs)
    assert one.status == 0 and one.told == ["wattloop: 1.2 kWh"]
    assert one.admin_comment == TAG
    assert two.admin_comment == f"seen by root {TAG}"


@pytest.mark.parametrize(
    ("fields", "gpus", "kind"),
    [
        ({"tres_per_job": "gres:gpu:4"}, 4, None),
        ({"tres_per_job": "", "tres_per_node": "gres:gpu:a100:2", "min_nodes": 3}, 6, "a100"),
        ({"tres_per_job": "", "tres_per_node": "gres:gpu", "min_nodes": 4294967294}, 1, None),
        ({"tres_per_job": "", "gres": "gpu:h100:2"}, 2, "h100"),
        ({"tres_per_job": "", "tres_per_task": "gres:gpu:2", "num_tasks": 4}, 8, None),
        ({"tres_per_job": "license:x:3,gres/gpu=5"}, 5, None),
    ],
)
def test_gpus_are_counted_over_all_nodes(
    service: Service, tmp_path: Path, fields: dict[str, str | int], gpus: int, kind: str | None
) -> None:
    """All ways to ask for GPUs are counted."""
    submitted(tmp_path, plugin_for(service.url), [_job(**fields)])
    asked = json.loads(service.bodies[0])
    assert (asked["gpus"], asked.get("gpu_type")) == (gpus, kind)


def test_jobs_without_gpus_are_not_asked_about(service: Service, tmp_path: Path) -> None:
    """Neither the user is told anything nor a tag is written."""
    (found,) = submitted(tmp_path, plugin_for(service.url), [_job(tres_per_job="")])
    assert service.bodies == [] and found.told == [] and found.admin_comment == ""


def test_texts_of_users_are_data(service: Service, tmp_path: Path) -> None:
    """Quotes, commands, newlines, control characters and 100 kB arrive as valid JSON, and none
    is run.
    """
    jobs = [_job(comment=text, name=text[:5000], account=text[:5000]) for text in HOSTILE]
    found = submitted(tmp_path, plugin_for(service.url), jobs)
    assert [each.status for each in found] == [0] * len(HOSTILE)
    assert len(service.bodies) == len(HOSTILE)
    for text, body in zip(HOSTILE, service.bodies, strict=True):
        asked = json.loads(body)
        raw = text.encode("utf-8", "surrogatepass")
        assert asked["name"].encode("latin-1") == raw[:4096]
        assert ("comment" in asked) == (len(raw) <= 4096)
    assert not list(tmp_path.glob("pwned")) and not Path("pwned").exists()


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(texts=st.lists(st.text(max_size=200), min_size=20, max_size=20))
def test_any_text_arrives_unchanged(service: Service, tmp_path: Path, texts: list[str]) -> None:
    """Every string that a user can type is one string of the request."""
    service.bodies.clear()
    texts = list(dict.fromkeys(text for text in texts if text and "\0" not in text))
    submitted(tmp_path, plugin_for(service.url), [_job(comment=text) for text in texts])
    arrived = [json.loads(body)["comment"].encode("latin-1") for body in service.bodies]
    assert arrived == [text.encode() for text in texts]


def test_the_same_request_is_sent_once(service: Service, tmp_path: Path) -> None:
    """Fifty jobs of one kind cost one request; an answer in progress is requested again."""
    jobs = [_job()] * 50
    found = submitted(tmp_path, plugin_for(service.url), jobs)
    assert len(service.bodies) == 1
    assert all(each.admin_comment == TAG for each in found)
    service.answer = "source=none\nlater=1\n"
    submitted(tmp_path, plugin_for(service.url), jobs[:3])
    assert len(service.bodies) == 4


def test_a_hanging_service_is_asked_once_and_jobs_are_submitted(
    service: Service, tmp_path: Path
) -> None:
    """After the time limit the job is submitted unchanged, and the next jobs do not wait."""
    service.hangs.clear()
    plugin = plugin_for(service.url, BOUND_S="0.2")
    found = submitted(tmp_path, plugin, [_job(name=f"job {i}") for i in range(5)])
    assert [each.status for each in found] == [0] * 5
    assert all(each.admin_comment == "" and each.told == [] for each in found)
    assert len(service.bodies) == 1
    assert "not asked again for 60 s" in found[0].logged[-1]


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("", 200), ("<html>", 200), ("nonsense", 500), ("source=x", 401),
        ("x" * 100_000, 200), ("{}", 200),
    ],
)  # fmt: skip
def test_an_invalid_answer_changes_nothing(
    service: Service, tmp_path: Path, answer: str, status: int
) -> None:
    """The job gets neither tag nor message, and is submitted."""
    service.answer, service.status = answer, status
    (found,) = submitted(tmp_path, plugin_for(service.url), [_job()])
    assert (found.status, found.admin_comment, found.told) == (0, "", [])


def test_answers_of_the_service_are_checked_as_well(service: Service, tmp_path: Path) -> None:
    """Escape sequences and quotes do not reach terminals and AdminComment."""
    service.answer = (
        'source=com"ment\nenergy_j=1\ntime_s=2\nmessage=\x1b[31mred\nmessage=%d%s\n'
        + "message=m\n" * 9
    )
    (found,) = submitted(tmp_path, plugin_for(service.url), [_job()])
    assert found.admin_comment == ""
    assert found.told == ["wattloop: ?[31mred", "wattloop: %d%s", "wattloop: m"]


def test_only_root_submits_the_tag_of_wattloop(service: Service, tmp_path: Path) -> None:
    """A user's AdminComment cannot carry a cap, whatever Slurm allows."""
    service.answer = "source=none\n"
    forged = 'x wattloop:{"cap_w":9} WattLoop:{}'
    user, root = submitted(
        tmp_path,
        plugin_for(service.url),
        [_job(admin_comment=forged), _job(admin_comment=forged, uid=0)],
    )
    assert user.admin_comment == 'x user-{"cap_w":9} user-{}'
    assert "wrote our mark" in user.logged[-1]
    assert root.admin_comment == forged


def test_the_token_comes_from_a_file(service: Service, tmp_path: Path) -> None:
    """It does not appear in the list of processes."""
    header = tmp_path / "header"
    header.write_text("Authorization: Bearer secret\n")
    submitted(tmp_path, plugin_for(service.url, HEADER_FILE=f'"{header}"'), [_job()])
    assert service.headers[0]["Authorization"] == "Bearer secret"
