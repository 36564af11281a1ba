"""Promises of the benchmark of the oracle service."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import oracle_service
from wattloop.schedule.estimates.oracle_service import OracleService
from wattloop.serve.api.oracle import BatchQuestion


def test_a_request_is_a_thousand_pairs_with_estimates() -> None:
    """Promise: timed requests get estimates, not refusals; another cap makes another pair."""
    question = BatchQuestion.model_validate(oracle_service.question(0.1))
    answer = OracleService().answer(
        [job.asked() for job in question.jobs],
        [place.where() for place in question.placements],
        wait_s=60.0,
    )
    assert len(answer.prices) == 1_000
    assert sum(not price.error for price in answer.prices) > 800
    assert answer.prices[0].cap_w == pytest.approx(399.9)
