"""Promises of the OpenAPI document: which client may call what, and complete descriptions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from fastapi.testclient import TestClient

from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions

WRITES = {
    ("get", "/api/v1/ingest/{run_id}"),
    ("post", "/api/v1/ingest/{run_id}"),
    ("post", "/api/v1/nodes/{node}/status"),
    ("post", "/api/v1/nodes/{node}/delivery"),
    ("delete", "/api/v1/nodes/{node}"),
}
"""What only a token in a header opens; all else only reads."""


def document(folder: Path, host: str = "127.0.0.1") -> dict[str, Any]:
    """Return the document that the server writes."""
    options = ServeOptions(store=str(folder / "runs.db"), host=host, token="secret")
    with TestClient(create_app(options)) as client:
        answer = client.get("/api/v1/openapi.json", headers={"Authorization": "Bearer secret"})
        found: dict[str, Any] = answer.json()
    return found


def calls(found: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Return method, path and description of each call."""
    for path, methods in found["paths"].items():
        for method, call in methods.items():
            yield method, path, call


def test_only_the_header_writes_and_the_document_says_so(tmp_path: Path) -> None:
    """Reading is open on this machine's address; on any other it needs the token as well."""
    here, elsewhere = document(tmp_path), document(tmp_path, "0.0.0.0")
    for found in (here, elsewhere):
        own = {(method, path) for method, path, call in calls(found) if "security" in call}
        assert own == WRITES
        assert all(call.get("security", [{"bearer": []}]) == [{"bearer": []}]
                   for _, _, call in calls(found))  # fmt: skip
    assert {} in here["security"]
    assert {} not in elsewhere["security"]
    assert {name for one in elsewhere["security"] for name in one} == set(
        elsewhere["components"]["securitySchemes"]
    )


def test_every_call_says_what_it_takes_and_what_it_answers(tmp_path: Path) -> None:
    """Bodies with their media type, parameters that are never null, and one form of error."""
    for method, path, call in calls(document(tmp_path)):
        where = f"{method} {path}"
        assert call["description"], where
        assert ("requestBody" in call) == (method == "post"), where
        assert not any(
            {"type": "null"} in one["schema"].get("anyOf", ()) for one in call.get("parameters", ())
        ), where
        assert {"401", "403", "503"} <= call["responses"].keys(), where
        for status, answer in call["responses"].items():
            if int(status) >= 400:
                schema = answer["content"]["application/json"]["schema"]["$ref"]
                is_offset = (path, status) == ("/api/v1/ingest/{run_id}", "409")
                assert schema.endswith("/ExpectedAnswer" if is_offset else "/FaultAnswer"), where
