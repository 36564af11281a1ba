"""Promises of errors: one form, a status that names the side at fault, and never a traceback."""

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from fastapi.testclient import TestClient

from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.serve.state import AppState

TOKEN = {"Authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/runs/none", 404),
        ("/api/v1/nothing", 404),
        ("/api/v1/predict?model=none", 404),
        ("/api/v1/predict?model=gpt2&gpu=none", 404),
        ("/api/v1/predict?model=gpt2&gpu=/etc/x.yaml", 404),
        ("/api/v1/predict?model=gpt2&gpu=h100&cap_w=9999", 409),
        ("/api/v1/compare?run=2026-001&run=2026-001", 409),
        ("/api/v1/predict/plan?model=none", 404),
        ("/api/v1/predict/plan?model=gpt2&gpu=/etc/x.yaml", 404),
        ("/api/v1/predict/plan?model=bert-base-uncased", 409),
        ("/api/v1/predict/plan?model=gpt2&objective=speed", 422),
        ("/api/v1/predict", 422),
        ("/api/v1/predict?model=gpt2&host_speed=0", 422),
        ("/api/v1/compare?run=2026-001", 422),
    ],
)
def test_the_number_says_whose_fault_it_is(client: TestClient, path: str, status: int) -> None:
    """404: unknown; 409: impossible with the stored data; 422: not as the document says."""
    answer = client.get(path)
    assert (answer.status_code, list(answer.json())) == (status, ["detail"])
    assert isinstance(answer.json()["detail"], str)


@pytest.mark.parametrize(
    ("headers", "status"), [({}, 401), ({"Authorization": "Bearer wrong"}, 401)]
)
def test_a_refusal_at_the_door_has_the_same_form(
    place: Path, headers: dict[str, str], status: int
) -> None:
    """A program gets JSON, which names the required kind of token."""
    options = ServeOptions(store=str(place), host="0.0.0.0", token="secret")
    with TestClient(create_app(options)) as client:
        answer = client.get("/api/v1/jobs", headers=headers)
        assert (answer.status_code, list(answer.json())) == (status, ["detail"])
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert client.get("/", headers=headers).headers["content-type"].startswith("text/plain")


def test_another_name_is_refused_in_the_same_form(client: TestClient) -> None:
    """This also holds without a token."""
    answer = client.get("/api/v1/jobs", headers={"Host": "evil.example"})
    assert (answer.status_code, list(answer.json())) == (421, ["detail"])


def test_a_fault_of_ours_has_the_form_too(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 as JSON and as a page, without internal details."""

    def broken(*_: object) -> None:
        raise RuntimeError("secret of the house")

    monkeypatch.setattr(AppState, "tidy", broken)
    app = create_app(ServeOptions(store=str(place)))
    with TestClient(app, raise_server_exceptions=False) as client:
        answer = client.get("/api/v1/jobs")
        assert (answer.status_code, list(answer.json())) == (500, ["detail"])
        assert "secret of the house" not in answer.text


def test_a_token_of_any_characters_opens_and_stays(place: Path) -> None:
    """A cookie holds what a header cannot; a forged one is not stored at all."""
    options = ServeOptions(store=str(place), host="0.0.0.0", token="schlüssel-łódź-😀;")
    with TestClient(create_app(options)) as client:
        assert client.get("/", params={"token": "schlüssel-łódź-😀;"}).status_code == 200
        assert client.get("/").status_code == 200
    options = ServeOptions(store=str(place), host="0.0.0.0", token="secret")
    with TestClient(create_app(options)) as client:
        answer = client.get("/api/v1/jobs", params={"token": "made up 😀"}, headers=TOKEN)
        assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)


@pytest.mark.parametrize(
    "said",
    [
        '{"read_wall_s": 1' + "0" * 400 + "}",
        '{"power_w": {"gpu:0": 1' + "0" * 400 + "}}",
        "[" * 100_000,
        '{"jobs": [77]}',
        '{"jobs": ""}',
        '{"power_w": []}',
        '{"provenance": 5}',
    ],
)
def test_numbers_and_nests_without_end_are_refused(place: Path, said: str) -> None:
    """422, in a status and in a delivery, and the server continues."""
    with TestClient(create_app(ServeOptions(store=str(place), token="secret"))) as client:
        status = client.post("/api/v1/nodes/n1/status", content=said, headers=TOKEN)
        assert status.status_code == 422
        head = f'{{"wall_s": 1, "pieces": [], "status": {said}}}\n'
        delivery = client.post("/api/v1/nodes/n1/delivery", content=head, headers=TOKEN)
        assert delivery.status_code == 422


def test_a_nul_in_an_address_is_looked_for_as_the_store_keeps_it(client: TestClient) -> None:
    """Otherwise a database would report that it is unreachable."""
    assert client.get("/api/v1/jobs?text=%00").json()["jobs"] == []
    missing = client.get("/api/v1/runs/a%00b")
    assert (missing.status_code, "\N{REPLACEMENT CHARACTER}" in missing.json()["detail"]) == (
        404,
        True,
    )


def test_an_unknown_node_is_not_forgotten_twice(place: Path) -> None:
    """The second request gets 404."""
    with TestClient(create_app(ServeOptions(store=str(place), token="secret"))) as client:
        client.post("/api/v1/nodes/n1/status", content="{}", headers=TOKEN)
        answers = [client.delete("/api/v1/nodes/n1", headers=TOKEN) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 404]
