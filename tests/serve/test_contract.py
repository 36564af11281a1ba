"""The API keeps its own word: schemathesis asks what the OpenAPI document allows, and more."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")
pytest.importorskip("schemathesis", reason="schemathesis is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tests.serve.filled import LIVE, RUN, filled
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions

EXAMPLES = int(os.environ.get("WATTLOOP_CONTRACT_EXAMPLES", "15"))
"""More of them by hand: WATTLOOP_CONTRACT_EXAMPLES=200 pytest tests/serve/test_contract.py"""

CHECKS = [
    *(not_a_server_error, checks.status_code_conformance, checks.content_type_conformance),
    *(checks.response_headers_conformance, checks.response_schema_conformance),
    *(checks.negative_data_rejection, checks.missing_required_header),
    *(checks.unsupported_method, checks.allow_header_conformance),
]
REFUSES_WHAT_IS_ALLOWED = (
    "/api/v1/predict",  # names of models and GPUs, and which batch fits, are not in the document
    "/api/v1/ingest/{run_id}",  # a body is bytes to the document; the first must be a header
    "/api/v1/nodes/{node}/status",  # bodies that the document does not describe
    "/api/v1/nodes/{node}/delivery",
    "/api/v1/jobs",  # a day is a text to the document
    "/api/v1/jobs/slopes",
    "/api/v1/searches/{search_id}/clusters",  # names of columns differ from search to search
    "/api/v1/campaigns/{campaign_id}/over-time",  # names of policies, from campaign to campaign
)
"""Here a 422 may answer what the document allows; everywhere else that would be a fault."""


FOLDER = tempfile.TemporaryDirectory(prefix="wattloop-contract-")
"""Removed when the tests end; calls are collected before any fixture could make a store."""
KNOWN: dict[str, tuple[str, ...]] = {}
"""Parameter of a path -> names that exist."""


@pytest.fixture(scope="module", autouse=True)
def _store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Something of everything in the store that is served."""
    with pytest.MonkeyPatch.context() as patch, filled(Path(FOLDER.name)) as store:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        KNOWN.update(
            run_id=(RUN, LIVE, "2026-002", "2026-003"),
            sweep_id=(store.sweep,),
            search_id=(store.search,),
            campaign_id=(store.campaign,),
            study_id=(store.study,),
        )
        yield
    KNOWN.clear()


def _schema() -> Any:
    path = Path(FOLDER.name) / "runs.db"
    app = create_app(ServeOptions(store=str(path), token="secret", cluster="thesis"))
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)


schema = _schema()


@schema.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """Three of four names exist: of one that does not, a call says only that."""
    endless = context.operation.path.endswith("/live")

    def chosen(key: str, value: Any) -> Any:
        names = [name for name in KNOWN.get(key, ()) if name != LIVE or not endless]
        place = sum(str(value).encode("utf-8", "replace"))
        return names[place % len(names)] if names and place % 4 else value

    return {key: chosen(key, value) for key, value in (path_parameters or {}).items()}


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_no_call_breaks_its_contract(case: Any) -> None:
    """No 500; every status, type and body is one that the document names; nonsense is refused."""
    wanted = [*CHECKS]
    if case.operation.path not in REFUSES_WHAT_IS_ALLOWED:
        wanted.append(checks.positive_data_acceptance)
    case.call_and_validate(headers={"Authorization": "Bearer secret"}, checks=wanted)
