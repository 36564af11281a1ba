"""The API keeps its own word: schemathesis asks what the OpenAPI document allows, and more."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")
pytest.importorskip("schemathesis", reason="schemathesis is not installed")

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tests.serve.conftest import NASTY
from tests.store.test_job_list import record
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.store.database import open_store
from wattloop.store.runs import insert_run

EXAMPLES = int(os.environ.get("WATTLOOP_CONTRACT_EXAMPLES", "4"))
"""More of them by hand: WATTLOOP_CONTRACT_EXAMPLES=200 pytest tests/serve/test_contract.py"""
ENDLESS = "/api/v1/runs/{run_id}/live"


CHECKS = [
    *(not_a_server_error, checks.status_code_conformance, checks.content_type_conformance),
    *(checks.response_headers_conformance, checks.response_schema_conformance),
]
FOLDER = tempfile.TemporaryDirectory(prefix="wattloop-contract-")
"""Removed when the tests end; calls are collected before any fixture could make a store."""


def _schema() -> Any:
    path = Path(FOLDER.name) / "runs.db"
    with open_store(path) as store:
        insert_run(store, record(1))
        insert_run(store, record(2, name=NASTY))
    app = create_app(ServeOptions(store=str(path), token="secret"))
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)


schema = _schema().exclude(path=ENDLESS)


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_no_call_breaks_its_contract(case: Any) -> None:
    """No 500, and every status, type and body is one that the document names."""
    case.call_and_validate(headers={"Authorization": "Bearer secret"}, checks=CHECKS)
