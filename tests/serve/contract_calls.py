"""Promises of the API: schemathesis calls what the OpenAPI document allows, and more.

All of its checks run on all calls. The server listens on other addresses, so every call needs a
token.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")
pytest.importorskip("schemathesis", reason="schemathesis is not installed")

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS

from tests.serve.filled import LIVE, RUN, filled
from tests.serve.test_ingest import RUN as SENT
from tests.serve.test_ingest import header, samples, the_end
from tests.support.libraries import library
from wattloop.core.records import HIGHEST_NODE_W
from wattloop.fleet.delivery.batch import Piece, pack_batch
from wattloop.serve.api.nodes import DELIVERY, JOURNAL
from wattloop.serve.app import create_app
from wattloop.serve.options import ServeOptions
from wattloop.store.ingest.uploads import RUN_ID

library("sklearn", reason="scikit-learn is not installed")

EXAMPLES = int(os.environ.get("WATTLOOP_CONTRACT_EXAMPLES", "5"))
"""More of them by hand: WATTLOOP_CONTRACT_EXAMPLES=200 pytest tests/serve/contract_calls.py"""
TOKEN = "secret"
JOURNALS = [header(SENT), header(SENT) + samples(0, 20), header(SENT) + samples(0, 20) + the_end()]
"""More and more of one journal."""

FOLDER = tempfile.TemporaryDirectory(prefix="wattloop-contract-")
"""Removed when the tests end; calls are collected before any fixture could make a store."""
KNOWN: dict[str, tuple[str, ...]] = {}
"""Parameter of a path -> names that exist."""


@pytest.fixture(scope="module", autouse=True)
def _store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make a store with one of every kind of record that is served."""
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


def _app() -> Any:
    path = Path(FOLDER.name) / "runs.db"
    options = ServeOptions(store=str(path), host="0.0.0.0", token=TOKEN, cluster="thesis")
    return create_app(options)


def _deliveries() -> st.SearchStrategy[bytes]:
    """Return bodies that the document can describe only in words."""
    pieces = st.builds(
        Piece,
        run_id=st.text(max_size=120),
        offset=st.integers(0, 2**40),
        data=st.binary(max_size=40),
        final=st.booleans(),
        restart=st.booleans(),
    )
    watts = st.dictionaries(st.text(max_size=20), st.floats(0, HIGHEST_NODE_W), max_size=3)
    said = st.fixed_dictionaries({"power_w": watts}) | st.none()
    clock = st.floats(0, 9e10) | st.none()
    return st.builds(pack_batch, clock, said, st.lists(pieces, max_size=3))


schemathesis.openapi.media_type(JOURNAL, st.sampled_from(JOURNALS))
schemathesis.openapi.media_type(DELIVERY, _deliveries())

schema = schemathesis.openapi.from_asgi(
    "/api/v1/openapi.json",
    _app(),
    headers={"Authorization": f"Bearer {TOKEN}"},
    # sent separately, so that it is also left out, and wrong ones are tried
    config=schemathesis.Config.from_dict(
        {
            "auth": {"openapi": {"bearer": {"bearer": TOKEN}}},
            "request-timeout": 300,  # a call that loads libraries is slow on a busy machine
        }
    ),
)


@schema.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """Three of four names exist: a call with an unknown name tests only that."""
    path = context.operation.path
    if "/ingest/" in path:
        return path_parameters

    def chosen(key: str, value: Any) -> Any:
        names = [name for name in KNOWN.get(key, ()) if name != LIVE or not path.endswith("/live")]
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
    """No 500; every status, type and body is in the document; invalid calls are refused; valid ones
    are accepted; no call is answered without the token."""
    if "/ingest/" in case.path and RUN_ID.fullmatch(case.path_parameters.get("run_id", "")):
        case.path_parameters = {"run_id": SENT}  # a journal names its run
    case.call_and_validate(checks=list(CHECKS.get_all()))
