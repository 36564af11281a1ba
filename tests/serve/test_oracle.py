"""Promises of `POST /api/v1/predict`: documented, bounded, and robust against one bad pair."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from fastapi.testclient import TestClient

from wattloop.fleet.tokens import Role, add_token
from wattloop.serve.api.oracle import LARGEST_B, BatchAnswer
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions

JOB = {"model": "resnet-50", "batch": 64, "precision": "tf32", "samples": 1e6}
PLACES = [{"gpu": "h200", "gpus": gpus, "cap_w": cap_w} for gpus in (1, 4) for cap_w in (500, 700)]


def _ask(client: TestClient, question: Any, **how: Any) -> Any:
    return client.post("/api/v1/predict", json=question, **how)


def test_the_answer_is_as_documented(client: TestClient) -> None:
    """Rows in the order of the pairs, a best one for each job, and every documented field."""
    found = _ask(client, {"jobs": [JOB, {"model": "x"}], "placements": PLACES})
    assert found.status_code == 200
    answer = BatchAnswer.model_validate(found.json())
    assert [(row.job, row.placement) for row in answer.results] == [
        (job, place) for job in range(2) for place in range(4)
    ]
    first = answer.results[0]
    assert first.time_s and first.power_w and first.energy_j == first.time_s * first.power_w
    assert first.intervals is not None and first.intervals["time_s"] is not None
    low, high = first.intervals["time_s"]
    assert low < first.time_s < high
    assert answer.jobs[0].best is not None and answer.jobs[1].best is None
    assert answer.results[4].error is not None and "unknown" in answer.results[4].error


def test_the_example_of_the_documentation_is_answered(client: TestClient) -> None:
    """docs/oracle-service.md shows a request that works, with existing fields."""
    text = (Path(__file__).parents[2] / "docs" / "oracle-service.md").read_text()
    asked = re.search(r"-d '(\{.*?\n\})'", text, re.S)
    shown = re.search(r"```json\n(.*?)```", text, re.S)
    assert asked is not None and shown is not None
    question = {**json.loads(asked[1]), "wait_s": 0}
    found = _ask(client, question)
    assert found.status_code == 200 and len(found.json()["results"]) == 9
    BatchAnswer.model_validate(json.loads(shown[1]))
    assert set(json.loads(shown[1])) == set(found.json())


def test_the_document_of_calls_is_whole(client: TestClient) -> None:
    """Every part of a request has its description, and references resolve."""
    document = client.get("/api/v1/openapi.json").json()
    call = document["paths"]["/api/v1/predict"]["post"]
    form = call["requestBody"]["content"]["application/json"]["schema"]
    assert "samples" in form["properties"]["jobs"]["items"]["properties"]
    assert form["properties"]["placements"]["items"]["properties"]["gpus"]["minimum"] == 1
    assert "#/$defs" not in json.dumps(document)


def test_named_pairs_alone_are_answered(client: TestClient) -> None:
    """Two of four pairs are answered."""
    found = _ask(client, {"jobs": [JOB], "placements": PLACES, "pairs": [[0, 3], [0, 1]]}).json()
    assert [row["placement"] for row in found["results"]] == [3, 1]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"jobs": []}, "jobs: List should have at least 1 item"),
        ({"jobs": [JOB] * 1001}, "jobs: List should have at most 1000"),
        ({"jobs": [{**JOB, "priority": 9}]}, "jobs.0.priority: Extra inputs"),
        ({"jobs": [{**JOB, "samples": -1}]}, "jobs.0.samples"),
        ({"jobs": [{**JOB, "batch": [1] * 17}], "placements": PLACES}, "at most 16 items"),
        ([], "body: Input should be an object"),
    ],
)
def test_senseless_questions_are_refused_in_words(
    client: TestClient, question: Any, said: str
) -> None:
    """Status 422, with the error and its place."""
    found = _ask(client, question)
    assert found.status_code == 422
    assert said in found.json()["detail"]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"jobs": [JOB]}, "start it with --cluster"),
        ({"jobs": [JOB], "placements": PLACES, "pairs": [[0, 9]]}, "there are 1 jobs"),
        ({"jobs": [JOB] * 200, "placements": PLACES * 20}, "at most 10,000"),
    ],
)
def test_questions_that_this_server_cannot_answer_are_told_apart(
    client: TestClient, question: Any, said: str
) -> None:
    """Status 409: each part is well formed, but they do not fit together."""
    found = _ask(client, question)
    assert (found.status_code, said in found.json()["detail"]) == (409, True)


def test_a_question_too_large_is_not_read(client: TestClient) -> None:
    """Status 413 comes as soon as the limit is exceeded."""
    found = client.post("/api/v1/predict", content=b" " * (LARGEST_B + 1))
    assert found.status_code == 413


def test_text_of_any_kind_gets_an_answer(client: TestClient) -> None:
    """Comments and names of users are data."""
    texts = ["'; drop table runs; --", "$(reboot)", "\x00\x1b[2J", "wattloop:" + "x=" * 400, "💥"]
    jobs = [{"comment": text, "name": text, "user": text, "time_limit_s": 60} for text in texts]
    found = _ask(client, {"jobs": jobs, "placements": PLACES[:1]})
    assert found.status_code == 200
    assert [row["provenance"] for row in found.json()["results"]] == ["limit"] * len(texts)


def test_a_fleet_answers_without_placements(place: Any) -> None:
    """It returns the fleet's machines by name."""
    options = ServeOptions(store=str(place), cluster="thesis")
    with TestClient(create_app(options)) as client:
        found = _ask(client, {"jobs": [{**JOB, "gpus": 2}]}).json()
    assert {each["gpu"] for each in found["placements"]} == {"a100", "h100"}


def test_from_elsewhere_the_token_is_needed(place: Any) -> None:
    """This is as for all that can be read."""
    options = ServeOptions(store=str(place), host="0.0.0.0", token="secret")
    question = {"jobs": [JOB], "placements": PLACES}
    with TestClient(create_app(options)) as client:
        assert _ask(client, question).status_code == 401
        known = {"Authorization": "Bearer secret"}
        assert _ask(client, question, headers=known).status_code == 200


def test_submit_answers_in_json_and_in_lines(place: Any) -> None:
    """The figures are the same; lines are for programs without a JSON parser."""
    job = {"comment": "wattloop:model=resnet-50,precision=tf32,batch=64,samples=1e6", "gpus": 2}
    with TestClient(create_app(ServeOptions(store=str(place), cluster="thesis"))) as client:
        client.app.state.wattloop.oracle.warm_up()  # type: ignore[attr-defined] # Starlette's own
        found = client.post("/api/v1/predict/submit", json=job).json()
        plain = client.post("/api/v1/predict/submit", json=job, headers={"Accept": "text/plain"})
        broken = client.post("/api/v1/predict/submit", json={"gpus": -1})
    assert found["energy_j"] > 0 and found["source"] == "comment"
    assert f"energy_j={found['energy_j']:.0f}\n" in plain.text
    assert plain.headers["content-type"].startswith("text/plain")
    assert broken.status_code == 422


@pytest.mark.parametrize(
    ("role", "status"),
    [(Role.READER, 200), (Role.SCHEDULER, 200), (Role.WRITER, 200), (Role.NODE, 403)],
)
def test_roles_that_read_may_ask(place: Any, tmp_path: Path, role: Role, status: int) -> None:
    """Another scheduler needs no right to write; a node's token may not ask."""
    tokens = tmp_path / "tokens.json"
    secret = add_token(tokens, "caller", role, node="n1" if role is Role.NODE else "")
    options = ServeOptions(store=str(place), host="0.0.0.0", token="admin", tokens=tokens)
    with TestClient(create_app(options)) as client:
        found = _ask(
            client,
            {"jobs": [JOB], "placements": PLACES},
            headers={"Authorization": f"Bearer {secret}"},
        )
    assert found.status_code == status
